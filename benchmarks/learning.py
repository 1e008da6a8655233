"""RL against TRL's own loop: time until a policy solves four tasks of five, or of a number of steps.

    python -m benchmarks.learning --home runs/demo [--late]
    python -m benchmarks.learning --home runs/films --seeds 0 --steps 10 [--late]      # a chat model, after flywheel train sft

The same start (the home's cold start), the same tasks in the same order, groups, batch, loss, clip and learning rate, the horizon fixed
at its last value for both. Ours samples with vLLM and runs all trajectories at once; TRL's `GRPOTrainer` has `environment_factory` on
the same search (benchmarks/trl_search.py) and samples by transformers where there is no GPU. Success is that of the trajectories
trained on, the mean of the last five steps. Time counts from the first step's begin to the step that reaches the goal, or, with `--steps`,
to the last of so many; the start-up before it (engines and environments for us, the trainer for TRL) has a column of its own. Who does not
come that far in `--seconds` is given as that, with what was reached.

Search answers at once, from memory. With `--late` it answers as tools do that are somewhere else (benchmarks/slow_search.py), for both: TRL
calls the tools of a batch one after the other, asynchronous ones too; ours wait side by side.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import evidence
from benchmarks.evidence_tables import learners
from benchmarks.slow_search import LATE, waiting, with_late
from benchmarks.trl_search import environment_of, trainer_of
from eval.graders.choice import verifiers_of
from flows.config import FlywheelConfig
from flows.home import Home
from flows.stages.synthesis.sources import read_sources
from rl.curriculum import CurriculumConfig, sample_tasks
from rl.engines.base import WeightProbe
from rl.learner.metrics import Alert
from rl.loop import train
from rl.retrieval.search import SearchIndex
from rl.rewards.reward import reward_trajectories
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.collect import Collected, RejectedSample
from rl.rollouts.rollout import Rollouts
from warehouse import Document, Lake, Task
from warehouse.digests import seed_from

GOAL, WINDOW = 0.8, 5


@dataclass(frozen=True, slots=True)
class Setting:
    """What both learners are given."""

    policy: Path
    documents: Sequence[Document]
    tasks: Sequence[Sequence[Task]]
    """Those of each step."""
    config: FlywheelConfig
    horizon: int
    seed: int
    seconds: float
    stop_after: int | None
    """So many steps are made, whatever they reach; None: until the goal is reached."""
    late: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a learner fared; `seconds` is None where the goal was not reached, and `ends` is when each step ended."""

    learner: str
    seed: int
    started: float
    seconds: float | None
    steps: int
    success: float
    ends: Sequence[float]


class Reached(Exception):
    """The goal, or the end of the time."""


class Watch:
    """Takes the success of each step, and says when it is enough."""

    def __init__(self, learner: str, setting: Setting, begun: float) -> None:
        self._learner, self._setting, self._begun = learner, setting, begun
        self._first = time.perf_counter()
        self._successes: list[float] = []
        self._ends: list[float] = []

    @property
    def success(self) -> float:
        return statistics.mean(self._successes[-WINDOW:])

    @property
    def done(self) -> bool:
        made, wanted = len(self._ends), self._setting.stop_after
        return made >= WINDOW and self.success >= GOAL if wanted is None else made == wanted

    def see(self, success: float) -> None:
        self._successes.append(success)
        self._ends.append(time.perf_counter() - self._first)
        told = f"step {len(self._ends)} at {self._ends[-1]:.0f} s, success {success:.3f}"
        print(f"{self._learner}, seed {self._setting.seed}: {told}", file=sys.stderr, flush=True)
        if self.done or self._ends[-1] > self._setting.seconds:
            raise Reached

    def outcome(self) -> Outcome:
        ends = tuple(round(end, 2) for end in self._ends)
        seconds = ends[-1] if self.done else None
        return Outcome(self._learner, self._setting.seed, self._first - self._begun, seconds, len(ends), self.success, ends)


def run_ours(setting: Setting) -> Outcome:
    """Our learner, engines and environments."""
    begun = time.perf_counter()
    with Rollouts.start(setting.config.rollout, setting.policy, setting.documents) as rollouts, tempfile.TemporaryDirectory() as folder:
        run = Watched(setting, rollouts, Watch("ours", setting, begun))
        with suppress(Reached):
            train(setting.policy, Path(folder), setting.config.rl, setting.seed, run, run)
        return run.watch.outcome()


@dataclass(frozen=True, slots=True)
class Watched:
    """The sampler and the recorder of our run."""

    setting: Setting
    rollouts: Rollouts
    watch: Watch

    def collect(self, step: int) -> Collected:
        requests = list(requests_of(self.setting, step))
        sampled = self.rollouts.rollout(requests)
        return Collected(tuple(reward_trajectories([request.task for request in requests], sampled, verifiers_of("qa_em"))[0]))

    def load(self, folder: Path | None, version: int) -> None:
        if folder is not None:
            self.rollouts.load_weights(folder, version)

    def probe(self) -> Sequence[WeightProbe]:
        return ()

    def metrics(self, step: int, figures: dict[str, float]) -> None:
        if "success" in figures:
            self.watch.see(figures["success"])

    def alert(self, alert: Alert) -> None:
        """Report nothing."""

    def drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        """Nothing is kept."""


