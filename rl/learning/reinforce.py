"""Reinforcement learning from beginning to end: load the policy, let the learner make its steps, watch the signs of health, save.

Each step publishes the weights to the engines, asks `collect` for the step's trajectories and makes one optimiser step on them (or several,
`epochs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerControl

from rl.config import RayConfig
from rl.engines.transfer import BeginTransfer, HandOver, StepTransfer
from rl.learning.checkpointing import Stateful
from rl.learning.config import ReinforceConfig
from rl.learning.learner import Collect, OnDrops, Publish, ReinforceTrainer
from rl.learning.signs import Breach, SignMonitor, Unhealthy
from rl.learning.training import FiguresCallback, OnMetric, TrainResult, last_figures, run_trainer
from rl.policies.policy import load_policy
from rl.policies.vision import load_vision

if TYPE_CHECKING:
    from rl.engines.sending import WeightSender

OnBreach = Callable[[Breach], None]
"""Told of every sign of health that comes to be broken, also of those that only warn."""


def train_reinforce(
    policy_path: Path,
    output: Path,
    config: ReinforceConfig,
    collect: Collect,
    publish: Publish,
    on_metric: OnMetric,
    seed: int,
    parts: Mapping[str, Stateful] | None = None,
    on_breach: OnBreach = lambda breach: None,
    on_drops: OnDrops = lambda step, drops: None,
    ray: RayConfig | None = None,
    hand_over: HandOver | None = None,
) -> TrainResult:
    """Train the policy in `policy_path` by `config.steps` steps, or until `on_metric` ends it, and write the result into `output`.

    The same call goes on where an earlier one was stopped: it publishes the weights of the last checkpoint, gives `parts` the states that
    stand there, and collects the step after it. `publish` is called before each `collect`, with the number of steps done as the version,
    and once at the end.

    Figures of each step: those of `describe` and of `Collected`; loss, grad_norm, entropy, clip_ratio/*; seconds of collecting, publishing
    and learning; staleness, importance_ratio and effective_samples; prompt_information; value_loss where there is a critic;
    rejected_tokens where there is a correction; and `logprob_difference`: the largest difference between the engine's log-probability of
    an action token and that of the same weights in the learner.

    With several workers (`config.learner`), these learn, and all functions given here are called in this process, by the main one of them.
    `ray` is how Ray is reached where nobody started it yet. `hand_over` has engines take each version from the learner before it is
    written and published; without it they have what `publish` gives them.

    Raises:
        Unhealthy: where a sign of health paused or stopped the training.
    """
    told: dict[str, Callable[..., Any]] = {
        "collect": collect,
        "publish": publish,
        "on_metric": on_metric,
        "on_breach": on_breach,
        "on_drops": on_drops,
    }
    if hand_over is not None:
        told |= {"begin_transfer": hand_over.begin, "step_transfer": hand_over.step}
    parts = parts or {}
    if config.learner.workers == 1:
        return _train(policy_path, output, config, seed, parts, **told)
    from rl.learning.workers import Starter, StarterState, functions_of, learn_on_workers  # Ray: not where one process is enough

    start, folder, names = policy_path.resolve(), output.resolve(), (tuple(told), tuple(parts))

    def work(starter: Starter) -> TrainResult:
        theirs = {name: starter.function(name) for name in names[0]}
        return _train(start, folder, config, seed, {name: StarterState(starter, name) for name in names[1]}, **theirs)

    return learn_on_workers(config.learner, ray, output, work, told | functions_of(parts))


def _train(
    policy_path: Path,
    output: Path,
    config: ReinforceConfig,
    seed: int,
    parts: Mapping[str, Stateful],
    collect: Collect,
    publish: Publish,
    on_metric: OnMetric,
    on_breach: OnBreach,
    on_drops: OnDrops,
    begin_transfer: BeginTransfer | None = None,
    step_transfer: StepTransfer | None = None,
) -> TrainResult:
    with _sender(begin_transfer, step_transfer) as sender:
        model, tokenizer = load_policy(policy_path)
        vision = load_vision(policy_path)
        trainer = ReinforceTrainer(model, tokenizer, config, output, seed, collect, publish, parts, on_drops, sender, vision)
        trainer.add_callback(SignsCallback(trainer.signs, on_breach, config.epochs))
        started = time.monotonic()
        run_trainer(trainer, on_metric, config.epochs)
        if trainer.signs.fatal is not None:
            raise Unhealthy(trainer.signs.fatal)
        steps = trainer.state.global_step // config.epochs
        trainer.publish_weights(steps)
    trainer.write(output)
    figures = {"steps": steps, "seconds": time.monotonic() - started, **last_figures(trainer)}
    return TrainResult(output, figures)


@contextmanager
def _sender(begin: BeginTransfer | None, step: StepTransfer | None) -> Iterator[WeightSender | None]:
    """What sends weights to the engines, where they are to be sent; it parts from them at the end."""
    if begin is None or step is None:
        yield None
        return
    from rl.engines.sending import WeightSender  # vLLM: not where engines load files alone

    with closing(WeightSender(HandOver(begin, step))) as sender:
        yield sender


class SignsCallback(FiguresCallback):
    """Holds each step's figures against the limits, and ends the training where one says so, behind a checkpoint where it is a pause."""

    def __init__(self, signs: SignMonitor, on_breach: OnBreach, steps_per_figure: int) -> None:
        super().__init__(steps_per_figure)
        self._signs = signs
        self._on_breach = on_breach

    def take(self, step: int, logs: Mapping[str, Any], control: TrainerControl) -> None:
        """Check all numbers: one that is not finite breaks every limit."""
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        for breach in self._signs.check(step, numbers):
            self._on_breach(breach)
        if self._signs.fatal is not None:
            control.should_training_stop = True
            control.should_save = self._signs.fatal.limit.then == "pause"
