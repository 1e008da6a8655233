"""Work in batches that are committed as they are made: what a killed stage goes on from.

The records of a batch and the mark that says it is done are one commit, so a batch is in the lake whole or not at all. A batch is a
function of the configuration and of the batches before it; the finished set is therefore the same wherever a run was cut. Where a teacher
was away a batch is not kept, and what the teacher did reply is stored for when it is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flows.stage_run import StageRun
from synth.teachers.teacher import PASSING, STAGE, Fault
from warehouse import Failure, Metric, Record
from warehouse.errors import RequestError, WorkFailed

log = logging.getLogger("flywheel")

Made = tuple[Sequence[Record], Sequence[Failure]]
"""What a batch gives: the records to keep, and what was dropped on the way."""

MADE, DROPPED = "made.", "dropped."
"""Prefixes of the two metrics that mark a batch as done: how many records it made, and how many it dropped."""
ASKED_BATCH = 64
"""Slices, questions or trajectories that a model is asked about in one commit: what a killed stage may have to begin again, though what it
was told is in the lake."""
COUNTED = "count."
"""Prefix of what else was counted while a batch was made: `count.FIGURE.PART`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch `number` (from 0) of one part of the work, and how it is made."""

    part: str
    number: int
    make: Callable[[], Made]


def work_off(
    run: StageRun, batches: Iterable[Batch], needed: bool = False, counted: Callable[[], Mapping[str, float]] = dict[str, float]
) -> None:
    """Make and commit the batches that are not in the lake yet, in their order, as many as the budget allows, or all that are `needed`.

    `counted` gives what was counted since it was called last, by its name.

    Raises:
        RequestError: the teacher's limit is reached, and a batch lacks replies.
        WorkFailed: the teacher's server left half of what a batch asked without a reply, or more.
    """
    done = {(metric.name, metric.step) for metric in run.lake.metrics(run.id)}
    for batch in batches:
        if (MADE + batch.part, batch.number) in done:
            continue
        if not needed and run.spent():
            return
        records, dropped = batch.make()
        figures = counted()
        _check_replies(run, batch, figures)
        counts = ((MADE, len(records)), (DROPPED, len(dropped)))
        marks = [_mark(run, prefix + batch.part, batch.number, count) for prefix, count in counts]
        marks += [_mark(run, f"{COUNTED}{name}.{batch.part}", batch.number, count) for name, count in sorted(figures.items())]
        run.lake.add([*records, *dropped, *marks])
        which = f"{batch.part}, batch {batch.number + 1}" if batch.number else batch.part
        log.info("%s  %s: %d made, %d dropped", run.id, which, len(records), len(dropped))


def dropped_by(run: StageRun) -> int:
    """How much the batches of a run have dropped, those of its earlier attempts among them."""
    return int(sum(metric.value for metric in run.lake.metrics(run.id) if metric.name.startswith(DROPPED)))


def sizes(count: int, largest: int) -> list[int]:
    """`count` in batches of `largest` and a rest."""
    return [min(largest, count - start) for start in range(0, count, largest)]


def _check_replies(run: StageRun, batch: Batch, figures: Mapping[str, float]) -> None:
    """That the teacher was there: its limit was not reached, and it replied to more than half of what the batch asked.

    A few requests that come to nothing leave rows of their own; they must not keep all others from being done.
    """
    missed = {fault.value: int(figures[fault]) for fault in Fault if fault in PASSING and figures.get(fault)}
    if Fault.BUDGET not in missed and 2 * sum(missed.values()) < max(1, figures.get("asked", 0)):
        return
    told = ", ".join(f"{kind} {count}" for kind, count in missed.items())
    why = f"{run.id} stops at {batch.part} {batch.number}, where the teacher left requests without a reply ({told})"
    run.lake.add([Failure(STAGE, "unanswered", why, {"run": run.id, "part": batch.part, "number": batch.number, **missed})])
    goes_on = "the same command goes on, and asks nothing again that was replied to"
    if Fault.BUDGET in missed:
        raise RequestError(f"{why}: raise synth.teacher.max_requests or synth.teacher.max_tokens; {goes_on}.")
    raise WorkFailed(f"{why}: see to its server, or raise synth.teacher.timeout_seconds or attempts; {goes_on}.")


def _mark(run: StageRun, name: str, number: int, count: float) -> Metric:
    return Metric(run.id, run.run.stage, run.run.wheel_turn, number, name, float(count))
