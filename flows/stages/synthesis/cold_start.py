"""The cold start of a turn: the oracle's demonstrations, and the policy's own successes of earlier turns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from flows.stages.synthesis.batches import Batch, Made
from flows.stages.synthesis.bench import EARLIER, Bench
from flows.stages.synthesis.question_batches import question_batches
from synth.trajectories.demonstrations import build_demonstrations
from synth.trajectories.rejection import choose_successes, without_images
from warehouse import Task


def demonstrations(bench: Bench) -> Iterator[Batch]:
    """The oracle's trajectories, as good or as mixed as the configuration says."""
    config = bench.settings.demonstration_questions.model_copy(update={"split": "demonstration"})
    seed, refuse = bench.seed("demonstrations"), bench.evaluation.objection
    shown = partial(_shown, bench)
    for batch in question_batches("demonstrations", bench.train, config, seed, bench.settings.batch, shown, refuse):
        yield Batch(batch.part, batch.number, partial(_demonstrate, bench, batch))


def rejection_sampled(bench: Bench) -> Iterator[Batch]:
    """The policy's own successes in earlier turns, as sampled."""
    yield Batch("rejection sampling", 0, partial(_choose, bench))


def _shown(bench: Bench) -> set[str]:
    """The keys of the tasks that this turn's demonstrations show."""
    sql = "SELECT DISTINCT sources[1] AS key FROM examples WHERE kind = 'trajectory' AND wheel_turn = ?"
    return set(bench.shop.lake.query(sql, [bench.turn]).column("key").to_pylist())


def _demonstrate(bench: Bench, questions: Batch) -> Made:
    tasks, dropped = questions.make()
    config, seed = bench.settings.demonstrations, bench.seed("demonstrations")
    shown = [task for task in tasks if isinstance(task, Task)]
    examples, failures = build_demonstrations(bench.train.graph, shown, config, seed, bench.train.retrieve, wheel_turn=bench.turn)
    return examples, [*dropped, *failures]


def _choose(bench: Bench) -> Made:
    earlier = bench.shop.lake.trajectories(f"{EARLIER} AND outcome = 'success'", [bench.turn])
    hops = {task.key: task.hops for task in bench.shop.lake.tasks(split="train")}
    usable, left_out = without_images(earlier)
    return choose_successes(usable, hops, bench.settings.rejection_samples, bench.seed("rejection"), bench.turn), left_out
