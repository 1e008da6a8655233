"""The configuration of tools: how they are called, and the format of a file that names them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from warehouse.settings import Section


class CallLimits(Section):
    """How a tool is called, and how much of its result is shown."""

    timeout_seconds: PositiveFloat = 30.0
    """A call that takes longer is a fault. Waiting for a slot in a tool's worker does not count."""
    retries: NonNegativeInt = 0
    """Number of retries after a fault; a wrong call is never retried. Only for tools that may run twice."""
    backoff_seconds: NonNegativeFloat = 0.5
    """Pause before the first retry; it doubles with each."""
    max_characters: PositiveInt = 65_536
    """Longer results are truncated on the right, in the tool's own process."""
    max_image_bytes: PositiveInt = 4_194_304
    """Larger images are a fault."""


class CallRules(CallLimits):
    """The limits of one tool, and its probe."""

    probe: dict[str, Any] | None = None
    """Known good arguments. They are called before the first step: a tool that refuses them is dead."""


class WorkerConfig(Section):
    """A separate process for a tool that is heavy or needs a device: a Ray actor shared by all trajectories."""

    cpus: NonNegativeFloat = 0.5
    """Ray CPUs reserved."""
    gpus: NonNegativeFloat = 0
    """Ray GPUs reserved."""
    concurrency: PositiveInt = 1
    """Concurrent calls; others wait for a slot."""
    start_timeout_seconds: PositiveFloat = 120.0
    """Time to start and load what it needs."""


class ToolConfig(CallRules):
    """One tool of a file: a function, or a class."""

    function: str | None = None
    """`module:attribute`, or `file.py:attribute` relative to the file that names it."""
    kind: str | None = Field(default=None, alias="class")
    """A class, named likewise."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the class."""
    worker: WorkerConfig | None = None
    """Run it in a Ray worker of its own."""

    @model_validator(mode="after")
    def _check_source(self) -> ToolConfig:
        if (self.function is None) == (self.kind is None):
            raise ValueError("name a `function` or a `class`, and not both")
        if self.function is not None and self.options:
            raise ValueError("`options` are for a `class`: a function has none")
        return self


class ServerConfig(CallLimits):
    """An MCP server, by the command that starts it or by its address. `${NAME}` stands for an environment variable."""

    command: list[str] | None = Field(default=None, min_length=1)
    """Program and arguments; it speaks over standard input and output, and runs in the folder of the file that names it. The program
    `python` is this package's interpreter, whatever PATH says; a path names another.
    """
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for the command, in addition to the few (PATH, HOME, USER, ...) that it inherits."""
    url: str | None = None
    """Address of a streamable HTTP server."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of each request to `url`."""
    only: list[str] | None = None
    """Tools to take, by the server's names; None takes all."""
    prefix: str = ""
    """Prefix of the server's names."""
    probes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Known good arguments, by the server's tool names."""
    errors_are_faults: bool = False
    """The protocol does not distinguish a wrong call from a broken tool. By default the policy is shown both; this makes both a fault."""

    @model_validator(mode="after")
    def _check_address(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("give a `command` or a `url`, and not both")
        if self.command is None and self.env:
            raise ValueError("`env` is for a `command`")
        if self.url is None and self.headers:
            raise ValueError("`headers` are for a `url`")
        return self


class ToolsFile(Section):
    """A file that names tools."""

    tools: dict[str, ToolConfig] = Field(default_factory=dict)
    """Tools, by the names that the policy calls."""
    servers: dict[str, ServerConfig] = Field(default_factory=dict)
    """MCP servers, by names used in messages."""
