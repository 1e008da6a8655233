"""Stored rollouts: of a policy on a suite (evaluation), or of a policy or the teacher on selected tasks (sampling).

Evaluation, `flywheel rollout`, suites and asynchronous evaluation all roll out, grade and commit through `store_stream`. Trajectory ids
derive from the policy or run, the task and the sample, so interrupted work only does what is missing. Sampled trajectories have the stage
`rollout`, which neither training nor evaluation reads.
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
TAUGHT_AT_ONCE = 256
"""A teacher's trajectories per commit."""
COMMIT_SECONDS = 3.0
"""Maximum delay in seconds between a trajectory's end and its commit; many share one."""


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
    """Create the request for a trajectory of `policy`. Without `seed`, it derives from the home's seed and the trajectory's id."""
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
    """Run the requests, grading and storing trajectories as they end. Return the engines' figures for this call alone.

    `listed` holds a suite's own verifiers, in addition to the home's.
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
    """Grade the trajectories of `stream` and commit them at most `COMMIT_SECONDS` after they end. Cancels the stream on exit.

    `ended` and `committed` are called with the number of ended trajectories; `others` returns records for the same commits.
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
        if waiting:  # so that a resumed stage does not repeat these
            store_graded(lake, waiting, requests, verifiers, others())


def store_graded(
    lake: Lake, ended: Sequence[Trajectory], requests: Sequence[RolloutRequest], verifiers: Verifiers, others: Iterable[Record] = ()
) -> None:
    """Grade trajectories of these requests and commit them with their scores."""
    tasks = {request.trajectory_id: request.task for request in requests}
    rewarded = reward_trajectories([tasks[one.id] for one in ended], ended, verifiers)
    lake.add([*rewarded.trajectories, *rewarded.scores, *others])


def evaluate(context: RunContext, policy: Policy, suite: str, run: StageRun, occasion: str = "") -> dict[str, Any]:
    """Roll out `policy` on every task of `suite` for which it has no trajectory, and return its metrics.

    An `occasion` repeats the tasks under its own label and compares with the first evaluation.
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
    """Success of `policy` on `suite` with its interval, overall and by hops, from the view `evaluations`."""
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
    """Return the requests to sample a policy. Raise RequestError if no task matches the condition or it is not SQL."""
    return [
        request(context, policy, task, f"{run_id}-{task.key}-{number}", STAGE, wanted.horizon, wanted.temperature, sample=number)
        for task in tasks_with(context.lake, wanted.condition)
        for number in range(wanted.samples)
    ]


def wanted_of_teacher(context: RunContext, wanted: SamplingPlan) -> list[RolloutRequest]:
    """Return the requests to sample the teacher. Raise RequestError as `wanted_of_policy`, or if no teacher can act."""
    from synth.teachers.play import requests_for

    changes = {"attempts": wanted.samples, "temperature": wanted.temperature, "horizon": wanted.horizon}
    tasks, own = tasks_with(context.lake, wanted.condition), context.config.sft.teacher.model_copy(update=changes)
    return requests_for(tasks, playing_teacher(context.config).name, own, context.config.seed, 1)


def sample(context: RunContext, policy: Policy, requests: Sequence[RolloutRequest], run: StageRun) -> dict[str, Any]:
    """Sample the requests that are not stored yet. Return the metrics of all of them."""
    missing = not_stored(context.lake, requests)
    speed = roll_out(context, context.rollouts(context.folder(policy)), missing, run) if missing else {}
    return {**_sampling_metrics(context, [request.trajectory_id for request in requests]), **speed}


def sample_teacher(context: RunContext, requests: Sequence[RolloutRequest], run: StageRun) -> dict[str, Any]:
    """Have the teacher act on requests without a trajectory or with one that lacks a reply. Return the metrics of all requests."""
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
    """Have a teacher act on the requests, `places` at a time. Yields parts of them with their ungraded trajectories."""
    from synth.teachers.play import play

    if not requests:
        return
    indexes = build_indexes(context.lake.documents(), context.config.rollout.search)
    for start in range(0, len(requests), TAUGHT_AT_ONCE):
        part = requests[start : start + TAUGHT_AT_ONCE]
        yield part, play(part, teacher, context.config.rollout.environments, indexes, own, places)


def not_stored(lake: Lake, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
    """Return the requests without a stored trajectory."""
    stored = lake.existing(Trajectory, [request.trajectory_id for request in requests])
    return [request for request in requests if request.trajectory_id not in stored]


def not_played(lake: Lake, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
    """Return the requests to a teacher without a stored trajectory, or with one that lacks a reply."""
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
