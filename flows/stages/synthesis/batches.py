"""Work in batches that are committed as they are made: what a killed stage goes on from.

The records of a batch and the mark that says it is done are one commit, so a batch is in the lake whole or not at all. A batch is a
function of the configuration and of the batches before it; the finished set is therefore the same wherever a run was cut.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flows.stage_run import StageRun
from warehouse import Failure, Metric, Record

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
    """
    done = {(metric.name, metric.step) for metric in run.lake.metrics(run.id)}
    for batch in batches:
        if (MADE + batch.part, batch.number) in done:
            continue
        if not needed and run.spent():
            return
        records, dropped = batch.make()
        counts = ((MADE, len(records)), (DROPPED, len(dropped)))
        marks = [_mark(run, prefix + batch.part, batch.number, count) for prefix, count in counts]
        marks += [_mark(run, f"{COUNTED}{name}.{batch.part}", batch.number, count) for name, count in sorted(counted().items())]
        run.lake.add([*records, *dropped, *marks])
        log.info("%s  %s %d: %d made, %d dropped", run.id, batch.part, batch.number, len(records), len(dropped))


def dropped_by(run: StageRun) -> int:
    """How much the batches of a run have dropped, those of its earlier attempts among them."""
    return int(sum(metric.value for metric in run.lake.metrics(run.id) if metric.name.startswith(DROPPED)))


def sizes(count: int, largest: int) -> list[int]:
    """`count` in batches of `largest` and a rest."""
    return [min(largest, count - start) for start in range(0, count, largest)]


def _mark(run: StageRun, name: str, number: int, count: float) -> Metric:
    return Metric(run.id, run.run.stage, run.run.wheel_turn, number, name, float(count))
