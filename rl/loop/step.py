"""One step of reinforcement learning, from top to bottom.

    draw         tasks and horizon, by the curriculum                         rl/training/curriculum.py
    roll out     a group of trajectories for each task                        rl/rollouts
    reward       a verifier grades them, reward functions are summed up       rl/rewards/reward.py
    filter       what takes no part in learning                               rl/training/filters.py
    advantages   how much better each action was than its group, or critic    rl/advantages
    update       TRL's loss and optimiser over the step's micro-batches       rl/training/grpo_trainer.py
    publish      the engines get the new weights, and show that they have     rl/loop/publishing.py, rl/engines

`SyncRolloutSource.collect` is the half up to the filters, in the process that holds the engines; `ReinforceTrainer.next_batch` is the half
from there on, in the learner, which may be several workers. A step that was interrupted takes what the store has, and samples the rest.
Where rollouts run one step ahead of the learner, all of a step's tokens are of the weights before the last update: new ones are published
when the step's rollouts have ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from eval.graders.choice import Verifiers
from rl.advantages import ESTIMATORS
from rl.loop.protocols import RolloutStore, TrainingHooks
from rl.loop.publishing import WeightPublisher
from rl.loop.replay import Group, ReplayBuffer
from rl.policies.vision import Vision
from rl.rewards.reward import RewardContext, reward_trajectories
from rl.rollouts.base import RolloutRequest
from rl.training.base import gather_adapters, gather_policy
from rl.training.batches import Row, check_images, group_key, mean_difference, row_of, rows_of, with_observations, without_placeholders
from rl.training.config import MetricLimit, ReinforceConfig
from rl.training.correction import correct
from rl.training.critic import NAME, estimate
from rl.training.curriculum import Curriculum
from rl.training.figures import describe, staleness_figures
from rl.training.filters import Collected, Drop, Filter, collect_groups, groups_to_ask
from rl.training.grpo_trainer import MicroBatch, RowTrainer
from rl.training.monitor import Alert, TrainingHalted
from rl.training.speed import StepTimes, StepTokens, Stopwatch
from warehouse import Batch, Failure, Task, Trajectory
from warehouse.digests import seed_from

if TYPE_CHECKING:
    from rl.engines.weight_sender import WeightSender
    from rl.rollouts.rollout import Rollouts, TrajectoryStream

STAGE = "rl"
RECENT = 8
"""Steps that say how many groups a step must sample to have enough with variance."""


@dataclass(frozen=True, slots=True)
class ReinforceRun:
    """What all steps of one run share: what is asked for, how it is rewarded, who samples it, and where it is kept.

    `environments` holds the environment of every task that may be drawn. Ids of trajectories follow from run, step, task and sample, so
    that whoever asks again gets what the store has.
    """

    id: str
    policy: str
    iteration: int
    seed: int
    config: ReinforceConfig
    verifiers: Verifiers
    rewards: RewardContext
    environments: Mapping[str, str]
    rollouts: Rollouts
    store: RolloutStore
    waited: Stopwatch = field(default_factory=Stopwatch)
    """How long the learner has waited for trajectories that were being sampled."""
    settling: Stopwatch = field(default_factory=Stopwatch)
    """How long publishing has waited for rollouts to end and to be stored, before weights are loaded."""

    def waited_before(self) -> tuple[float, float]:
        """The seconds of `settling` and of `waited` that publishing the weights of this step took."""
        return self.settling.take(), self.waited.take()

    def requests(self, task: Task, step: int, horizon: int) -> list[RolloutRequest]:
        """The group of trajectories that `step` asks of one task."""
        return [
            RolloutRequest(
                trajectory_id=f"{self.id}-{step:05d}-{task.key}-{sample}",
                task=task,
                policy=self.policy,
                horizon=horizon,
                seed=seed_from(self.seed, self.id, step, task.key, sample),
                temperature=self.config.temperature,
                older_share=self.config.older_share,
                stage=STAGE,
                wheel_turn=self.iteration,
                step=step,
                sample=sample,
            )
            for sample in range(self.config.samples_per_task)
        ]

    def reward(self, requests: Sequence[RolloutRequest], trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with outcomes and rewards. They, their scores and their parts are stored in one commit, as whole groups.

        The learner does not wait for the commit; the engines do, before they load what it makes of the trajectories.
        """
        rewarded = reward_trajectories([request.task for request in requests], trajectories, self.verifiers, self.rewards)
        self.store.add([*rewarded.trajectories, *rewarded.scores, *rewarded.parts, *self.rollouts.drain_retries()])
        return rewarded.trajectories

    def record_drops(self, step: int, drops: Sequence[Drop]) -> None:
        """Store what is not trained on, and why."""
        self.store.keep(
            Failure(
                STAGE,
                f"filter_{drop.filter.value}",
                drop.reason,
                {"run": self.id, "step": step, "task": drop.task_key, "trajectory": drop.trajectory_id},
            )
            for drop in drops
        )

    def record_batch(self, step: int, trajectories: Sequence[Trajectory], reused: Sequence[Trajectory]) -> None:
        """Store what a step learns from."""
        again = tuple(trajectory.id for trajectory in reused)
        self.store.add([Batch(self.id, step, (*(trajectory.id for trajectory in trajectories), *again), again)])

    def environments_of(self, trajectories: Iterable[Trajectory]) -> dict[str, str]:
        """The environment of each task that the trajectories are of."""
        return {trajectory.task_key: self.environments[trajectory.task_key] for trajectory in trajectories}


