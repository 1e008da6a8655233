"""Rollouts that are stored: of a policy on a held-out suite (evaluation), or of a policy or the teacher on chosen tasks (sampling).

Everything that rolls out, grades and commits goes through `store_stream`: evaluation, `flywheel rollout`, suites, and the asynchronous
evaluation alongside training. Ids follow from the policy or the run, the task and the sample, so interrupted work does only what is
missing. Sampled trajectories have the stage `rollout`, which neither training nor evaluation reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eval.graders.choice import Verifiers
from flows.config import playing_teacher
from flows.context import RunContext, StageRun
from flows.inputs import tasks_with
from flows.plan import suite_label
from flows.results import forget, paired, read_verdicts
from rl.engines.base import PoolFigures
from rl.retrieval.indexes import build_indexes
from rl.rewards.reward import reward_trajectories
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import Rollouts, TrajectoryStream
from warehouse import Lake, Policy, Record, Task, Trajectory
from warehouse.digests import seed_from

if TYPE_CHECKING:
    from rl.supervised.config import TaughtRunsConfig
    from synth.teachers.teacher import Teacher

STAGE = "rollout"
"""The stage of sampled trajectories."""
TAUGHT_AT_ONCE = 256
"""A teacher's runs per commit."""
COMMIT_SECONDS = 3.0
"""Maximum delay between a trajectory's end and its commit; many share one."""


def request(
    context: RunContext,
    policy: Policy,
    task: Task,
    trajectory_id: str,
    stage: str,
    horizon: int,
    temperature: float = 0.0,
    suite: str | None = None,
    sample: int = 0,
    seed: int | None = None,
) -> RolloutRequest:
    """The request for a trajectory of `policy`; the seed is derived from the home's and the trajectory's id unless given."""
    return RolloutRequest(
        trajectory_id=trajectory_id,
        task=task,
        policy=policy.id,
        horizon=horizon,
        seed=seed_from(context.config.seed, trajectory_id) if seed is None else seed,
        temperature=temperature,
        stage=stage,
        wheel_turn=policy.wheel_turn,
        suite=suite,
        sample=sample,
    )


