"""Configuration of rollouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rl.engines.config import CUDA_TRANSFERS, EngineConfig, Temperature
from rl.envs.config import EnvironmentPoolConfig
from rl.learner.config import ReinforceConfig
from rl.placement import total_cpus
from rl.ray_runtime import RayConfig
from rl.renderers.base import DialectConfig
from rl.retrieval.config import SearchConfig
from warehouse.settings import Section


class Limits(Section):
    """Limits of one trajectory; the limit that ends it is its stop reason. Training does not truncate further."""

    max_action_tokens: PositiveInt = 48
    """Maximum tokens per action; a longer action is unreadable."""
    max_total_action_tokens: PositiveInt | None = None
    """Maximum tokens of all actions together."""
    max_observation_tokens: int = Field(default=160, ge=8)
    """Maximum tokens per observation, without the chat template's markup."""
    max_total_observation_tokens: PositiveInt | None = None
    """Maximum tokens of all observations together, including the chat template's markup."""
    max_context_tokens: PositiveInt = 1024
    """Maximum tokens of prompt, actions and observations together."""
    keep_observations: PositiveInt | None = None
    """Go on when a context has no room for an action, in a new one with that many observations; older ones are removed. None: it ends."""
    summary_tokens: PositiveInt | None = None
    """Before a context is full, let the policy write a summary of at most that many tokens, an action of its own; a new context begins with
    the question, the summary and the last turns, as many as `keep_observations`, which it needs. None: no summary.
    """
    max_seconds: PositiveFloat | None = None
    """Maximum seconds per trajectory; a trajectory that exceeds it ends as truncated."""
    truncate: Literal["right", "left", "middle"] = "right"
    """Side on which long observations are cut; `middle` keeps both ends."""
    temperature: Temperature = 1.0
    """Default sampling temperature."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling probability; must be 1 for RL."""

    @model_validator(mode="after")
    def _check_summary(self) -> Limits:
        if self.summary_tokens is None:
            return self
        if self.keep_observations is None:
            raise ValueError("summary_tokens needs keep_observations: set it to the number of turns that follow a summary")
        if self.max_observation_tokens < 64:
            raise ValueError("summary_tokens needs max_observation_tokens of at least 64: the request for a summary is an observation")
        if (needed := 2 * (self.max_action_tokens + self.max_observation_tokens + self.summary_tokens)) > self.max_context_tokens:
            raise ValueError(f"two turns and summaries take {needed} tokens, but max_context_tokens is {self.max_context_tokens}: raise it")
        return self

    @property
    def totals(self) -> list[str]:
        """Names of the limits that are set and that only the loop `react` supports."""
        names = ("max_total_action_tokens", "max_total_observation_tokens", "keep_observations")
        return [name for name in names if getattr(self, name) is not None]


class HarnessConfig(Section):
    """A command that works on a task: an agent as it is, which talks to the policy through an endpoint (loop `harness`)."""

    command: tuple[str, ...] = Field(min_length=1)
    """Program and arguments; `{question}` in an argument is the task's question, which is on standard input, too."""
    answer: Literal["output", "reply", "reward"] = "output"
    """The answer: the last line of standard output, or the policy's last reply without a call. `reward`: that reply, and the last line of
    standard output is the attempt's reward, for the verifier `environment`."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables besides PATH, LANG and those of the endpoint."""
    seconds: PositiveFloat = 600.0
    """Maximum seconds per task, if `rollout.limits.max_seconds` is not less."""


class RolloutConfig(Section):
    """Rollouts: limits of trajectories, and what they run on."""

    limits: Limits = Limits()
    loop: str = "react"
    """Default agent loop: a name, `module:attribute` or `file.py:attribute`."""
    loops: dict[str, str] = Field(default_factory=dict)
    """Custom agent loops by name, each `module:attribute` or `file.py:attribute`."""
    harness: HarnessConfig | None = None
    """Command of the loop `harness` (docs/engines.md#harnesses)."""
    dialect: str = "tags"
    """Default dialect: `tags`, `chat`, or a key of `dialects`."""
    dialects: dict[str, DialectConfig] = Field(default_factory=dict)
    """Custom dialects by name."""
    concurrency: PositiveInt = 256
    """Maximum number of concurrent trajectories."""
    engine: EngineConfig = EngineConfig()
    environments: EnvironmentPoolConfig = EnvironmentPoolConfig()
    search: SearchConfig = SearchConfig()
    ray: RayConfig = RayConfig()

    @model_validator(mode="after")
    def _check_loop(self) -> RolloutConfig:
        if self.loop == "harness" and self.harness is None:
            raise ValueError("rollout.loop = harness needs a command: set rollout.harness.command")
        if self.loop in ("langgraph", "harness") and self.limits.totals:
            raise ValueError(f"rollout.loop = {self.loop} does not support rollout.limits.{self.limits.totals[0]}: unset it or use react")
        return self

    @property
    def reserved_cpus(self) -> float:
        """CPUs to reserve when starting Ray locally: for engines, and for environments that tasks may use."""
        return total_cpus([self.engine.reservation("rollout.engine")]) + self.environments.reserved_cpus

    @property
    def speaks_tags(self) -> bool:
        """Whether policies may have to write tags."""
        return self.dialect == "tags" or any(dialect.kind == "tags" for dialect in self.dialects.values())


def check_rollouts(config: ReinforceConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError if RL cannot train on these rollouts or send weights to these engines."""
    engine, learner = rollout.engine, config.learner
    if rollout.limits.top_p < 1:
        raise ValueError(
            "rollout.limits.top_p must be 1: RL trains on these rollouts, and log-probabilities of a truncated distribution are not "
            "the learner's; a suite may set its own under limits"
        )
    if config.older_share and not engine.older:
        raise ValueError("rl.older_share needs an engine with an older policy: set rollout.engine.older = 1")
    if engine.sleep_level and config.mode != "synchronous":
        raise ValueError("rollout.engine.sleep_level needs engines and a learner that take turns: set rl.mode = synchronous, or unset it")
    if engine.adapter_rank is not None and config.lora is not None and config.lora.rank > engine.adapter_rank:
        raise ValueError(f"rl.lora.rank = {config.lora.rank} is more than the engines serve: raise rollout.engine.adapter_rank")
    if engine.transfer in CUDA_TRANSFERS and not learner.gpus:
        raise ValueError(f"rollout.engine.transfer = {engine.transfer} needs rl.learner.gpus: without GPUs, use gloo or files")
    if engine.transfer == "ipc" and learner.workers > 1:
        raise ValueError("rollout.engine.transfer = ipc supports a learner of one process, on the engine's GPU: use nccl")
    if engine.transfer == "ipc" and learner.gpus + engine.gpus > 1:
        raise ValueError(
            "rollout.engine.transfer = ipc is for one shared GPU: rollout.engine.gpus and rl.learner.gpus must be shares of it, "
            "such as 0.5 each"
        )