@dataclass(slots=True)
class PendingRollouts:
    """Requested trajectories that are under way, but for those that the store had."""

    run: ReinforceRun
    requests: Sequence[RolloutRequest]
    _stored: dict[str, Trajectory] = field(init=False)
    _missing: list[RolloutRequest] = field(init=False)
    _stream: TrajectoryStream | None = field(init=False)

    def __post_init__(self) -> None:
        self._stored = self.run.store.find(self.requests)
        self._missing = [request for request in self.requests if request.trajectory_id not in self._stored]
        self._stream = self.run.rollouts.submit(self._missing) if self._missing else None

    def settle(self) -> None:
        """Wait for all of them, reward and store them."""
        if self._stream is None:
            return
        try:
            with self.run.waited:
                sampled = {trajectory.id: trajectory for trajectory in self._stream}
        finally:
            self.cancel()
        rewarded = self.run.reward(self._missing, [sampled[request.trajectory_id] for request in self._missing])
        self._stored |= {trajectory.id: trajectory for trajectory in rewarded}

    def trajectories(self) -> list[Trajectory]:
        """All of them with their rewards, in the order in which they were requested."""
        self.settle()
        return [self._stored[request.trajectory_id] for request in self.requests]

    def cancel(self) -> None:
        """Stop what is under way."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None


@dataclass(slots=True)
class SyncRolloutSource:
    """Samples the steps of one run, one after the other; `ahead` begins a step while the learner updates on the one before."""

    run: ReinforceRun
    curriculum: Curriculum
    buffer: ReplayBuffer
    ahead: bool
    _drawn: list[Task] = field(default_factory=list)
    _reused: list[Group] = field(default_factory=list)
    _pending: PendingRollouts | None = None
    """The first sampling of the step after this one, where it has been begun."""
    _recent: list[tuple[int, int]] = field(default_factory=list)
    """Of each of the last steps, the groups that were sampled and those that had variance."""

    def collect(self, step: int) -> Collected:
        """What `step` learns from: sampled, rewarded and filtered, and sampled again while the filters ask for more groups."""
        before = self.run.waited_before()
        if self._pending is None:
            self._begin_step(step)
        collected = collect_groups(lambda count: self._sample(step, count), self._wanted, self.run.config.filters)
        self.run.record_drops(step, collected.drops)
        self.curriculum.observe(step, collected.trajectories)
        self._recent = [*self._recent, (len(self._drawn), collected.useful)][-RECENT:]
        collected = self._with_reused(step, collected)
        if self.ahead and step < self.run.config.steps:
            self._begin_step(step + 1)
        return replace(collected, waited=(*before, self.run.waited.take()))

    def before_update(self) -> None:
        """Let what runs ahead end under the weights that it was begun with."""
        if self._pending is not None:
            self._pending.settle()

    def close(self) -> None:
        """Stop what runs ahead."""
        if self._pending is not None:
            self._pending.cancel()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must find; what runs ahead is stored by then."""
        self.before_update()
        self.run.waited.take()  # a checkpoint belongs to no step
        return {"replay": self.buffer.state_dict(), "recent": self._recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.buffer.load_state_dict(state["replay"])
        self._recent = [(groups, useful) for groups, useful in state["recent"]]

    @property
    def _wanted(self) -> int:
        return self.run.config.tasks_per_step - len(self._reused)

    def _begin_step(self, step: int) -> None:
        self._drawn, self._reused = [], self.buffer.past(step)
        self._pending = self._begin_rollouts(step, groups_to_ask(self._wanted, self._recent, self.run.config.filters.oversampling))

    def _sample(self, step: int, count: int) -> list[Trajectory]:
        """The rewarded groups of `count` tasks that the step has not drawn yet."""
        pending, self._pending = self._pending or self._begin_rollouts(step, count), None
        return pending.trajectories()

    def _begin_rollouts(self, step: int, count: int) -> PendingRollouts:
        """Draw tasks and begin their groups."""
        without = {task.key for task in self._drawn} | {group.task_key for group in self._reused}
        tasks, horizon = self.curriculum.draw(step, count, without), self.curriculum.horizon(step)
        self._drawn += tasks
        return PendingRollouts(self.run, [request for task in tasks for request in self.run.requests(task, step, horizon)])

    def _with_reused(self, step: int, collected: Collected) -> Collected:
        """The step with the groups that it learns from once more; those it learns from now may be reused later."""
        reused = tuple(trajectory for group in self._reused for trajectory in group.trajectories)
        figures = self.curriculum.metrics()
        if self.run.config.replay.reuse:
            self.run.record_batch(step, collected.kept, reused)
            self.buffer.expire(step - 1)
            self.buffer.keep(groups_of(collected.kept))
            figures |= self.buffer.metrics()
        environments = self.run.environments_of((*collected.trajectories, *reused))
        return replace(collected, reused=reused, environments=environments, measured=figures)


def sampled_tokens(trajectories: Iterable[Trajectory]) -> int:
    """What engines sampled of them, the invalid ones too."""
    return sum(len(turn.action_ids) for trajectory in trajectories for turn in trajectory.turns)


def groups_of(trajectories: Sequence[Trajectory]) -> list[Group]:
    """The groups of trajectories that lie one group behind the other, each with the version of the weights that it was begun under."""
    return [Group((step or 1) - 1, tuple(members)) for (_, step), members in groupby(trajectories, key=group_key)]


class ReinforceTrainer(RowTrainer):
    """The learner: publishes the last step's weights, collects the next step's trajectories, and updates on their advantages.

    Where there are several workers, each runs this. The main one collects, and all have the whole of each step, so that advantages and
    means are those of one process; of the micro-batches each makes its own, and accelerate takes the mean of their gradients.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: ReinforceConfig,
        output: Path,
        seed: int,
        hooks: TrainingHooks,
        sender: WeightSender | None = None,
        vision: Vision | None = None,
    ) -> None:
        """Prepare training `model` by `config`, with checkpoints and published weights below `output`.

        A `sender` brings weights to the engines without a file. `vision` is how the policy takes images, where it takes any.
        """
        super().__init__(model, tokenizer, config, output, seed, hooks.state, vision)
        self._hooks = hooks
        self.publisher = WeightPublisher(output, tokenizer, hooks.engine_dtype, hooks.publish, sender)
        self._weight_difference: float | None = None

    def next_batch(self, step: int) -> list[MicroBatch]:
        """Publish, collect, and turn rewards into advantages: the micro-batches of `step`, which TRL's trainer then updates on."""
        self._began = time.monotonic()
        times = [self._began]
        self.publish_weights(step - 1, record=step - 1 == self.checkpointed)
        times.append(time.monotonic())
        collected = self._hooks.collect(step) if self.accelerator.is_main_process else None
        times.append(time.monotonic())
        collected, times = broadcast_object_list([(collected, times)])[0]  # all workers go by what the main one has
        rows = rows_of(collected.kept, ESTIMATORS.get(self._config.estimator), collected.environments)
        rows = self._readable(rows)
        self._times = StepTimes(times[1] - times[0], times[2] - times[1], 0.0, *collected.waited)
        figures = {"publish_seconds": self._times.publish, "collect_seconds": self._times.collect}
        figures |= describe(collected.trajectories) | staleness_figures(rows, step - 1) | self.prompt_information(collected.trajectories)
        figures |= {} if self._weight_difference is None else {"weight_difference": self._weight_difference}
        if self._critic or self._config.correction.needed:
            rows, collected, corrected = self.correct(step, rows, collected)
            figures |= corrected
        for name, value in {**figures, **collected.figures()}.items():
            self._metrics["train"][name].append(value)
        self._tokens = StepTokens(sampled_tokens(collected.trajectories))
        return self.micro_batches(rows)

    def publish_weights(self, version: int, record: bool = False) -> None:
        """Bring the weights to the engines, and have these show them; with `record` they are written where nobody waits for that too."""
        if self._config.lora is not None and self._hooks.serves_adapters:
            config, adapters = gather_adapters(self)
            self._give_back_cache()
            if self.accelerator.is_main_process:
                self.publisher.publish_adapters(config, adapters, version)
        else:
            self._publish_policy(version, record)
        self._check_weights(version)
        self._give_back_cache()

    def _publish_policy(self, version: int, record: bool) -> None:
        policy, weights = gather_policy(self, self._config.lora, without=(NAME,))
        self._give_back_cache()
        if self.accelerator.is_main_process:
            self.publisher.publish(policy, weights, version, record)

    def _give_back_cache(self) -> None:
        """Leave engines on this card what activations, and copies of weights in the engines' dtype, have left behind."""
        if self._hooks.in_turns and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _check_weights(self, version: int) -> None:
        """Score what the engines sampled with these weights.

        Raises:
            TrainingHalted: an engine has other weights; whatever it would sample from now on would be another policy's.
        """
        probes = self._hooks.probe() if self.accelerator.is_main_process else ()
        probes = [probe for probe in broadcast_object_list([probes])[0] if probe.token_ids]
        scored = self.score([row_of(probe) for probe in probes])[0]
        if not probes:
            return
        if self.accelerator.is_main_process:  # in asynchronous modes no other token of a step is of these weights
            self._differences += [torch.tensor(ours) - torch.tensor(probe.logprobs) for probe, ours in zip(probes, scored, strict=True)]
        differences = list(map(mean_difference, probes, scored))
        self._weight_difference = next((each for each in differences if math.isnan(each)), max(differences))
        bound = self._config.health.weight_difference
        if bound is not None and not self._weight_difference <= bound:
            limit = MetricLimit(sign="weight_difference", above=bound, then="stop")
            alert = Alert(limit, self._weight_difference, version, version)
            if self.accelerator.is_main_process:
                self._hooks.record_alert(alert)
            raise TrainingHalted(alert)

    def correct(self, step: int, rows: Sequence[Row], collected: Collected) -> tuple[list[Row], Collected, dict[str, float]]:
        """The rows with advantages against the critic, and corrected for what older policies sampled; what that rejects, as drops."""
        logprobs, values = self.score(rows)
        if self._critic:
            rows = estimate(rows, values, logprobs, self._config.estimator, self._config.critic)
        if not self._config.correction.needed:
            return list(rows), collected, {}
        corrected = correct(rows, logprobs, self._config.correction)
        reason = f"importance ratios outside {self._config.correction.reject_below:g} to {self._config.correction.reject_above:g}"
        drops = [Drop(row.trajectory_id, row.task_key, Filter.OFF_POLICY, reason) for row in corrected.rejected]
        self._hooks.record_drops(step, drops)
        collected = replace(collected, drops=(*collected.drops, *drops))
        return list(corrected.rows), collected, {"rejected_tokens": corrected.rejected_tokens}

    def _readable(self, rows: Sequence[Row]) -> list[Row]:
        """The rows as this policy can learn from them: placeholders of images masked; observations too, unless they are to be learnt.

        Raises:
            RequestError: as `check_images` does.
        """
        check_images(rows, self._vision is not None, self._config.mask_observations)
        if self._vision is not None:
            rows = [without_placeholders(row, self._vision.placeholder_id, self._tokenizer.pad_token_id) for row in rows]
        if not self._config.mask_observations:
            rows = [with_observations(row, logprobs) for row, logprobs in zip(rows, self.score(rows)[0], strict=True)]
        return list(rows)
