"""RL of one iteration in an open home: tasks, rewards and records. `rl/loop.py` defines the steps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flows.context import RunContext, StageRun
from flows.inputs import choose_tasks
from flows.placement import learner_threads
from flows.plan import WHEEL_ROLLOUTS, policy_id
from flows.stages.async_evaluation import AsyncEvaluation
from flows.stages.training import finish
from flows.variants import horizons
from rl.curriculum import Curriculum
from rl.engines.base import WeightProbe
from rl.hardware import torch_threads
from rl.learner.base import EngineWeights
from rl.learner.config import settled
from rl.learner.metrics import Alert
from rl.loop import train
from rl.policies.policy import parameters_of
from rl.rewards.config import RewardConfig
from rl.rewards.reward import RewardContext, find_functions, weights_of
from rl.rollouts.asynchronous import AsyncRolloutSource
from rl.rollouts.collect import STAGE, Collected, ReinforceRun, RejectedSample, ReplayBuffer, SyncRolloutSource
from warehouse import Batch, Failure, Lake, Record, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError

if TYPE_CHECKING:
    from rl.engines.weight_sync import PendingTransfer, Shapes, WeightSyncHandle
    from rl.rollouts.agent_loop import RolloutRequest

log = logging.getLogger("flywheel")


def reinforce(context: RunContext, run: StageRun, turn: int, parent: str, variant: str = "", at: int | None = None) -> dict[str, Any]:
    """Train by RL with the growing horizon, or the fixed horizon of `variant`; other variants differ in their parent.

    Tasks and pass rates are read at snapshot `at`, by default the one that the run began with.
    """
    start, began = context.folder(context.policy(parent)), run.run.snapshot_before if at is None else at
    config = settled(context.config.for_turn(turn).rl, context.config.rollout.engine.own_dtype, parameters_of(start))
    seed = seed_from(context.config.seed, "rl", turn)
    tasks, met = choose_tasks(context.lake, context.config, turn, began)
    context.lake.add(met)
    rounds = horizons(variant, config.horizon.rounds)
    curriculum = Curriculum(config.horizon.model_copy(update={"rounds": rounds}), tasks, seed, pass_rates(context, turn, began))
    policy, store = policy_id(turn, "rl", variant), LakeStore(run)
    verifiers = context.verifiers(config.rewards.verifier, tasks=tasks)
    rewards = reward_context(context.lake, config.rewards, tasks)
    if config.rewards.judges_turns:
        rewards = replace(rewards, turn_judge=context.judges.of_turns)
    folder = context.home.policies / policy
    run.total_steps = config.steps
    reinforced = ReinforceRun(
        id=run.id,
        policy=policy,
        iteration=turn,
        seed=context.config.seed,
        config=config,
        verifiers=verifiers,
        rewards=rewards,
        environments={task.key: task.environment for task in tasks},
        rollouts=context.rollouts(start),
        store=store,
    )
    source = source_of(reinforced, curriculum, tasks, seed)
    wanted = context.config.async_evaluation(turn)
    evaluation = None if wanted is None else AsyncEvaluation(context, run, policy, wanted)
    sampler = HomeSampler(context, reinforced, source, evaluation, tasks[0].question)
    engine = context.config.rollout.engine
    state = {"curriculum": curriculum, "source": source, "lake": store} | ({} if evaluation is None else {"beside": evaluation})
    with ExitStack() as stack:
        stack.enter_context(torch_threads(learner_threads(sampler.in_turns, engine, torch.get_num_threads())))
        for each in (evaluation, source):
            if each is not None:
                stack.enter_context(closing(each))
        result = train(
            start,
            folder,
            config,
            seed,
            sampler,
            HomeRecorder(context, reinforced, store),
            state,
            EngineWeights(engine.own_dtype, engine.adapter_rank is not None, sampler.in_turns),
            sampler.weight_sync,
            context.config.rollout.ray,
        )
        if evaluation is not None:
            end(evaluation, run, result.metrics["steps"])
    return finish(context, run, turn, "rl", parent, result, variant)


@dataclass(frozen=True, slots=True)
class HomeSampler:
    """A `rl.loop.Sampler` over the engines of an open home. A due evaluation begins before a step is collected."""

    context: RunContext
    run: ReinforceRun
    source: SyncRolloutSource | AsyncRolloutSource
    evaluation: AsyncEvaluation | None
    question: str

    @property
    def in_turns(self) -> bool:
        """Whether engines pause while the learner updates."""
        return self.run.config.mode == "synchronous"

    @property
    def weight_sync(self) -> WeightSyncHandle | None:
        """How the learner sends weights; None if engines load them from folders."""
        if self.context.config.rollout.engine.transfer == "files":
            return None
        engines = self.context.running.weight_sync

        def begin(shapes: Shapes, path: Path, version: int) -> PendingTransfer:
            self.settle()
            return engines.begin(shapes, path, version)

        return replace(engines, begin=begin)

    def collect(self, step: int) -> Collected:
        if self.evaluation is not None:
            self.evaluation.begin(step - 1)
        collected = self.source.collect(step)
        if self.in_turns:
            self.context.running.pause()
        return collected

    def load(self, folder: Path | None, version: int) -> None:
        if folder is not None:
            self.settle()
            self.context.running.load_weights(folder, version)
        if self.in_turns:
            self.context.running.resume()

    def probe(self) -> Sequence[WeightProbe]:
        return self.context.running.probe(self.question, self.run.config.temperature)

    def settle(self) -> None:
        """Commit a step's training data and trajectories sampled ahead before its weights reach an engine."""
        with self.run.settling:
            self.run.store.settle()
            self.source.before_update()


