"""Questions of an iteration: the suites' held-out tasks, the tasks that RL draws from, their rewordings and expansions by a teacher.

What is trained on may be attempted without tools first (`synth.direct_attempts`), and what is answered so is left out, whoever made it.
Where there are more than a batch may hold, they are made in several with a seed of their own each. Every batch has its share of each depth;
a later one leaves out what the lake has already, and all leave out what may not be kept. How what the graph is short of is made up for is
the business of `synth.questions.builder.build_questions` alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flows.stages.synthesis.batches import ASKED_BATCH, Batch, Made, sizes
from flows.stages.synthesis.context import QuestionSource, SynthesisContext
from synth.corpora.config import ExpanderConfig, SeedsConfig
from synth.corpora.expander import STAGE as EXPANDER
from synth.corpora.expander import expand
from synth.corpora.linked_passages import Walk
from synth.corpora.seed_questions import STAGE as SEEDS
from synth.corpora.seed_questions import shortfall
from synth.questions.builder import RejectionReason, build_questions
from synth.questions.config import QuestionConfig
from synth.questions.direct_attempts import DIRECT, UNREAD, hard_enough
from synth.questions.rewording import STAGE as REWORDING
from synth.questions.rewording import RewordingConfig, reword
from warehouse import Failure, Outcome, Task
from warehouse.digests import seed_from

log = logging.getLogger("flywheel")

Refuse = Callable[[Task], Failure | None]
"""Why a task may not be kept; None where it may."""


def question_batches(
    part: str,
    source: QuestionSource,
    config: QuestionConfig,
    seed: int,
    largest: int,
    stored: Callable[[], set[str]],
    setting: str,
    refuse: Refuse | None = None,
    split: str = "train",
) -> Iterator[Batch]:
    """The batches, of at most `largest` questions each, that make what `config` asks for; `stored` gives the keys that are there.

    Fewer than that are made where the graph has no more: with a warning, and rows of `failures`, that name the `setting` which asks.
    """
    for number, counts in enumerate(_shared_out(config.wanted(), largest)):
        own = config.model_copy(update={"counts": counts, "count": None if config.count is None else sum(counts.values())})
        own_seed = seed_from(seed, number) if number else seed
        yield Batch(part, number, partial(_make, source, own, own_seed, stored if number else set, setting, refuse, split))


def _shared_out(wanted: Mapping[int, int], largest: int) -> Iterator[dict[int, int]]:
    """`wanted` in parts of `largest` questions and a rest, each with its share of every depth."""
    order = sorted(((place + 0.5) / count, hops) for hops, count in wanted.items() for place in range(count))
    for start in range(0, len(order), largest):
        yield dict(sorted(Counter(hops for _, hops in order[start : start + largest]).items()))


def _make(
    source: QuestionSource,
    config: QuestionConfig,
    seed: int,
    stored: Callable[[], set[str]],
    setting: str,
    refuse: Refuse | None,
    split: str,
) -> Made:
    known, graph = stored(), source.graph
    made, failures = build_questions(graph, config, seed, source.retrieve, source.allowed, known=known, refuse=refuse, split=split)
    return made, explain_shortfall(made, failures, config, setting)


def explain_shortfall(made: Sequence[Task], failures: Sequence[Failure], config: QuestionConfig, setting: str) -> list[Failure]:
    """The failures, each shortfall among them with the `setting` that asks for more than the graph gives; with a warning where it is so."""
    wanted = sum(config.wanted().values())
    if len(made) < wanted:
        log.warning(
            "%s asks for %d questions, and the graph gives %d: lower it, or bring more facts and documents", setting, wanted, len(made)
        )
    return [
        replace(failure, reason=f"{failure.reason}; {setting} asks for them", item={**failure.item, "setting": setting})
        if failure.kind == RejectionReason.SHORTFALL
        else failure
        for failure in failures
    ]


def suites(synthesis: SynthesisContext) -> Iterator[Batch]:
    """The held-out tasks of every suite; the gate's meet none of those that are reported."""
    evaluation = synthesis.context.config.evaluation
    for name, config in evaluation.all_suites.items():
        part = f"suite {name}"
        seed, size = synthesis.seed(part), synthesis.settings.batch
        refuse = synthesis.index_of(evaluation.suites).objection if name in evaluation.gate else None
        setting = f"{evaluation.setting_of(name)}.{config.asked_by}"
        yield from question_batches(part, synthesis.held_out, config, seed, size, synthesis.keys, setting, refuse, name)


