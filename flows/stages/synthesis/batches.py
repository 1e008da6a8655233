"""Batched synthesis, and what each kind needs: seeds, settings, a metered teacher, and separation of training data from suites.

A batch's records and the metrics that mark it as done form one commit, so a killed stage resumes after the last batch. A batch depends only
on the configuration and earlier batches, so interruptions do not change the result. A batch that lacks teacher replies is not committed,
but the received replies are stored and reused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flows.context import RunContext, StageRun
from flows.lakes import by_suite
from flows.plan import WHEEL_ROLLOUTS
from flows.stages.synthesis.sources import Material
from synth.config import SynthConfig
from synth.parts import offer
from synth.questions.decontamination import EvaluationIndex
from synth.teachers.readers import Readers
from synth.teachers.teacher import PASSING, STAGE, Fault, MeteredTeacher, Teacher, add_counts
from warehouse import TRAINED_SPLITS, Example, Failure, Metric, Record, Task
from warehouse.digests import seed_from
from warehouse.errors import RequestError, WorkFailed

log = logging.getLogger("flywheel")

Made = tuple[Sequence[Record], Sequence[Failure]]
"""Result of a batch: records to keep, and failures."""

MADE, DROPPED = "made.", "dropped."
"""Prefixes of the metrics that mark a batch as done: records made, and failures."""
COUNTED = "count."
"""Prefix of other counts of a batch: `count.NAME.PART`."""
ASKED_BATCH = 64
"""Slices, questions or trajectories per commit in batches that ask a model."""
EARLIER = f"{WHEEL_ROLLOUTS} AND wheel_turn < ?"
"""Condition on trajectories: the home's own of earlier iterations."""
IMPORTED = "stage = 'import'"
"""Condition on trajectories: imported."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch `number` (from 0) of one part of the work, and how to make it."""

    part: str
    number: int
    make: Callable[[], Made]


class Work:
    """Common needs of all parts: the run's context and settings, seeds, the lake's keys, and a metered teacher and judge."""

    def __init__(self, context: RunContext, turn: int, teacher: Teacher | None = None, judge: Teacher | None = None) -> None:
        self.context, self.turn = context, turn
        self.settings: SynthConfig = context.config.for_turn(turn).synth
        self.teacher = None if teacher is None else MeteredTeacher(teacher)
        self.judge = self.teacher if judge is None else MeteredTeacher(judge)
        self._counts: dict[str, float] = {}

    def seed(self, part: str) -> int:
        return seed_from(self.context.config.seed, self.turn, part)

    def asked(self, setting: str) -> Teacher:
        """Return the teacher for a setting. Raise RequestError if there is none."""
        if self.teacher is None:
            raise RequestError(f"{setting} needs a teacher: set synth.teacher.kind to openai or engine.")
        return self.teacher

    @cached_property
    def readers(self) -> Readers:
        """The judge's readers, calibrated once. Raises RequestError without a judge or teacher."""
        return Readers(self.judge or self.asked("synth.judge"), self.context.lake.add)

    def count(self, **counts: float) -> None:
        add_counts(self._counts, counts)

    def counted(self) -> dict[str, float]:
        """Return the teacher's counts and those of `count` since the last call."""
        counts, self._counts = self._counts, {}
        for asked in dict.fromkeys(filter(None, (self.teacher, self.judge))):
            add_counts(counts, asked.drain())
        return counts

    def keys(self) -> set[str]:
        return set(self.context.lake.query("SELECT key FROM tasks").column("key").to_pylist())

    def in_batches(self, items: Sequence[Any], largest: int | None = None) -> Iterator[tuple[int, Sequence[Any]]]:
        """Number batches of at most `largest` items, and never more than `synth.batch`."""
        largest = min(self.settings.batch, largest or self.settings.batch)
        return enumerate(items[start : start + largest] for start in range(0, len(items), largest))