@dataclass(frozen=True, slots=True)
class HomeRecorder:
    """A `rl.loop.StepRecorder` that stores the metrics, alerts and rejected samples of an RL run."""

    context: RunContext
    run: ReinforceRun
    store: LakeStore

    def metrics(self, step: int, metrics: dict[str, float]) -> bool:
        return self.store.metrics(step, {**metrics, **self.context.running.take_concurrency_metrics()})

    def alert(self, alert: Alert) -> None:
        self.store.alert(alert)

    def drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        self.run.record_drops(step, drops)


def end(evaluation: AsyncEvaluation, run: StageRun, version: int) -> None:
    """Wait for the last evaluation, or record that the budget left it out."""
    if run.stopped is None:
        evaluation.finish(version)
    else:
        evaluation.leave_out(run.stopped)


def source_of(run: ReinforceRun, curriculum: Curriculum, tasks: Sequence[Task], seed: int) -> SyncRolloutSource | AsyncRolloutSource:
    """Create the rollout source according to `rl.mode`."""
    buffer = ReplayBuffer(run.config.replay, run.config.tasks_per_step, seed, run.store.read)
    if run.config.mode == "asynchronous":
        return AsyncRolloutSource(run, curriculum, buffer, {task.key: task for task in tasks})
    return SyncRolloutSource(run, curriculum, buffer, ahead=run.config.mode == "one_step_off")


