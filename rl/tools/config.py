"""Configuration of tools: how they are called, and the format of a tools file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from warehouse.settings import Section


class CallLimits(Section):
    """How a tool is called, and how much of its result is shown."""

    timeout_seconds: PositiveFloat = 30.0
    """Maximum seconds per call; a longer call is a fault. Waiting for a slot in a tool's worker does not count."""
    retries: NonNegativeInt = 0
    """Number of retries after a fault, for tools that may run twice; a wrong call is never retried."""
    backoff_seconds: NonNegativeFloat = 0.5
    """Seconds before the first retry; doubled for each further one."""
    max_characters: PositiveInt = 65_536
    """Maximum characters of a result; longer ones are truncated on the right, in the tool's own process."""
    max_image_bytes: PositiveInt = 4_194_304
    """Maximum bytes of all images in a result; more are a fault."""


class CallRules(CallLimits):
    """Call limits and probe of one tool."""

    probe: dict[str, Any] | None = None
    """Valid arguments for a test call before the first step; a tool that refuses them counts as dead."""


class WorkerConfig(Section):
    """Run a tool in a separate process, a Ray actor shared by all trajectories, because it is heavy or needs a device."""

    cpus: NonNegativeFloat = 0.5
    """Ray CPUs to reserve."""
    gpus: NonNegativeFloat = 0
    """Ray GPUs to reserve."""
    concurrency: PositiveInt = 1
    """Maximum concurrent calls; others wait for a slot."""
    start_timeout_seconds: PositiveFloat = 120.0
    """Maximum seconds to start and load the tool."""


class ToolConfig(CallRules):
    """One tool of a file: a function or a class."""

    function: str | None = None
    """The function: `module:attribute`, or `file.py:attribute` relative to the tools file."""
    kind: str | None = Field(default=None, alias="class")
    """The class, in the same form; given instead of `function`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments of the class."""
    worker: WorkerConfig | None = None
    """Run the tool in its own Ray worker; None: in the environment's process."""

    @model_validator(mode="after")
    def _check_source(self) -> ToolConfig:
        if (self.function is None) == (self.kind is None):
            raise ValueError("set either `function` or `class`")
        if self.function is not None and self.options:
            raise ValueError("`options` need a `class`: a function has none")
        return self


class ServerConfig(CallLimits):
    """An MCP server, given by the command that starts it or by its address. `${NAME}` stands for an environment variable."""

    command: list[str] | None = Field(default=None, min_length=1)
    """Program and arguments of a server on standard input and output, run in the folder of the tools file. The program `python` is this
    package's interpreter, regardless of PATH; to use another, give its path.
    """
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the command, in addition to the few that it inherits (PATH, HOME, USER, ...)."""
    url: str | None = None
    """Address of a streamable HTTP server."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of each request to `url`."""
    only: list[str] | None = None
    """Tools to use, by the server's names; None uses all."""
    prefix: str = ""
    """Prefix added to the server's tool names."""
    probes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Probe arguments, by the server's tool names."""
    errors_are_faults: bool = False
    """Treat errors that the server reports as faults of the tool; by default the policy sees them. MCP does not distinguish the two."""

    @model_validator(mode="after")
    def _check_address(self) -> ServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either `command` or `url`")
        if self.command is None and self.env:
            raise ValueError("`env` needs a `command`")
        if self.url is None and self.headers:
            raise ValueError("`headers` need a `url`")
        return self


class ToolsFile(Section):
    """A file that lists tools."""

    tools: dict[str, ToolConfig] = Field(default_factory=dict)
    """Tools, by the names that the policy calls."""
    servers: dict[str, ServerConfig] = Field(default_factory=dict)
    """MCP servers, by names used in messages."""
