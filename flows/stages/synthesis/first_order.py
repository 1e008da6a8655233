"""First-order action synthesis of a turn: plans, then reasoning by hops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from flows.stages.synthesis.batches import Batch, Made, sizes
from flows.stages.synthesis.bench import Bench
from synth.fas.jury import Jury
from synth.fas.plans import build_plans
from synth.fas.reasoning import FasConfig, build_fas
from synth.questions.wording import Phrasing
from warehouse.digests import seed_from


def first_order(bench: Bench) -> Iterator[Batch]:
    """Plans, then reasoning of each number of hops."""
    config, largest = bench.settings.fas, bench.settings.batch
    for number, slices in enumerate(sizes(config.plan_slices, largest)):
        part = config.model_copy(update={"plan_slices": slices})
        yield Batch("plans", number, partial(_plans, bench, part, number))
    for hops, count in sorted(config.counts().items()):
        for number, size in enumerate(sizes(count, largest)):
            part = config.model_copy(update={"plan_slices": 0, "reasoning": {hops: size}, "lookup_share": 0.0})
            yield Batch(f"reasoning of {hops} hops", number, partial(_reasoning, bench, part, number))


def _plans(bench: Bench, config: FasConfig, number: int) -> Made:
    source, phrasing = bench.train, Phrasing.of(bench.train.graph)
    jury = Jury(bench.teacher) if config.judge and bench.teacher is not None else None
    wishes, seed = config.plan_wishes(), _seed(bench, number)
    plans = build_plans(source.graph, wishes, seed, source.retrieve, phrasing, bench.turn, source.allowed, jury)
    kept, failures = bench.clear(*plans)
    return (kept, failures) if jury is None else ([*kept, *jury.checks], [*failures, *jury.failures])


def _reasoning(bench: Bench, config: FasConfig, number: int) -> Made:
    source, seed = bench.train, _seed(bench, number)
    made = build_fas(source.graph, config, seed, source.retrieve, wheel_turn=bench.turn, allowed=source.allowed, teacher=bench.teacher)
    return bench.clear(*made)


def _seed(bench: Bench, number: int) -> int:
    return seed_from(bench.seed("fas"), number) if number else bench.seed("fas")