@dataclass(slots=True)
class LakeStore:
    """The run's records in the home's lake; its checkpoints name their snapshot."""

    run: StageRun
    _waited: float = field(init=False)
    _last: int | None = field(default=None, init=False)
    """Last step with a stored trajectory at the first lookup; later steps are not looked up."""

    def __post_init__(self) -> None:
        self._waited = self.run.lake_seconds

    def find(self, requests: Sequence[RolloutRequest]) -> dict[str, Trajectory]:
        """Return the requested trajectories that an interrupted run stored, by id."""
        if not requests:
            return {}
        policy, steps = requests[0].policy, [request.step or 0 for request in requests]
        if self._last is None:
            sql = "SELECT coalesce(max(step), 0)::BIGINT AS last FROM trajectories WHERE stage = 'rl' AND policy = ?"
            self._last = self.run.lake.query(sql, [policy]).to_pylist()[0]["last"]
        if min(steps) > self._last:
            return {}
        wanted = {request.trajectory_id for request in requests}
        condition = "stage = 'rl' AND step BETWEEN ? AND ? AND policy = ?"  # columns with file statistics
        found = self.run.lake.trajectories(condition, [min(steps), max(steps), policy])
        return {trajectory.id: trajectory for trajectory in found if trajectory.id in wanted}

    def read(self, ids: Sequence[str]) -> list[Trajectory]:
        """Read the trajectories with `ids`, in that order. Raises KeyError if one is no longer in the lake."""
        self.run.settle()
        found = self.run.lake.trajectories("list_contains(?, id)", [list(ids)]) if ids else []
        by_id = {trajectory.id: trajectory for trajectory in found}
        return [by_id[each] for each in ids]

    def batch(self, step: int) -> Batch | None:
        """Return the stored batch of `step`, if any."""
        return next(iter(self.run.lake.read(Batch, "run_id = ? AND step = ?", [self.run.id, step])), None)

    def settle(self) -> None:
        """Wait until added records are committed."""
        self.run.settle()

    def add(self, records: Iterable[Record]) -> None:
        """Commit records in the background."""
        self.run.store(records)

    def keep(self, records: Iterable[Record]) -> None:
        """Commit records within seconds, together with others."""
        self.run.keep(records)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Store a step's metrics with `lake_seconds`, its waiting time for the lake. Return whether the run must stop."""
        before, self._waited = self._waited, self.run.lake_seconds
        return self.run.metric(step, {**metrics, "lake_seconds": self._waited - before})

    def alert(self, alert: Alert) -> None:
        """Log and store that a metric exceeded its limit."""
        log.warning("%s  %s: %s", self.run.id, alert.limit.then, alert)
        limit = alert.limit.model_dump(mode="json", exclude_none=True)
        item = {"run": self.run.id, "step": alert.step, "since": alert.since, "value": repr(alert.value), "limit": limit}
        self.run.lake.add([Failure(STAGE, f"sign_{alert.limit.then}", str(alert), item)])

    def state_dict(self) -> dict[str, Any]:
        """Return the snapshot that holds everything recorded so far."""
        self.run.flush()
        return {"snapshot": self.run.lake.snapshot()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise RequestError if the lake is older than the checkpoint and so lacks what the run stored."""
        lake = self.run.lake
        now = lake.snapshot()
        if now < state["snapshot"]:
            raise RequestError(
                f"The checkpoint was written at snapshot {state['snapshot']} of the lake, but the lake in {lake.place.home} is at {now}: "
                f"restore the lake of the checkpoint, or remove the run's checkpoints to start over."
            )


def pass_rates(context: RunContext, turn: int, at: int | None) -> dict[str, float]:
    """Success rate of the previous iteration on each training task that it attempted, at snapshot `at`."""
    rows = context.lake.query(
        f"""
        SELECT task_key, avg((outcome = 'success')::INT) AS rate FROM outcomes
        WHERE {WHEEL_ROLLOUTS} AND wheel_turn = ? AND outcome <> 'invalid' GROUP BY task_key
        """,
        [turn - 1],
        at=at,
    ).to_pylist()
    return {row["task_key"]: row["rate"] for row in rows}


def reward_context(lake: Lake, config: RewardConfig, tasks: Sequence[Task]) -> RewardContext:
    """Return the inputs of the reward functions. Raise RequestError for an unknown function or a task without needed documents."""
    find_functions(config)
    return RewardContext(config, evidence_of(lake, tasks) if "evidence" in weights_of(config) else {})


def evidence_of(lake: Lake, tasks: Sequence[Task]) -> dict[str, frozenset[str]]:
    """Titles of the documents that state the facts along each task's path. Raise RequestError if a task has none."""
    titles = {document.id: document.title for document in lake.documents()}
    stating: dict[frozenset[str], list[str]] = {}
    for fact in lake.facts():
        stating.setdefault(frozenset((fact.subject, fact.object)), []).extend(fact.documents)
    return {task.key: _evidence(task, stating, titles) for task in tasks}


def _evidence(task: Task, stating: dict[frozenset[str], list[str]], titles: dict[str, str]) -> frozenset[str]:
    path = [str(entity) for entity in task.provenance.get("path", ())]
    documents = [document for pair in pairwise(path) for document in stating.get(frozenset(pair), ())]
    found = frozenset(titles[document] for document in documents if document in titles)
    if not found:
        raise RequestError(f"rl.rewards.parts.evidence needs the documents that prove a task, and task {task.key} has none: exclude it.")
    return found