def roll_out(
    context: RunContext, rollouts: Rollouts, requests: Sequence[RolloutRequest], run: StageRun, listed: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Run the requests, then grade and store their trajectories as they end; returns the engines' figures of this call alone.

    `listed` are a suite's own verifiers, in addition to those of the home.
    """
    verifiers = context.verifiers(listed=listed, tasks=(request.task for request in requests))
    before, count = rollouts.figures(), len(requests)
    run.total_steps = count

    def committed(done: int) -> None:
        now = rollouts.figures()
        run.record(done, {**now.metrics(before), **_speed(now, before), **rollouts.take_concurrency_metrics()})

    stream = rollouts.submit(requests)
    store_stream(context.lake, stream, requests, verifiers, lambda done: run.advance(done, count), committed, rollouts.drain_retries)
    return _speed(rollouts.figures(), before)


def store_stream(
    lake: Lake,
    stream: TrajectoryStream,
    requests: Sequence[RolloutRequest],
    verifiers: Verifiers,
    ended: Callable[[int], None],
    committed: Callable[[int], None] = lambda done: None,
    others: Callable[[], Iterable[Record]] = tuple,
) -> None:
    """Grade the trajectories of `stream` and commit them at most `COMMIT_SECONDS` after they end; cancels the stream when it leaves.

    `ended` and `committed` are called with the number of trajectories that have ended; `others` gives records for the same commits.
    """
    waiting, last = list[Trajectory](), time.monotonic()
    done = 0
    try:
        for done, trajectory in enumerate(stream, 1):
            waiting.append(trajectory)
            ended(done)
            if done == len(requests) or time.monotonic() - last > COMMIT_SECONDS:
                now, waiting, last = waiting, [], time.monotonic()
                store_graded(lake, now, requests, verifiers, others())
                committed(done)
    finally:
        stream.cancel()
        if waiting:  # an interrupted stage does not repeat these
            store_graded(lake, waiting, requests, verifiers, others())


def store_graded(
    lake: Lake, ended: Sequence[Trajectory], requests: Sequence[RolloutRequest], verifiers: Verifiers, others: Iterable[Record] = ()
) -> None:
    """Grade trajectories of these requests, and commit them with their scores."""
    tasks = {request.trajectory_id: request.task for request in requests}
    rewarded = reward_trajectories([tasks[one.id] for one in ended], ended, verifiers)
    lake.add([*rewarded.trajectories, *rewarded.scores, *others])


def evaluate(context: RunContext, policy: Policy, suite: str, run: StageRun, occasion: str = "") -> dict[str, Any]:
    """Roll out `policy` on every task of `suite` that it has no trajectory for, and return its metrics.

    An `occasion` repeats the tasks under its own label and compares them with the first evaluation.
    """
    label = suite_label(suite, occasion)
    ids = {f"{policy.id}-{label}-{task.key}": task for task in context.lake.tasks(split=suite)}
    stored = context.lake.existing(Trajectory, list(ids))
    missing = {trajectory_id: task for trajectory_id, task in ids.items() if trajectory_id not in stored}
    if missing:
        horizon = context.config.evaluation.horizon
        requests = [request(context, policy, task, each, "eval", horizon, suite=label) for each, task in missing.items()]
        roll_out(context, context.rollouts(context.folder(policy)), requests, run)
    return evaluation_metrics(context, policy, label) | (_against_first(context, policy, suite, label) if occasion else {})


def _against_first(context: RunContext, policy: Policy, suite: str, label: str) -> dict[str, Any]:
    verdicts = read_verdicts(context.lake)
    test = paired(verdicts.get((policy.id, suite), {}), verdicts.get((policy.id, label), {}))
    return {f"{suite}.since_first": {"difference": test.difference, "p_value": test.p_value}} if test else {}


def evaluation_metrics(context: RunContext, policy: Policy, suite: str) -> dict[str, Any]:
    """Success of `policy` on `suite` with its interval, overall and by hops, from the view."""
    rows = context.lake.query(
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


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What to sample: a SQL condition on `tasks`, trajectories per task, and sampling settings."""

    condition: str
    samples: int
    temperature: float
    horizon: int


def wanted_of_policy(context: RunContext, policy: Policy, wanted: SamplingPlan, run_id: str) -> list[RolloutRequest]:
    """The requests of a policy's sampling. Raises RequestError if no task meets the condition, or it is not SQL."""
    return [
        request(context, policy, task, f"{run_id}-{task.key}-{number}", STAGE, wanted.horizon, wanted.temperature, sample=number)
        for task in tasks_with(context.lake, wanted.condition)
        for number in range(wanted.samples)
    ]


def wanted_of_teacher(context: RunContext, wanted: SamplingPlan) -> list[RolloutRequest]:
    """The requests of the teacher's sampling. Raises RequestError as `wanted_of_policy`, and if no teacher can play."""
    from synth.teachers.play import requests_for

    changes = {"attempts": wanted.samples, "temperature": wanted.temperature, "horizon": wanted.horizon}
    tasks, own = tasks_with(context.lake, wanted.condition), context.config.sft.teacher.model_copy(update=changes)
    return requests_for(tasks, playing_teacher(context.config).name, own, context.config.seed, 1)


def sample(context: RunContext, policy: Policy, requests: Sequence[RolloutRequest], run: StageRun) -> dict[str, Any]:
    """Sample the requests that are not stored yet; returns the metrics of all of them."""
    missing = not_stored(context.lake, requests)
    speed = roll_out(context, context.rollouts(context.folder(policy)), missing, run) if missing else {}
    return {**_sampling_metrics(context, [request.trajectory_id for request in requests]), **speed}


def sample_teacher(context: RunContext, requests: Sequence[RolloutRequest], run: StageRun) -> dict[str, Any]:
    """Have the home's teacher play the requests without a run, or with an unanswered one; returns the metrics of all of them."""
    from synth.teachers.model_teacher import open_teacher

    settings, own = playing_teacher(context.config), context.config.sft.teacher
    forget(context.lake, STAGE, _unanswered(context.lake, requests))
    missing, done = not_stored(context.lake, requests), 0
    verifiers = context.verifiers(tasks=(request.task for request in missing))
    with open_teacher(settings, context.lake) as teacher:
        for part, played in play_in_parts(context, teacher, missing, own, settings.places):
            store_graded(context.lake, played, part, verifiers)
            done += len(part)
            run.advance(done, len(missing))
    return _sampling_metrics(context, [request.trajectory_id for request in requests])


def play_in_parts(
    context: RunContext, teacher: Teacher, requests: Sequence[RolloutRequest], own: TaughtRunsConfig, places: int
) -> Iterator[tuple[Sequence[RolloutRequest], list[Trajectory]]]:
    """Have a teacher play the requests, `places` at a time; yields parts of them with their trajectories, not yet graded."""
    from synth.teachers.play import play

    if not requests:
        return
    indexes = build_indexes(context.lake.documents(), context.config.rollout.search)
    for start in range(0, len(requests), TAUGHT_AT_ONCE):
        part = requests[start : start + TAUGHT_AT_ONCE]
        yield part, play(part, teacher, context.config.rollout.environments, indexes, own, places)


def not_stored(lake: Lake, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
    """The requests that are not in the lake."""
    stored = lake.existing(Trajectory, [request.trajectory_id for request in requests])
    return [request for request in requests if request.trajectory_id not in stored]


def not_played(lake: Lake, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
    """The requests to a teacher that are not in the lake, or that the teacher left unanswered."""
    played = lake.existing(Trajectory, [request.trajectory_id for request in requests]) - _unanswered(lake, requests).keys()
    return [request for request in requests if request.trajectory_id not in played]


def _unanswered(lake: Lake, requests: Sequence[RolloutRequest]) -> dict[str, str]:
    from synth.teachers.play import may_pass

    sql = "SELECT id, error FROM trajectories WHERE list_contains(?, id) AND outcome = 'invalid' AND error IS NOT NULL ORDER BY id"
    rows = lake.query(sql, [[request.trajectory_id for request in requests]]).to_pylist()
    return {row["id"]: row["error"] for row in rows if may_pass(row["error"])}


def _sampling_metrics(context: RunContext, ids: Sequence[str]) -> dict[str, Any]:
    (row,) = context.lake.query(
        """
        SELECT count(*) AS trajectories, count(*) FILTER (outcome = 'success') AS success, count(*) FILTER (outcome = 'failure') AS failure,
               count(*) FILTER (outcome = 'invalid') AS invalid, avg(n_turns) AS turns
        FROM trajectories WHERE list_contains(?, id)
        """,
        [list(ids)],
    ).to_pylist()
    return row
