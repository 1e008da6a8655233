"""What `benchmarks/gpu.py` measures: this package's own learners on policies with random weights and batches of random tokens.

All is made in memory, so that nothing waits for a disk: the policy on its device, the trajectories without an engine. A pass holds
sequences of one length, `MANY_TOKENS` together or one that is longer; a step of RL is two passes, one of CPT is one. A sixth of a
trajectory is actions, the rest a prompt and what came back. Layers are computed again in the backward pass where the planner finds no
room otherwise.
"""

from __future__ import annotations

import gc
import math
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen3Config

from rl.engines.base import WeightProbe
from rl.hardware import (
    GIB,
    Architecture,
    LearnerMemory,
    Pass,
    device_of,
    learner_memory,
    model_flops_utilisation,
    trained_matrices,
    training_flops,
)
from rl.learner.batches import rows_of
from rl.learner.config import LearnerConfig, LoraConfig, MonitorConfig, ReinforceConfig, computes_in_bfloat16
from rl.learner.local import LocalLearner
from rl.learner.metrics import Alert, MetricMonitor, device_name, sampler_errors
from rl.learner.trainers import run_trainer
from rl.loop import ReinforceLoop
from rl.policies.tokenization import build_tokenizer
from rl.renderers.examples import EncodedExample
from rl.rollouts.collect import Collected, RejectedSample
from rl.supervised.config import CptConfig
from rl.supervised.training import packed_trainer
from warehouse import Outcome, StopReason, Trajectory, Turn

Stage = Literal["rl", "cpt"]
Kind = Literal["speed", "precision", "repeat"]
KINDS: dict[str, Any] = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
TURNS = 4
ROOM = 0.9
"""Share of a card's memory up to which a planned peak counts as one that fits: its context and what its allocator keeps need the rest."""


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, key_value_heads: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads, "vocab_size": vocabulary, "max_position_embeddings": 131_072,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "qwen2_0.5b": {"kind": "qwen2", **_sizes(896, 4864, 24, 14, 2, 151_936)},
    "qwen2_1.5b": {"kind": "qwen2", **_sizes(1536, 8960, 28, 12, 2, 151_936)},
    "qwen3_0.6b": {"kind": "qwen3", "head_dim": 128, **_sizes(1024, 3072, 28, 16, 8, 151_936)},
    "qwen3_4b": {"kind": "qwen3", "head_dim": 128, **_sizes(2560, 9728, 36, 32, 8, 151_936)},
    "small": {"kind": "qwen2", **_sizes(256, 768, 6, 4, 2, 12_000)},
}
"""Architectures by the names of their models; `small` is what a CPU does in seconds. All have one matrix for embedding and head."""