def requests_of(setting: Setting, step: int) -> Iterator[RolloutRequest]:
    """The trajectories of a step."""
    for task in setting.tasks[step - 1]:
        for sample in range(setting.config.rl.samples_per_task):
            name = f"learning-{setting.seed}-{step}-{task.key}-{sample}"
            yield RolloutRequest(
                name, task, "policy", setting.horizon, seed_from(setting.seed, name), setting.config.rl.temperature, sample=sample
            )


def run_trl(setting: Setting) -> Outcome:
    """TRL's trainer."""
    from transformers import PrinterCallback, TrainerCallback

    begun = time.perf_counter()
    rl, limits = setting.config.rl, setting.config.rollout.limits
    watch: list[Watch] = []

    class See(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.append(Watch("TRL", setting, begun))

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            if logs and "rewards/answered_rightly/mean" in logs:
                watch[0].see(float(logs["rewards/answered_rightly/mean"]))

    trainer = trainer_of(
        setting.policy,
        [task for tasks in setting.tasks for task in tasks],
        environment_of(SearchIndex(setting.documents), 1, 4 * limits.max_observation_tokens, waiting() if setting.late else None),
        setting.horizon,
        setting.config.rollout,
        callbacks=[See()],
        seed=setting.seed,
        max_steps=len(setting.tasks),
        per_device_train_batch_size=rl.trajectories_per_pass,
        gradient_accumulation_steps=rl.passes,
        num_generations=rl.samples_per_task,
        shuffle_dataset=False,
        max_completion_length=limits.max_context_tokens,
        learning_rate=rl.learning_rate,
        lr_scheduler_type="constant",
        warmup_steps=0,
        adam_beta1=rl.beta1,
        adam_beta2=rl.beta2,
        weight_decay=rl.weight_decay,
        max_grad_norm=rl.max_grad_norm,
        loss_type=rl.loss_type,
        epsilon=rl.clip_low,
        epsilon_high=rl.clip_high,
        beta=rl.beta,
        temperature=rl.temperature,
    )
    trainer.remove_callback(PrinterCallback)
    with suppress(Reached):
        trainer.train()
    return watch[0].outcome()


LEARNERS = {"ours": run_ours, "TRL": run_trl}
"""The learners by the names that results have them under."""


def settings_of(home: Path, policy: str, seeds: Sequence[int], seconds: float, stop_after: int | None, late: bool) -> Iterator[Setting]:
    """The setting of each seed: other tasks, other samples."""
    config = Home(home).load()
    config = config.model_copy(update={"rollout": with_late(config.rollout)})
    with Lake(home, read_only=True) as lake:
        sql = "SELECT key, question, answers, hops FROM tasks WHERE split = 'train' AND hops <= 4 ORDER BY key"
        rows = lake.query(sql).to_pylist()
    tasks = [Task(row["key"], LATE if late else "search", row["question"], tuple(row["answers"]), hops=row["hops"]) for row in rows]
    documents = read_sources(config.corpus, config.seed).train.documents
    everything = CurriculumConfig(hops=(4,), frontier=0.0)
    horizon = config.rl.horizon.rounds[-1]
    for seed in seeds:
        steps = [sample_tasks(tasks, step, seed, config.rl.tasks_per_step, everything) for step in range(1, config.rl.steps + 1)]
        yield Setting(home / "policies" / policy, documents, steps, config, horizon, seed, seconds, stop_after, late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="a home whose cold start both begin with")
    parser.add_argument("--policy", default="t1-sft")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=900.0, help="after which a learner is given up")
    parser.add_argument("--steps", type=int, help="so many steps, whatever they reach")
    parser.add_argument("--late", action="store_true", help="search answers late")
    parser.add_argument(
        "--learners", nargs="+", choices=list(LEARNERS), default=list(LEARNERS), help="by default both, one after the other"
    )
    parser.add_argument(
        "--keep", help="name of a file of results in benchmarks/results; a learner's run of a seed takes the place of that there"
    )
    parser.add_argument("--command", action="append", default=[], help="what made home and figures, for --keep; repeatable")
    arguments = parser.parse_args()
    runs: dict[tuple[int, str], dict[str, Any]] = {}
    if arguments.keep and (there := evidence.kept(arguments.keep)):
        if (there["late"], there["steps"]) != (arguments.late, arguments.steps):
            parser.error(f"{arguments.keep} holds runs of other --late or --steps, which cannot be kept with these: give another name.")
        runs = {(run["seed"], run["learner"]): run for run in there["runs"]}
    wanted = (arguments.home, arguments.policy, arguments.seeds, arguments.seconds, arguments.steps, arguments.late)
    for setting in settings_of(*wanted):
        for learner in arguments.learners:
            outcome = LEARNERS[learner](setting)
            runs[setting.seed, learner] = {**asdict(outcome), "commit": evidence.current_commit()}
            print(f"seed {setting.seed}: {outcome}", file=sys.stderr)
    told = {"late": arguments.late, "steps": arguments.steps, "runs": [runs[key] for key in sorted(runs)]}
    if arguments.keep:
        evidence.keep(arguments.keep, {"commands": arguments.command, **told})
    print(learners(told))


if __name__ == "__main__":
    main()