@dataclass(frozen=True)
class Guard:
    """Keeps training data apart from the suites in the lake."""

    work: Work
    material: Material

    @cached_property
    def index(self) -> EvaluationIndex:
        return EvaluationIndex.of(self.suites(), self.work.settings.decontamination)

    def suites(self) -> dict[str, list[Task]]:
        """Return the tasks of all suites in the lake: configured, imported, and evaluated from files."""
        context = self.work.context
        return by_suite(context.lake.read(Task, f"split NOT IN {TRAINED_SPLITS}"), context.config)[0]

    def clear(self, examples: Sequence[Example], failures: Sequence[Failure]) -> Made:
        """Return the examples that match no suite, with the available tools, and all failures."""
        kept, removed = self.index.clear_examples(examples)
        return self.offered(kept), [*failures, *removed]

    def offered(self, examples: Sequence[Example]) -> list[Example]:
        """Add the tools that rollouts of the examples' questions are offered."""
        return [offer(example, self.material.tools) for example in examples]


def begin(context: RunContext, turn: int, teacher: Teacher | None = None, judge: Teacher | None = None) -> tuple[Work, Material, Guard]:
    """Create the shared objects of an iteration's synthesis."""
    work, material = Work(context, turn, teacher, judge), Material(context, turn)
    return work, material, Guard(work, material)


def work_off(
    run: StageRun, batches: Iterable[Batch], needed: bool = False, counted: Callable[[], Mapping[str, float]] = dict[str, float]
) -> None:
    """Make and commit missing batches in order until the budget is spent; with `needed`, make all of them.

    `counted` returns the counts since its last call.

    Raises:
        RequestError: The teacher's limit is reached, and a batch lacks replies.
        WorkFailed: The teacher's server left at least half of a batch's requests without a reply.
    """
    done = {(metric.name, metric.step) for metric in run.lake.metrics(run.id)}
    for batch in batches:
        if (MADE + batch.part, batch.number) in done:
            continue
        if not needed and run.spent():
            return
        began = time.monotonic()
        records, dropped = batch.make()
        seconds, counts = time.monotonic() - began, counted()
        _check_replies(run, batch, counts)
        marks: dict[str, float] = {MADE + batch.part: len(records), DROPPED + batch.part: len(dropped)}
        marks |= {f"{COUNTED}{name}.{batch.part}": count for name, count in sorted(counts.items())}
        metrics = [Metric(run.id, run.run.stage, run.run.wheel_turn, batch.number, name, float(count)) for name, count in marks.items()]
        run.lake.add([*records, *dropped, *metrics])
        which = f"{batch.part}, batch {batch.number + 1}" if batch.number else batch.part
        log.info("%s  %s: %d made, %d dropped%s", run.id, which, len(records), len(dropped), _rate(len(records), seconds, counts))


def _rate(made: int, seconds: float, counts: Mapping[str, float]) -> str:
    """What a batch that asked a teacher made per hour, and tokens per record."""
    if not made or not counts.get("asked"):
        return ""
    return f"; {3600 * made / max(seconds, 1):,.0f} per hour, {counts.get('tokens', 0) / made:,.0f} tokens each"


def dropped_by(run: StageRun) -> int:
    """Number of failures in all batches of a run, including earlier attempts."""
    return int(sum(metric.value for metric in run.lake.metrics(run.id) if metric.name.startswith(DROPPED)))


def sizes(count: int, largest: int) -> list[int]:
    """Split `count` into batches of `largest` and a remainder."""
    return [min(largest, count - start) for start in range(0, count, largest)]


def _check_replies(run: StageRun, batch: Batch, counts: Mapping[str, float]) -> None:
    """Raise if the teacher's limit is reached or at least half of the batch's requests got no reply. Fewer failures do not stop a stage."""
    missed = {fault.value: int(counts[fault]) for fault in Fault if fault in PASSING and counts.get(fault)}
    if Fault.BUDGET not in missed and 2 * sum(missed.values()) < max(1, counts.get("asked", 0)):
        return
    listed = ", ".join(f"{kind} {count}" for kind, count in missed.items())
    why = f"{run.id} stops at {batch.part} {batch.number}, where the teacher left requests without a reply ({listed})"
    run.lake.add([Failure(STAGE, "unanswered", why, {"run": run.id, "part": batch.part, "number": batch.number, **missed})])
    resumes = "run the same command to resume; answered requests are not repeated"
    if Fault.BUDGET in missed:
        raise RequestError(f"{why}: raise synth.teacher.max_requests or synth.teacher.max_tokens; {resumes}.")
    raise WorkFailed(f"{why}: check its server, or raise synth.teacher.timeout_seconds or attempts; {resumes}.")