def questions(synthesis: SynthesisContext) -> Iterator[Batch]:
    """The tasks that RL trains on; pages have no graph that could give one."""
    if synthesis.context.config.corpus.kind == "pages":
        return
    config = synthesis.settings.webshaper
    seed, refuse = synthesis.seed("questions"), synthesis.evaluation.objection
    setting, size = f"synth.webshaper.{config.asked_by}", synthesis.settings.batch
    known = partial(_seen, synthesis)
    if synthesis.settings.direct_attempts is not None:
        size = min(size, ASKED_BATCH)
    for batch in question_batches("questions", synthesis.train, config, seed, size, known, setting, refuse):
        yield Batch(batch.part, batch.number, partial(_attempted, synthesis, batch))


def _seen(synthesis: SynthesisContext) -> set[str]:
    """The keys of the questions that are stored, and of those that were dropped for what direct attempts at them came to."""
    sql = "SELECT item->>'task' AS key FROM failures WHERE stage = 'synth' AND kind IN (?, ?)"
    dropped = synthesis.context.lake.query(sql, [DIRECT, UNREAD])
    return synthesis.keys() | set(dropped.column("key").to_pylist())


def _attempted(synthesis: SynthesisContext, questions: Batch) -> Made:
    made, failures = questions.make()
    return _hard_enough(synthesis, [task for task in made if isinstance(task, Task)], failures)


def _hard_enough(synthesis: SynthesisContext, tasks: Sequence[Task], failures: Sequence[Failure]) -> Made:
    """The tasks that nobody answers without tools, where the settings have somebody try; and the failures with those of the others."""
    config = synthesis.settings.direct_attempts
    if config is None or not tasks:
        return tasks, failures
    kept, dropped = hard_enough(tasks, synthesis.direct_model, config)
    synthesis.count(attempted=len(tasks), answered=len(tasks) - len(kept))
    return kept, [*failures, *dropped]


def seeds(synthesis: SynthesisContext) -> Iterator[Batch]:
    """Questions that a teacher makes of documents alone, one for each walk over linked passages."""
    config = synthesis.settings.seeds
    if config is None:
        return
    for number, size in enumerate(sizes(config.count, ASKED_BATCH)):
        yield Batch(SEEDS, number, partial(_seed, synthesis, config, number * ASKED_BATCH, size))


def _seed(synthesis: SynthesisContext, config: SeedsConfig, start: int, size: int) -> Made:
    """The questions of one batch of walks; the first that has fewer than it should says why."""
    walks = synthesis.walks
    lacking = len(walks) < config.count and start <= len(walks) < start + size
    short = [shortfall(config.count, len(walks), config.passages)] if lacking else []
    for failure in short:
        log.warning("%s", failure.reason)
    own = walks[start : start + size]
    made = synthesis.seeder.make(own, synthesis.seed(SEEDS), synthesis.keys() - _asked_of(synthesis, own))
    synthesis.count(**made.survived)
    clear, removed = synthesis.evaluation.clear_tasks(made.tasks)
    kept, failures = _hard_enough(synthesis, clear, [*short, *made.failures, *removed])
    synthesis.count(kept=len(kept))
    return kept, failures


def _asked_of(synthesis: SynthesisContext, walks: Sequence[Walk]) -> set[str]:
    """The keys of the tasks that were made of these walks before, as by `flywheel synth webshaper`: made again, they are no doubles."""
    wanted = {tuple(passage.id for passage in walk.passages) for walk in walks}
    made = synthesis.context.lake.query(
        "SELECT key, (provenance->'walk')::VARCHAR[] AS walk FROM tasks WHERE json_exists(provenance, '$.walk')"
    )
    return {row["key"] for row in made.to_pylist() if tuple(row["walk"]) in wanted}


