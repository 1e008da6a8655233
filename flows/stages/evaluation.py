"""Evaluation: greedy rollouts of one policy on the tasks of a held-out suite, judged by the configured verifier, stored for the views.

A trajectory's id follows from policy, suite and task, and it is stored soon after it ends, so an evaluation that was interrupted does only
what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eval.outcome import verifier_of
from flows.plan import suite_label
from flows.runs import StageRun
from flows.verdicts import paired, read_verdicts
from flows.workshop import Workshop
from rl.engines.figures import PoolFigures
from rl.rollouts.rollout import RolloutRequest, Rollouts
from warehouse import Policy, Score, Task, Trajectory
from warehouse.digests import seed_from

COMMIT_SECONDS = 3.0
"""How long an ended trajectory may wait before it is in the lake: one commit for many."""


def score(tasks: Sequence[Task], trajectories: Sequence[Trajectory], verifier: str) -> tuple[list[Trajectory], list[Score]]:
    """Judge each trajectory by its task's verifier or else `verifier`: the outcome and reward that it says, and the score beside it."""
    attempts = zip(tasks, trajectories, strict=True)
    scores = [verifier_of(task, verifier).verify(task, trajectory) for task, trajectory in attempts]
    judged = [replace(t, outcome=s.verdict, reward=s.value) for t, s in zip(trajectories, scores, strict=True)]
    return judged, scores


def roll_out(shop: Workshop, rollouts: Rollouts, requests: Sequence[RolloutRequest], run: StageRun) -> dict[str, float]:
    """Run the requests, judge and store what comes of them as it ends; the engines' figures of this time alone."""
    run.total_steps = len(requests)
    tasks = {request.trajectory_id: request.task for request in requests}
    before, waiting, committed = rollouts.figures(), list[Trajectory](), time.monotonic()
    stream = rollouts.submit(requests)
    try:
        for done, trajectory in enumerate(stream, 1):
            waiting.append(trajectory)
            run.advance(done, len(requests))
            if done == len(requests) or time.monotonic() - committed > COMMIT_SECONDS:
                judged, scores = score([tasks[one.id] for one in waiting], waiting, shop.config.evaluation.verifier)
                shop.lake.add([*judged, *scores, *rollouts.take_losses()])
                run.metric(done, {**rollouts.figures().metrics(before), **_speed(rollouts.figures(), before)})
                waiting, committed = [], time.monotonic()
    finally:
        stream.cancel()
    return _speed(rollouts.figures(), before)


def evaluate(shop: Workshop, policy: Policy, suite: str, run: StageRun, occasion: str = "") -> dict[str, Any]:
    """Roll out `policy` on every task of `suite` that it has no trajectory for yet, and return its figures.

    On an `occasion` the tasks are done once more, under a label of their own, and compared with the first time.
    """
    label = suite_label(suite, occasion)
    ids = {f"{policy.id}-{label}-{task.key}": task for task in shop.lake.tasks(split=suite)}
    stored = shop.lake.existing(Trajectory, list(ids))
    missing = {trajectory_id: task for trajectory_id, task in ids.items() if trajectory_id not in stored}
    if missing:
        requests = [_request(shop, policy, label, run, trajectory_id, task) for trajectory_id, task in missing.items()]
        roll_out(shop, shop.rollouts(shop.folder(policy)), requests, run)
    return figures(shop, policy, label) | (_against_first(shop, policy, suite, label) if occasion else {})


def _against_first(shop: Workshop, policy: Policy, suite: str, label: str) -> dict[str, Any]:
    """The paired comparison with the suite's first evaluation; nothing where there was none."""
    verdicts = read_verdicts(shop.lake)
    test = paired(verdicts.get((policy.id, suite), {}), verdicts.get((policy.id, label), {}))
    return {f"{suite}.since_first": {"difference": test.difference, "p_value": test.p_value}} if test else {}


def figures(shop: Workshop, policy: Policy, suite: str) -> dict[str, Any]:
    """Success of `policy` on `suite` with its interval, overall and by hops, from the view."""
    rows = shop.lake.query(
        "SELECT hops, tasks, invalid, success, low, high FROM evaluations WHERE policy = ? AND suite = ? ORDER BY hops NULLS FIRST",
        [policy.id, suite],
    ).to_pylist()
    return {f"{suite}.{'all' if row['hops'] is None else row['hops']}": {k: v for k, v in row.items() if k != "hops"} for row in rows}


def _speed(figures: PoolFigures, before: PoolFigures) -> dict[str, float]:
    return {
        "tokens_per_second": figures.tokens_per_second(before),
        "retaken": float(figures.retaken - before.retaken),
        "replacements": float(figures.replacements - before.replacements),
    }


def _request(shop: Workshop, policy: Policy, label: str, run: StageRun, trajectory_id: str, task: Task) -> RolloutRequest:
    return RolloutRequest(
        trajectory_id=trajectory_id,
        task=task,
        policy=policy.id,
        horizon=shop.config.evaluation.horizon,
        seed=seed_from(shop.config.seed, trajectory_id),
        temperature=0.0,
        stage="eval",
        wheel_turn=run.run.wheel_turn,
        step=None,
        suite=label,
        sample=0,
    )