MANY_TOKENS = 16_384
"""Tokens of a pass where sequences are shorter."""
PASS_TOKENS = {"small": 512}
"""Where it is not `MANY_TOKENS`."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the benchmark: what is measured, of which policy, on sequences of how many tokens."""

    kind: Kind
    size: str
    tokens: int
    stage: Stage = "rl"
    adapters: int | None = None
    """The rank of low-rank adapters; None trains the weights."""
    checkpointing: bool = False
    """Compute activations again, also where there is room to keep them."""

    @property
    def architecture(self) -> Architecture:
        return Architecture.of_config({**SIZES[self.size], "model_type": SIZES[self.size]["kind"], "tie_word_embeddings": True})

    @property
    def per_pass(self) -> int:
        return max(1, PASS_TOKENS.get(self.size, MANY_TOKENS) // self.tokens)

    @property
    def action(self) -> int:
        return max(1, self.tokens // (6 * TURNS))

    @property
    def observation(self) -> int:
        return (self.tokens - self.tokens // 8 - TURNS * self.action) // (TURNS - 1)

    def planned(self, bfloat16: bool, checkpointing: bool, offloading: bool = False) -> LearnerMemory:
        scored = self.per_pass * (TURNS * self.action if self.stage == "rl" else self.tokens)
        work = Pass(self.per_pass * self.tokens, scored, bfloat16, checkpointing, offloading)
        return learner_memory(self.architecture, work, adapters=self.adapters, tiled=on_gpu())


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a case is measured: seconds beyond the first step, and steps at most; and the memory that there is, in bytes."""

    seconds: float
    steps: int
    memory: int | None


def on_gpu() -> bool:
    """Whether there is one."""
    return torch.cuda.is_available()


def measure(case: Case, limits: Limits) -> dict[str, Any]:
    """The figures of one case.

    Raises:
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is not so much memory.
    """
    return MEASURES[case.kind](case, limits)


def free() -> None:
    """Give back what nothing refers to any more: trainers and models refer to each other."""
    gc.collect()
    if on_gpu():
        torch.cuda.empty_cache()


def speed(case: Case, limits: Limits) -> dict[str, Any]:
    """Tokens a second, MFU, and peak memory against the planned one."""
    with Peak() as peak, tempfile.TemporaryDirectory() as folder:
        learner = Learner(case, Path(folder), limits.memory)
        steps = learner.learn(Pace(limits.seconds, limits.steps))
    rate = statistics.median(learner.tokens_per_step / seconds for seconds in steps)
    found = device_of(device_name())
    plan = case.planned(learner.bfloat16, learner.checkpointing, learner.offloading)
    policy = case.architecture
    flops = training_flops(policy.matrices, trained_matrices(policy, case.adapters), policy.layers, policy.width, case.tokens / 2)
    return {
        "dtype": "bfloat16" if learner.bfloat16 else "float32",
        "attention": learner.attention,
        "checkpointing": learner.checkpointing,
        "offloading": learner.offloading,
        "tokens_per_pass": case.per_pass * case.tokens,
        "tokens_per_step": learner.tokens_per_step,
        "steps": len(steps),
        "step_seconds": statistics.median(steps),
        "tokens_per_second": rate,
        "flops_per_token": flops,
        "teraflops": rate * flops / 1e12,
        "mfu": model_flops_utilisation(rate, flops, found.teraflops if found else None),
        "peak_bytes": peak.bytes,
        "planned_bytes": plan.peak,
        "planned_share": plan.peak / peak.bytes,
    }


def precision(case: Case, limits: Limits) -> dict[str, Any]:
    """How far the learner's log-probabilities in bfloat16 are from those in float32, of the same tokens under the same weights."""
    scores = []
    for name in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as folder:
            learner = Learner(case, Path(folder), limits.memory, precision=name)
            with closing(learner.reinforcing()) as own:
                scored = own.score(rows_of(learner.trajectories(), None)).logprobs
            scores.append(torch.tensor([each for row in scored for each in row], dtype=torch.float64))
            del learner, own
            free()
    return {"scored": scores[0].numel(), **sampler_errors(scores[1] - scores[0])}


def repeat(case: Case, limits: Limits) -> dict[str, Any]:
    """Whether two steps from the same weights on the same batch give the same weights twice, bit by bit."""
    found: list[dict[str, torch.Tensor]] = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            learner = Learner(case, Path(folder), limits.memory)
            before = next(iter(learner.model.parameters())).detach().cpu().clone()
            learner.learn(Pace(0.0, 1))
            weights = {name: weight.detach().cpu().clone() for name, weight in learner.model.named_parameters()}
            moved = not torch.equal(before, next(iter(weights.values())))
            found.append(weights)
            del learner
            free()
    differences = [float((weight - found[1][name]).abs().max()) for name, weight in found[0].items()]
    identical = all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())
    return {"steps": 2, "identical": identical, "largest_difference": max(differences), "moved": moved}


MEASURES: dict[str, Callable[[Case, Limits], dict[str, Any]]] = {"speed": speed, "precision": precision, "repeat": repeat}


class Pace:
    """Takes a trainer's steps and ends it when enough are measured: the first one compiles, and does not count."""

    def __init__(self, seconds: float, steps: int) -> None:
        self.at: list[tuple[float, dict[str, float]]] = []
        self._seconds, self._steps = seconds, steps

    def __call__(self, step: int, figures: dict[str, float]) -> bool:
        self.at.append((time.perf_counter(), figures))
        return len(self.at) > 1 and (len(self.at) > self._steps or self.at[-1][0] - self.at[0][0] >= self._seconds)


class Peak:
    """The most memory that a `with` block takes over what is there before it: allocated on the GPU, or resident on CPUs."""

    bytes = 0

    def __enter__(self) -> Peak:
        free()
        if on_gpu():
            torch.cuda.reset_peak_memory_stats()
            self._base = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
            self._base = _resident("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = (torch.cuda.max_memory_allocated() if on_gpu() else _resident("VmHWM")) - self._base


class Learner:
    """A policy of the case's size and what trains it."""

    def __init__(self, case: Case, folder: Path, memory: int | None, precision: str = "auto") -> None:
        self.case, self._folder, self._precision = case, folder, precision
        self._tokenizer: PreTrainedTokenizerBase = build_tokenizer([" ".join(map(str, range(500)))], 600, ())
        self.model = build(SIZES[case.size], self._tokenizer)
        self.checkpointing = self.offloading = False
        self.bfloat16 = computes_in_bfloat16(self._config(ReinforceConfig), self.model.num_parameters())
        self.checkpointing, self.offloading = room(case, self.bfloat16, memory)

    @property
    def attention(self) -> str:
        return str(self.model.config._attn_implementation)

    @property
    def tokens_per_step(self) -> int:
        return self.case.per_pass * self.case.tokens * (2 if self.case.stage == "rl" else 1)

    def learn(self, pace: Pace) -> list[float]:
        if self.case.stage == "rl":  # without what the loop does between two steps, as its own metrics have it
            with closing(self.reinforcing()) as learner:
                learn_again(learner, self._reinforce_config(), self.trajectories(), pace)
            return [self.tokens_per_step / figures["learner_tokens_per_second"] for _, figures in pace.at[1:]]
        trainer = self._pretraining()
        run_trainer(trainer, trainer.learner_config, pace)
        times = [at for at, _ in pace.at]
        return [later - earlier for earlier, later in pairwise(times)]

    def reinforcing(self) -> Unpublished:
        return Unpublished(self.model, self._tokenizer, self._reinforce_config(), self._folder, 1)

    def _reinforce_config(self) -> ReinforceConfig:
        config: ReinforceConfig = self._config(
            ReinforceConfig, tasks_per_step=1, samples_per_task=2 * self.case.per_pass, trajectories_per_pass=self.case.per_pass,
            steps=1_000_000, health=MonitorConfig(limits=(), information_tasks=0),
        )  # fmt: skip
        return config

    def _pretraining(self) -> Any:
        chance, tokens, rows = random.Random(1), self.case.tokens, self.case.per_pass
        given = [EncodedExample(self._random(chance, tokens), (True,) * tokens) for _ in range(rows)]
        config = self._config(
            CptConfig, row_tokens=tokens, max_example_tokens=tokens, rows_per_step=rows, rows_per_pass=rows, epochs=1_000_000.0,
            log_every=1,
        )  # fmt: skip
        trainer: Any = packed_trainer(self.model, self._tokenizer, given, self._folder, config, 1, masked=False)
        trainer.learner_config = config
        return trainer

    def trajectories(self) -> list[Trajectory]:
        chance, case = random.Random(2), self.case
        likely = -math.log(SIZES[case.size]["vocab_size"])
        prompt = case.tokens - TURNS * case.action - (TURNS - 1) * case.observation

        def turn(index: int) -> Turn:
            observation = self._random(chance, case.observation if index + 1 < TURNS else 0)
            action = self._random(chance, case.action)
            return Turn(index, action, (likely,) * case.action, "", "search", None, observation, "", None, "ok", 0.0, 0)

        return [
            Trajectory(
                f"t-{sample}", "t", "p", "rl", TURNS, self._random(chance, prompt), tuple(map(turn, range(TURNS))), StopReason.ANSWERED,
                Outcome.SUCCESS if sample % 2 else Outcome.FAILURE, float(sample % 2), 0, datetime.now(UTC), 0.0, sample=sample,
            )
            for sample in range(2 * case.per_pass)
        ]  # fmt: skip

    def _config(self, kind: Any, **settings: Any) -> Any:
        lora = None if self.case.adapters is None else LoraConfig(rank=self.case.adapters, alpha=2 * self.case.adapters)
        given = {
            "learner": LearnerConfig(gpus=1 if on_gpu() else 0), "learning_rate": 1e-5, "warmup_steps": 0, "decay_share": 0.0, "lora": lora,
            "save_every": 1_000_000, "precision": self._precision,
            "gradient_checkpointing": self.checkpointing, "activation_offloading": self.offloading, **settings,
        }  # fmt: skip
        return kind(**given)

    def _random(self, chance: random.Random, count: int) -> tuple[int, ...]:
        return tuple(chance.choices(range(300, SIZES[self.case.size]["vocab_size"]), k=count))


class Unpublished(LocalLearner):
    """The learner alone, without engines to update."""

    def publish(self, version: int, record: bool = False) -> None:
        """Nothing waits for a version."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The sampler and the recorder of steps on the same trajectories; `take` gets the metrics of each, and says whether it was the last."""

    trajectories: Sequence[Trajectory]
    take: Callable[[int, dict[str, float]], bool]

    def collect(self, step: int) -> Collected:
        return Collected(tuple(self.trajectories))

    def load(self, folder: Path | None, version: int) -> None:
        """Nobody samples."""

    def probe(self) -> Sequence[WeightProbe]:
        return ()

    def metrics(self, step: int, figures: dict[str, float]) -> bool:
        return self.take(step, figures)

    def alert(self, alert: Alert) -> None:
        """There are no limits."""

    def drops(self, step: int, drops: Sequence[RejectedSample]) -> None:
        """There is no correction."""


def learn_again(
    learner: LocalLearner, config: ReinforceConfig, trajectories: Sequence[Trajectory], take: Callable[[int, dict[str, float]], bool]
) -> None:
    """Make steps on the same trajectories until `take` says that it was the last."""
    run = Repeated(trajectories, take)
    ReinforceLoop(learner, run, run, config, {"monitor": MetricMonitor(())}, lambda step, figures: None).run()


def room(case: Case, bfloat16: bool, memory: int | None) -> tuple[bool, bool]:
    """Whether activations are computed again, and kept in the host's memory: each where the planner finds no room otherwise."""
    choices = [(False, False), (True, False), (True, True)][case.checkpointing :]
    if memory is None:
        return choices[0]
    return next((each for each in choices if case.planned(bfloat16, *each).peak <= ROOM * memory), choices[-1])


def build(size: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A policy with random weights, the same at every call, on the GPU where there is one."""
    sizes = {name: value for name, value in size.items() if name != "kind"}
    config = KINDS[size["kind"]](
        **sizes, tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu() else "cpu"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def memory_of_device() -> int | None:
    """Bytes that this process may have of its GPU; None on CPUs."""
    return torch.cuda.get_device_properties(0).total_memory if on_gpu() else None


def limit_memory(gib: float) -> int:
    """Let this process have no more than so much from now on, of its GPU, or of addresses on CPUs; how many bytes that is."""
    limit = int(gib * GIB)
    if on_gpu():
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / torch.cuda.get_device_properties(0).total_memory))
    else:
        resource.setrlimit(resource.RLIMIT_AS, (_resident("VmSize") + limit, resource.RLIM_INFINITY))
    return limit


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
