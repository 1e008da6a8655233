"""Higher-order action synthesis of a turn: decision records from stored trajectories, the wheel's own and imported ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from flows.stages.synthesis.batches import Batch, Made
from flows.stages.synthesis.bench import EARLIER, Bench
from rl.engine import Sampling
from synth.has.model_proposers import PolicyProposer, TeacherProposer
from synth.has.proposers import OthersProposer, Proposer
from synth.has.records import HasConfig, build_has
from warehouse import Task, Trajectory

IMPORTED = "stage = 'import'"
"""Condition on trajectories: brought in from elsewhere."""


def own_decisions(bench: Bench) -> Iterator[Batch]:
    """Decision records from a sample of the trajectories of earlier turns, successes and failures."""
    yield from _decisions(bench, "decisions", EARLIER, [bench.turn], bench.settings.has, by_graph=True)


def foreign_decisions(bench: Bench) -> Iterator[Batch]:
    """Decision records from imported runs, which have no graph of their own: the alternatives are what others of them did."""
    config = bench.settings.has
    if "oracle" in config.mixture:
        config = config.model_copy(update={"mixture": {"others": 1.0}})
    yield from _decisions(bench, "decisions of imported runs", IMPORTED, [], config, by_graph=False)


def _decisions(bench: Bench, part: str, where: str, parameters: list[Any], config: HasConfig, by_graph: bool) -> Iterator[Batch]:
    found = bench.shop.lake.trajectories(where, parameters)
    chosen = random.Random(bench.seed("has")).sample(found, min(len(found), bench.settings.has_count))
    tasks = {task.key: task for task in bench.shop.lake.tasks()} if chosen else {}
    others: dict[str, Proposer] = {"others": OthersProposer(found, tasks)} if chosen and "others" in config.mixture else {}
    for number, runs in bench.in_batches(chosen):
        yield Batch(part, number, partial(_decide, bench, runs, tasks, config, by_graph, others))


def _decide(
    bench: Bench, runs: Sequence[Trajectory], tasks: dict[str, Task], config: HasConfig, by_graph: bool, others: dict[str, Proposer]
) -> Made:
    graph, retrieve = (bench.train.graph, bench.train.retrieve) if by_graph else (None, None)
    return build_has(graph, runs, tasks, config, bench.seed("has"), retrieve, bench.turn, others | _models(bench, config))


def _models(bench: Bench, config: HasConfig) -> dict[str, Proposer]:
    """The proposers of the mixture that are models; the policy's engines start here."""
    found: dict[str, Proposer] = {}
    if bench.teacher is not None:
        found["teacher"] = TeacherProposer(bench.teacher, seed=bench.seed("has"))
    if "policy" in config.mixture:
        rollouts = bench.shop.rollouts(bench.shop.folder(bench.champion()))
        sampling = Sampling(temperature=config.policy_temperature, max_tokens=rollouts.config.limits.max_action_tokens)
        found["policy"] = PolicyProposer(rollouts.pool, rollouts, rollouts.dialect, sampling, bench.seed("has policy"))
    return found
