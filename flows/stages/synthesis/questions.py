"""Questions of an iteration: suites, training tasks, and a teacher's questions, rewordings and expansions.

`synth.direct_attempts` drops training questions that are answered without tools. Large numbers of questions are split into batches, each
with its own seed and share of every number of hops; later batches skip stored questions. `build_questions` compensates for shortages of the
graph.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from flows.stages.synthesis.batches import ASKED_BATCH, Batch, Guard, Made, Work, sizes
from flows.stages.synthesis.sources import Material, QuestionSource
from synth.corpora.config import PASSAGE_CHARACTERS, ExpanderConfig, SeedsConfig
from synth.corpora.counter_evidence import PassageSearch
from synth.corpora.expander import STAGE as EXPANDER
from synth.corpora.expander import expand
from synth.corpora.passages import LinkedPassages, Walk
from synth.corpora.seed_proposals import STAGE as SEEDS
from synth.corpora.seed_questions import SeedGenerator, shortfall
from synth.generation import PolicySampler
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions
from synth.questions.decontamination import EvaluationIndex
from synth.questions.difficulty import DIRECT, UNREAD, DirectAttemptsConfig, DirectModel, PolicyAttempts, TeacherAttempts, hard_enough
from synth.questions.rewording import STAGE as REWORDING
from synth.questions.rewording import RewordingConfig, reword
from warehouse import Failure, Outcome, Task
from warehouse.digests import seed_from
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

Refuse = Callable[[Task], Failure | None]
"""Returns the objection to a task, if any."""


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
    """Yield batches of at most `largest` questions that make what `config` requests; `stored` returns the keys in the lake.

    If the graph yields fewer, a warning and `failures` name the `setting` to lower.
    """
    for number, counts in enumerate(_shared_out(config.wanted(), largest)):
        own = config.model_copy(update={"counts": counts, "count": None if config.count is None else sum(counts.values())})
        own_seed = seed_from(seed, number) if number else seed
        yield Batch(part, number, partial(_make, source, own, own_seed, stored if number else set, setting, refuse, split))


def _shared_out(wanted: Mapping[int, int], largest: int) -> Iterator[dict[int, int]]:
    """Split `wanted` into parts of `largest` questions, each with its share of every number of hops."""
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
    """Name the `setting` that requests too many questions in each shortfall among `failures`, and log a warning."""
    wanted = sum(config.wanted().values())
    if len(made) < wanted:
        log.warning("%s requests %d questions, and the graph gives %d: lower it, or add facts and documents", setting, wanted, len(made))
    return [
        replace(failure, reason=f"{failure.reason}; {setting} asks for them", item={**failure.item, "setting": setting})
        if failure.kind == RejectionReason.SHORTFALL
        else failure
        for failure in failures
    ]


def suites(work: Work, material: Material) -> Iterator[Batch]:
    """Tasks of every suite. Those of the gate must not match reported suites."""
    evaluation, lake = work.context.config.evaluation, work.context.lake
    for name, config in evaluation.all_suites.items():
        part, refuse = f"suite {name}", None
        if name in evaluation.gate:
            reported = {suite: lake.tasks(split=suite) for suite in evaluation.suites}
            refuse = EvaluationIndex.of(reported, work.settings.decontamination).objection
        setting = f"{evaluation.setting_of(name)}.{config.asked_by}"
        seed, size = work.seed(part), work.settings.batch
        yield from question_batches(part, material.held_out, config, seed, size, work.keys, setting, refuse, name)


@dataclass(frozen=True)
class DirectAttempts:
    """Drops training questions that are answered without tools, if configured."""

    work: Work

    def hard_enough(self, tasks: Sequence[Task], failures: Sequence[Failure]) -> Made:
        """Return the tasks that no attempt answers, and `failures` with those of the others."""
        config = self.work.settings.direct_attempts
        if config is None or not tasks:
            return tasks, failures
        kept, dropped = hard_enough(tasks, self._model, config)
        self.work.count(attempted=len(tasks), answered=len(tasks) - len(kept))
        return kept, [*failures, *dropped]

    @cached_property
    def _model(self) -> DirectModel:
        """The teacher, or the policy on newly started engines. Raises RequestError if there is none."""
        work, context = self.work, self.work.context
        config, seed = work.settings.direct_attempts or DirectAttemptsConfig(), work.seed("direct attempts")
        if config.by == "teacher":
            return TeacherAttempts(work.asked("synth.direct_attempts"), config, seed)
        champion = context.champion(before=work.turn)
        folder = context.config.policy.folder if champion is None else context.folder(champion)
        if folder is None:
            raise RequestError(
                f"{context.home.root} has no policy promoted before iteration {work.turn} to attempt questions; set "
                "synth.direct_attempts.by = teacher, or set it under later."
            )
        rollouts = context.rollouts(folder)
        name = folder.name if champion is None else champion.id
        sampler = PolicySampler(rollouts.pool, rollouts, rollouts.config.concurrency)
        return PolicyAttempts(name, sampler, rollouts.dialect, config, seed)


def questions(work: Work, material: Material, guard: Guard, attempts: DirectAttempts) -> Iterator[Batch]:
    """Training tasks of RL, drawn from the graph; none for a corpus without facts."""
    if not work.context.config.corpus.trains_on_facts:
        return
    config = work.settings.webshaper
    setting, size = f"synth.webshaper.{config.asked_by}", work.settings.batch
    if work.settings.direct_attempts is not None:
        size = min(size, ASKED_BATCH)

    def known() -> set[str]:
        """Stored questions, and those dropped after direct attempts."""
        sql = "SELECT item->>'task' AS key FROM failures WHERE stage = 'synth' AND kind IN (?, ?)"
        return work.keys() | set(work.context.lake.query(sql, [DIRECT, UNREAD]).column("key").to_pylist())

    def attempted(batch: Batch) -> Made:
        made, failures = batch.make()
        return attempts.hard_enough([task for task in made if isinstance(task, Task)], failures)

    seed, refuse = work.seed("questions"), guard.index.objection
    for batch in question_batches("questions", material.train, config, seed, size, known, setting, refuse):
        yield Batch(batch.part, batch.number, partial(attempted, batch))


@dataclass(frozen=True)
class SeedQuestions:
    """Questions that a teacher writes from documents alone, one per walk over linked passages."""

    work: Work
    material: Material
    guard: Guard
    attempts: DirectAttempts

    @property
    def _config(self) -> SeedsConfig:
        return self.work.settings.seeds or SeedsConfig()

    def batches(self) -> Iterator[Batch]:
        if self.work.settings.seeds is not None:
            for number, size in enumerate(sizes(self._config.count, ASKED_BATCH)):
                yield Batch(SEEDS, number, partial(self._make, number * ASKED_BATCH, size))

    @cached_property
    def _linked(self) -> LinkedPassages:
        return LinkedPassages.of(self.material.train_index.documents, PASSAGE_CHARACTERS, self._config.sharing)

    @cached_property
    def _walks(self) -> list[Walk]:
        return self._linked.walks(self._config.count, self._config.passages, self.work.seed(SEEDS))

    @cached_property
    def _generator(self) -> SeedGenerator:
        search, environment = PassageSearch(self._linked), self.work.settings.webshaper.environment
        index, known = self.material.train_index, self.material.known_facts
        return SeedGenerator(self.work.asked(f"synth.{SEEDS}"), self.work.readers, search, index, self._config, environment, known)

    def _make(self, start: int, size: int) -> Made:
        """Make the questions of one batch of walks. The first batch without enough walks records the shortfall."""
        config, walks = self._config, self._walks
        lacking = len(walks) < config.count and start <= len(walks) < start + size
        short = [shortfall(config.count, len(walks), config.passages)] if lacking else []
        for failure in short:
            log.warning("%s", failure.reason)
        own = walks[start : start + size]
        made = self._generator.make(own, self.work.seed(SEEDS), self.work.keys() - self._asked_of(own))
        self.work.count(**made.survived)
        clear, removed = self.guard.index.clear_tasks(made.tasks)
        kept, failures = self.attempts.hard_enough(clear, [*short, *made.failures, *removed])
        self.work.count(kept=len(kept))
        return kept, failures

    def _asked_of(self, walks: Sequence[Walk]) -> set[str]:
        """Keys of tasks already made from these walks (by `flywheel synth webshaper`), which do not count as duplicates."""
        wanted = {tuple(passage.id for passage in walk.passages) for walk in walks}
        read = {passage.id for walk in walks for passage in walk.passages}
        made = self.work.context.lake.query(
            "SELECT key, (provenance->'walk')::VARCHAR[] AS walk, provenance->>'shape' = 'comparison' AS compared "
            "FROM tasks WHERE json_exists(provenance, '$.walk')"
        )
        rows = made.to_pylist()
        return {row["key"] for row in rows if (read.issuperset(row["walk"]) if row["compared"] else tuple(row["walk"]) in wanted)}


@dataclass(frozen=True)
class DerivedQuestions:
    """Training questions reworded or expanded by a teacher; each original is used once."""

    work: Work
    material: Material
    guard: Guard
    attempts: DirectAttempts

    def rewordings(self) -> Iterator[Batch]:
        config = self.work.settings.rewording
        if config is None:
            return
        written, asked = self._written(), self._asked_about("reworded_from", REWORDING)
        for number, tasks in self.work.in_batches(written, ASKED_BATCH):
            if left := [task for task in tasks if task.key not in asked]:
                yield Batch("rewordings", number, partial(self._reword, left, config))

    def expansions(self) -> Iterator[Batch]:
        """Expand the first `expander.count` questions by key."""
        config, teacher = self.work.settings.expander, self.work.settings.model_teacher
        if config is None or teacher is None:
            return
        chosen = sorted(self._written(), key=lambda task: task.key)[: config.count]
        asked = self._asked_about("expanded_from", EXPANDER)
        for number, start in enumerate(range(0, len(chosen), teacher.places)):
            if left := [task for task in chosen[start : start + teacher.places] if task.key not in asked]:
                yield Batch("expansions", number, partial(self._expand, left, config, teacher.places))

    def _written(self) -> list[Task]:
        """Training questions that were not derived from others."""
        tasks = self.work.context.lake.tasks(split="train")
        return [task for task in tasks if task.formula and not {"reworded_from", "expanded_from"} & set(task.provenance)]

    def _asked_about(self, link: str, stage: str) -> set[str]:
        """Keys of questions with derived ones (`link` in their provenance) or failures at `stage`.

        An unfinished batch has neither, so the result is the same after a restart.
        """
        sql = """
            SELECT provenance->>$link AS key FROM tasks WHERE json_exists(provenance, '$.' || $link)
            UNION SELECT item->>$link FROM failures WHERE json_exists(item, '$.' || $link)
            UNION SELECT item->>'task' FROM failures WHERE stage = $stage
        """
        return set(self.work.context.lake.query(sql, {"link": link, "stage": stage}).column("key").to_pylist())

    def _expand(self, tasks: Sequence[Task], config: ExpanderConfig, places: int) -> Made:
        teacher, material = self.work.asked(f"synth.{EXPANDER}"), self.material
        seed, turn = self.work.seed(EXPANDER), self.work.turn
        made = expand(tasks, teacher, self.work.readers, material.train_index, config, seed, places, turn, material.known_facts)
        kept, failures = self._cleared(made.tasks, made.failures, "expanded_from")
        found = sum(trajectory.outcome is Outcome.SUCCESS for trajectory in made.trajectories)
        self.work.count(questions=len(tasks), expanded=len(made.tasks), runs=len(made.trajectories), descriptions=found)
        return [*kept, *made.trajectories], failures

    def _reword(self, tasks: Sequence[Task], config: RewordingConfig) -> Made:
        source, teacher = self.material.train, self.work.asked(f"synth.{REWORDING}")
        made, failures = reword(tasks, teacher, config, self.work.seed(REWORDING), source.graph, source.retrieve)
        return self._cleared(made, failures, "reworded_from")

    def _cleared(self, made: Sequence[Task], failures: Sequence[Failure], link: str) -> Made:
        """Return the derived questions that may be trained on; failures of the others name the original as `link`."""
        clear, removed = self.guard.index.clear_tasks(made)
        kept, dropped = self.attempts.hard_enough(clear, removed)
        origins = {task.key: task.provenance[link] for task in made}
        named = [replace(drop, item={**drop.item, link: origins[drop.item["task"]]}) for drop in dropped]
        return kept, [*failures, *named]
