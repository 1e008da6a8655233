"""All steps of a run: load the policy, let the trainer make its steps, watch the metrics, save.

Each step publishes the weights to the engines, collects its trajectories and makes one optimiser step on them (or several, `epochs`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerControl

from rl.engines.weight_sync import WeightSyncHandle
from rl.env_pool.config import RayConfig
from rl.loop.protocols import TrainingHooks
from rl.loop.step import ReinforceTrainer
from rl.policies.policy import load_policy
from rl.policies.vision import load_vision
from rl.training.base import FiguresCallback, TrainResult, last_figures, run_trainer
from rl.training.config import ReinforceConfig
from rl.training.monitor import MetricMonitor, TrainingHalted
from rl.training.trackers import tracked

if TYPE_CHECKING:
    from rl.engines.weight_sender import WeightSender


def train_reinforce(
    policy_path: Path, output: Path, config: ReinforceConfig, hooks: TrainingHooks, seed: int, ray: RayConfig | None = None
) -> TrainResult:
    """Train the policy in `policy_path` by `config.steps` steps, or until a hook ends it, and write the result into `output`.

    The same call goes on where an earlier one was stopped: it publishes the weights of the last checkpoint, gives `hooks.state` what
    stands there, and collects the step after it. `hooks.publish` is called before each `hooks.collect`, with the number of steps done as
    the version, and once at the end; or `hooks.weight_sync` sends the version in its place.

    Figures of each step: those of `describe` and of `Collected`; loss, grad_norm, entropy, clip_ratio/*; seconds of collecting, publishing
    and learning; staleness, importance_ratio and effective_samples; prompt_information; value_loss where there is a critic;
    rejected_tokens where there is a correction; `logprob_difference`: the largest difference between the engine's log-probability of an
    action token and that of the same weights in the learner; and `weight_difference`: the mean of it over what the engines sampled behind
    one prompt right after they were given these weights, of the engine where it is largest. Those of time, speed, memory and token error
    are `rl/training/speed.py`'s.

    With several workers (`config.learner`) these learn, and the hooks are called in this process, by the main one of them. `ray` is how Ray
    is reached where nobody started it yet.

    Raises:
        TrainingHalted: where a metric beyond its limit paused or stopped the training, or an engine has other weights than the learner.
    """
    if not config.learner.on_ray:
        return _train(policy_path, output, config, seed, hooks)
    from rl.training.workers import Starter, learn_on_workers, remote_state, state_functions  # Ray: not where one process is enough

    functions = {name: getattr(hooks, name) for name in ("collect", "publish", "probe", "record_metrics", "record_alert", "record_drops")}
    sync = {each.name: getattr(hooks.weight_sync, each.name) for each in fields(WeightSyncHandle)} if hooks.weight_sync else {}
    start, folder, names = policy_path.resolve(), output.resolve(), (tuple(functions), tuple(sync), tuple(hooks.state))
    settings: dict[str, Any] = {name: getattr(hooks, name) for name in ("engine_dtype", "serves_adapters", "in_turns")}

    def work(starter: Starter) -> TrainResult:
        own: dict[str, Any] = {name: starter.function(name) for name in names[0]}
        weight_sync = WeightSyncHandle(**{name: starter.function(f"weight_sync.{name}") for name in names[1]}) if names[1] else None
        state = {name: remote_state(starter, name) for name in names[2]}
        remote = TrainingHooks(**own, **settings, weight_sync=weight_sync, state=state)
        return _train(start, folder, config, seed, remote)

    functions |= {f"weight_sync.{name}": function for name, function in sync.items()} | state_functions(hooks.state)
    return learn_on_workers(config.learner, ray, output, work, functions)


def _train(policy_path: Path, output: Path, config: ReinforceConfig, seed: int, hooks: TrainingHooks) -> TrainResult:
    with tracked(config.trackers, output), _sender(hooks.weight_sync) as sender:
        model, tokenizer = load_policy(policy_path)
        trainer = ReinforceTrainer(model, tokenizer, config, output, seed, hooks, sender, load_vision(policy_path))
        trainer.add_callback(MonitorCallback(trainer.monitor, hooks, config.epochs))
        started = time.monotonic()
        with closing(trainer.publisher):
            run_trainer(trainer, config, hooks.record_metrics, config.epochs)
            if trainer.monitor.fatal is not None:
                raise TrainingHalted(trainer.monitor.fatal)
            steps = trainer.state.global_step // config.epochs
            trainer.publish_weights(steps)
    trainer.write(output)
    figures = {"steps": steps, "seconds": time.monotonic() - started, **last_figures(trainer)}
    return TrainResult(output, figures)


@contextmanager
def _sender(sync: WeightSyncHandle | None) -> Iterator[WeightSender | None]:
    """What sends weights to the engines, where they are to be sent; it parts from them at the end."""
    if sync is None:
        yield None
        return
    from rl.engines.weight_sender import WeightSender  # vLLM: not where engines load files alone

    with closing(WeightSender(sync)) as sender:
        yield sender


class MonitorCallback(FiguresCallback):
    """Holds each step's figures against the limits, and ends the training where one says so, behind a checkpoint where it is a pause."""

    def __init__(self, monitor: MetricMonitor, hooks: TrainingHooks, steps_per_figure: int) -> None:
        super().__init__(steps_per_figure)
        self._monitor = monitor
        self._hooks = hooks

    def take(self, step: int, logs: Mapping[str, Any], control: TrainerControl) -> None:
        """Check all numbers: one that is not finite breaks every limit."""
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        for alert in self._monitor.check(step, numbers):
            self._hooks.record_alert(alert)
        if self._monitor.fatal is not None:
            control.should_training_stop = True
            control.should_save = self._monitor.fatal.limit.then == "pause"