def rewordings(synthesis: SynthesisContext) -> Iterator[Batch]:
    """The questions that RL trains on in a teacher's words, but for those that one was asked for already."""
    config = synthesis.settings.rewording
    if config is None:
        return
    written, asked = _written(synthesis), _asked_about(synthesis, "reworded_from", REWORDING)
    for number, tasks in synthesis.in_batches(written, ASKED_BATCH):
        if left := [task for task in tasks if task.key not in asked]:
            yield Batch("rewordings", number, partial(_reword, synthesis, left, config))


def expansions(synthesis: SynthesisContext) -> Iterator[Batch]:
    """The first questions that RL trains on, by key, made deeper by a teacher that searches, but for those that it had already."""
    config = synthesis.settings.expander
    if config is None:
        return
    chosen = sorted(_written(synthesis), key=lambda task: task.key)[: config.count]
    asked = _asked_about(synthesis, "expanded_from", EXPANDER)
    for number, start in enumerate(range(0, len(chosen), config.concurrency)):
        if left := [task for task in chosen[start : start + config.concurrency] if task.key not in asked]:
            yield Batch("expansions", number, partial(_expand, synthesis, left, config))


def _written(synthesis: SynthesisContext) -> list[Task]:
    """The training questions that were built, and not made from others."""
    tasks = synthesis.context.lake.tasks(split="train")
    return [task for task in tasks if task.formula and not {"reworded_from", "expanded_from"} & set(task.provenance)]


def _asked_about(synthesis: SynthesisContext, link: str, stage: str) -> set[str]:
    """The keys of the questions that a teacher made others from, by `link` of their provenance, or tried to, by the failures of `stage`.

    A batch that is not done has none of its own, so it is the same after a kill.
    """
    sql = """
        SELECT provenance->>$link AS key FROM tasks WHERE json_exists(provenance, '$.' || $link)
        UNION SELECT item->>$link FROM failures WHERE json_exists(item, '$.' || $link)
        UNION SELECT item->>'task' FROM failures WHERE stage = $stage
    """
    return set(synthesis.context.lake.query(sql, {"link": link, "stage": stage}).column("key").to_pylist())


def _expand(synthesis: SynthesisContext, tasks: Sequence[Task], config: ExpanderConfig) -> Made:
    teacher, seed = synthesis.asked("expander"), synthesis.seed("expander")
    made = expand(tasks, teacher, synthesis.train_index, config, seed, synthesis.turn, synthesis.known_facts)
    kept, failures = _cleared(synthesis, made.tasks, made.failures, "expanded_from")
    found = sum(trajectory.outcome is Outcome.SUCCESS for trajectory in made.trajectories)
    synthesis.count(questions=len(tasks), expanded=len(made.tasks), runs=len(made.trajectories), descriptions=found)
    return [*kept, *made.trajectories], failures


def _reword(synthesis: SynthesisContext, tasks: Sequence[Task], config: RewordingConfig) -> Made:
    made, failures = reword(
        tasks, synthesis.asked("rewording"), config, synthesis.seed("rewording"), synthesis.train.graph, synthesis.train.retrieve
    )
    return _cleared(synthesis, made, failures, "reworded_from")


def _cleared(synthesis: SynthesisContext, made: Sequence[Task], failures: Sequence[Failure], link: str) -> Made:
    """What was made from other questions and may be trained on; failures of what may not be name, as `link`, the question it is from."""
    clear, removed = synthesis.evaluation.clear_tasks(made)
    kept, dropped = _hard_enough(synthesis, clear, removed)
    origins = {task.key: task.provenance[link] for task in made}
    named = [replace(drop, item={**drop.item, link: origins[drop.item["task"]]}) for drop in dropped]
    return kept, [*failures, *named]
