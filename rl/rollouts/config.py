"""The configuration of rollouts: what trajectories may use, and what they run on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rl.engines.config import EngineConfig, Temperature
from rl.envs.config import EnvironmentPoolConfig
from rl.ray_runtime import RayConfig
from rl.renderers.config import DialectConfig
from rl.retrieval.config import SearchConfig
from warehouse.settings import Section


class Limits(Section):
    """What one trajectory may use; a trajectory that a limit ends bears the limit's name as its stop reason.

    Its number of turns is the horizon of its request. Training takes what was sampled and appended here, and cuts nothing again.
    """

    max_action_tokens: PositiveInt = 48
    """Tokens of one action, thought and tags included; what is longer is an action that cannot be read."""
    max_total_action_tokens: PositiveInt | None = None
    """Tokens of all actions together."""
    max_observation_tokens: int = Field(default=160, ge=8)
    """Tokens of one observation, tags and the mark of truncation included; what a chat template writes around it comes on top."""
    max_total_observation_tokens: PositiveInt | None = None
    """Tokens of all observations together, with what stands around them."""
    max_context_tokens: PositiveInt = 1024
    """Tokens of prompt, actions and observations together."""
    max_seconds: PositiveFloat | None = None
    """Wall time from the reset of the environment on; a trajectory that comes to it is stopped where it is, and is no fault."""
    truncate: Literal["right", "left", "middle"] = "right"
    """Where an observation that is too long is cut off; a marker stands there."""
    temperature: Temperature = 1.0
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)


class RolloutConfig(Section):
    """Rollouts: what trajectories may use, and what they run on."""

    limits: Limits = Limits()
    loop: str = "react"
    """The agent loop of tasks that name none: a name, `module:attribute` or `file.py:attribute`."""
    loops: dict[str, str] = Field(default_factory=dict)
    """Agent loops of one's own by the names that tasks call them by, each `module:attribute` or `file.py:attribute`."""
    dialect: str = "tags"
    """The dialect of tasks that name none: `tags`, `chat`, or one of `dialects`."""
    dialects: dict[str, DialectConfig] = Field(default_factory=dict)
    """Further dialects by the names that tasks call them by."""
    concurrency: PositiveInt = 256
    """Trajectories side by side."""
    engine: EngineConfig = EngineConfig()
    environments: EnvironmentPoolConfig = EnvironmentPoolConfig()
    search: SearchConfig = SearchConfig()
    ray: RayConfig = RayConfig()

    @property
    def speaks_tags(self) -> bool:
        """Whether policies may have to write tags: the dialect of tasks that name none is of that kind, or one of `dialects`."""
        return self.dialect == "tags" or any(dialect.kind == "tags" for dialect in self.dialects.values())
