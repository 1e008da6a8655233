"""Training examples of an iteration: documents, and the cold start.

Each function gives the batches of one kind: the corpora, with a sample of their documents to read; and the runs that a cold start learns
from: the oracle's, the policy's own successes, imported or stored ones, a teacher's. What is learnt without being run is in `actions`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import duckdb

from flows.results import judged_trajectories
from flows.stages.synthesis.batches import ASKED_BATCH, Batch, Made
from flows.stages.synthesis.context import EARLIER, SynthesisContext
from flows.stages.synthesis.questions import Refuse, question_batches
from rl.retrieval.indexes import Indexes
from rl.retrieval.search import passage
from rl.rewards.reward import reward_trajectories
from rl.supervised.config import StoredRunsConfig
from synth.demonstrations.cold_start import DemonstrationConfig, build_demonstrations, choose_successes, needs_second_try, without_images
from synth.demonstrations.runs import choose_runs
from synth.questions.config import QuestionConfig
from synth.teachers.play import play, requests_for
from warehouse import Document, DocumentSplit, Example, Failure, Part, PartKind, Task
from warehouse.corpora.corpus import Corpus
from warehouse.digests import digest
from warehouse.errors import RequestError, first_line

Shown = Callable[[], set[str]]
"""The keys of the tasks that demonstrations show by now."""


def corpora(synthesis: SynthesisContext, everything: bool) -> Iterator[Batch]:
    """Facts and documents, and what their reader quarantined; of the training corpus alone, or of `everything`."""
    sources = synthesis.sources
    chosen = [sources.train, sources.held_out] if everything and not sources.shared else [sources.train]
    for number, corpus in enumerate(chosen):
        yield Batch("corpus", number, partial(_records_of, corpus))


def documents(synthesis: SynthesisContext) -> Iterator[Batch]:
    """A sample of the training corpus as plain text."""
    seen = synthesis.sources.documents(DocumentSplit.HELD_OUT)
    chosen = random.Random(synthesis.seed("documents")).sample(seen, min(len(seen), synthesis.settings.documents))
    for number, part in synthesis.in_batches(chosen):
        yield Batch("documents", number, partial(_read_as_text, synthesis, part))


def _records_of(corpus: Corpus) -> Made:
    return [*corpus.facts, *corpus.documents], [*corpus.failures]


def _read_as_text(synthesis: SynthesisContext, documents: Sequence[Document]) -> Made:
    return synthesis.clear([_example(document, synthesis.turn) for document in documents], [])


def _example(document: Document, turn: int) -> Example:
    part = Part(PartKind.DOCUMENT, passage(document), True)
    return Example(digest(["document", document.id, turn]), "document", (part,), (document.id,), turn)


def demonstrations(synthesis: SynthesisContext, shown: Shown | None = None) -> Iterator[Batch]:
    """The oracle's trajectories, as good or as mixed as the configuration says; those that hold a second try in batches of their own.

    `shown` gives the keys of the tasks that earlier batches show; without it, the lake does.
    """
    shown = shown or partial(_shown, synthesis)
    settings = synthesis.settings
    config, own = settings.demonstration_questions, settings.demonstrations
    if own.search == "perfect":
        yield from _demonstrations(synthesis, "demonstrations", config, own, synthesis.evaluation.objection, shown)
        return
    twice = {hops: round(count * own.second_try) for hops, count in config.wanted().items()}
    once = {hops: count - twice[hops] for hops, count in config.wanted().items()}
    for part, counts, style, tries in (("demonstrations", once, own, False), ("demonstrations with a second try", twice, own.clean, True)):
        if total := sum(counts.values()):
            questions = config.model_copy(update={"counts": counts, "count": config.count and total})
            yield from _demonstrations(synthesis, part, questions, style, partial(_objection_to_tries, synthesis, tries), shown)


def _demonstrations(
    synthesis: SynthesisContext, part: str, questions: QuestionConfig, config: DemonstrationConfig, refuse: Refuse, shown: Shown
) -> Iterator[Batch]:
    """Demonstrations of the questions that `refuse` has nothing against, all of them made by `config`."""
    seed, setting = synthesis.seed(part), f"synth.demonstration_questions.{questions.asked_by}"
    size, split = synthesis.settings.batch, "demonstration"
    for batch in question_batches(part, synthesis.train, questions, seed, size, shown, setting, refuse, split):
        yield Batch(batch.part, batch.number, partial(_demonstrate, synthesis, config, batch))


def _objection_to_tries(synthesis: SynthesisContext, wanted: bool, task: Task) -> Failure | None:
    """Why a question makes no demonstration whose searches have to be tried again, or, where none is `wanted`, none without."""
    source, seed = synthesis.train, synthesis.seed("demonstrations")
    needed = needs_second_try(source.graph, task, seed, source.retrieve, synthesis.search)
    if needed is wanted:
        return synthesis.evaluation.objection(task)
    reason = "the oracle does not find all of its documents" if needed is None else f"it {'needs' if needed else 'needs no'} second try"
    return Failure("synth", "demonstration_of_other_tries", reason, task.key)


def rejection_sampled(synthesis: SynthesisContext) -> Iterator[Batch]:
    """The policy's own successes in earlier turns, as sampled."""
    yield Batch("rejection sampling", 0, partial(_choose, synthesis))


def again(synthesis: SynthesisContext, kinds: Sequence[str]) -> Iterator[Batch]:
    """What the first turn was trained on, of these kinds, once more: what another text is measured against."""
    for number, part in synthesis.in_batches(synthesis.context.lake.examples(kinds, turn=1)):
        yield Batch(f"{kinds[0]} again", number, partial(_repeat, synthesis.turn, part))


def _repeat(turn: int, examples: Sequence[Example]) -> Made:
    return [replace(example, id=f"again-{turn}-{example.id}", wheel_turn=turn) for example in examples], []


def stored_runs(synthesis: SynthesisContext, part: str, chosen: str, config: StoredRunsConfig) -> Iterator[Batch]:
    """Examples of the stored trajectories that meet the condition `chosen` and that of `config`."""
    yield Batch(part, 0, partial(_of_runs, synthesis, chosen, config, part))


def taught(synthesis: SynthesisContext) -> Iterator[Batch]:
    """Questions that a teacher plays in their environment, and then the successes among its runs; both in one commit a batch."""
    config = synthesis.settings.demonstration_questions
    seed, refuse = synthesis.seed("taught"), synthesis.evaluation.objection
    size, setting = min(synthesis.settings.batch, ASKED_BATCH), f"synth.demonstration_questions.{config.asked_by}"
    for batch in question_batches("taught", synthesis.train, config, seed, size, synthesis.keys, setting, refuse, "demonstration"):
        yield Batch(batch.part, batch.number, partial(_teach, synthesis, batch))


def _of_runs(synthesis: SynthesisContext, chosen: str, config: StoredRunsConfig, part: str) -> Made:
    lake = synthesis.context.lake
    try:
        found = judged_trajectories(lake, f"({chosen}) AND ({config.where})")
    except duckdb.Error as error:
        raise RequestError(f"sft.{part}.where is no condition on the table trajectories: {first_line(error)}") from error
    tasks = {task.key: task for task in lake.tasks()}
    own, tried = frozenset(policy.id for policy in lake.policies()), {trajectory.task_key for trajectory in found}
    asked = {task.key for suite in synthesis.suites().values() for task in suite}
    held_out = {key for key in tried & tasks.keys() if key in asked or synthesis.evaluation.objection(tasks[key]) is not None}
    examples, failures = choose_runs(found, tasks, config, synthesis.tools, own, synthesis.seed(part), synthesis.turn, held_out)
    kept, removed = synthesis.evaluation.clear_examples(examples)
    return kept, [*failures, *removed]


def _teach(synthesis: SynthesisContext, questions: Batch) -> Made:
    tasks, dropped = questions.make()
    context, config = synthesis.context, synthesis.context.config.for_turn(synthesis.turn).sft.teacher
    teacher, asked = synthesis.asked("from = teacher"), [task for task in tasks if isinstance(task, Task)]
    wanted = requests_for(asked, teacher.name, config, synthesis.seed("taught"), synthesis.turn)
    indexes = Indexes(synthesis.searched)
    concurrency = synthesis.settings.teacher.concurrency if synthesis.settings.teacher is not None else 1
    played = play(wanted, teacher, context.config.rollout.environments, indexes, config, concurrency)
    rewarded = reward_trajectories([request.task for request in wanted], played, context.verifiers(tasks=asked))
    choice, by_key = StoredRunsConfig(per_task=config.per_task), {task.key: task for task in asked}
    examples, failures = choose_runs(
        rewarded.trajectories, by_key, choice, synthesis.tools, frozenset(), synthesis.seed("taught"), synthesis.turn
    )
    return [*asked, *rewarded.trajectories, *rewarded.scores, *examples], [*dropped, *failures]


def _shown(synthesis: SynthesisContext) -> set[str]:
    """The keys of the tasks that this turn's demonstrations show."""
    sql = "SELECT DISTINCT sources[1] AS key FROM examples WHERE kind = 'trajectory' AND wheel_turn = ?"
    return set(synthesis.context.lake.query(sql, [synthesis.turn]).column("key").to_pylist())


def _demonstrate(synthesis: SynthesisContext, config: DemonstrationConfig, questions: Batch) -> Made:
    tasks, dropped = questions.make()
    source, asked = synthesis.train, [task for task in tasks if isinstance(task, Task)]
    search = synthesis.search if config.search == "imperfect" else None
    seed, turn = synthesis.seed("demonstrations"), synthesis.turn
    examples, failures = build_demonstrations(source.graph, asked, config, seed, source.retrieve, wheel_turn=turn, search=search)
    return synthesis.offered(examples), [*dropped, *failures]


def _choose(synthesis: SynthesisContext) -> Made:
    lake = synthesis.context.lake
    solved = lake.query(f"SELECT trajectory_id AS id FROM outcomes WHERE {EARLIER} AND outcome = 'success'", [synthesis.turn])
    earlier = lake.trajectories("id IN (SELECT unnest(?))", [solved.column("id").to_pylist()])
    hops = {task.key: task.hops for task in lake.tasks(split="train")}
    usable, left_out = without_images(earlier)
    return choose_successes(usable, hops, synthesis.settings.rejection_samples, synthesis.seed("rejection"), synthesis.turn), left_out
