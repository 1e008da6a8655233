"""Heavy tools, each in its own named Ray actor that the trajectories of all environment workers share.

Only the actor imports the tool's module, so torch and the device stay there. The first environment worker that needs it owns it. Ray
restarts it if it dies, and it is recreated if its owner died too; a running call is then a fault. If it ends itself because its threads
hang, waiting calls are sent to its successor.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from rl.tools.calls import bounded_refusal, in_thread
from rl.tools.config import CallRules, WorkerConfig
from rl.tools.python_tools import FunctionTool, ToolSource
from rl.tools.tool import StatelessTool, ToolError, ToolFault, ToolMiss, ToolResponse
from warehouse.digests import digest
from warehouse.errors import RequestError, with_type

MAX_WAITING = 10_000
"""Maximum calls that may wait in a worker for a slot."""
EXIT_SECONDS = 0.2
"""Seconds for the last answers of a worker that ends itself."""
HUNG_SECONDS = 5.0
"""Seconds after the timeout before a thread counts as hung and loses its slot."""
PROCESS_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """Description, argument schema and rules of a tool."""

    description: str
    parameters: dict[str, Any]
    rules: CallRules


class NotBegun(ToolFault):
    """The worker is ending itself, and has not begun the call."""


class ThreadedCall:
    """A plain function, called once in a thread; knows whether the thread is inside it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self.begun = time.monotonic()
        self._inside = False
        self.left = asyncio.Event()

    @property
    def inside(self) -> bool:
        """Whether the thread has entered the function and not left it."""
        return self._inside and not self.left.is_set()

    def __call__(self, **values: Any) -> Any:
        self._inside = True
        try:
            return self._function(**values)
        finally:
            self._loop.call_soon_threadsafe(self.left.set)


class ToolHost:
    """Process of a heavy tool; used as a Ray actor."""

    def __init__(self, source: ToolSource, concurrency: int) -> None:
        self._source = source
        self._tool: FunctionTool | None = None
        self._making = asyncio.Lock()
        self._places = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._late: set[asyncio.Task[None]] = set()
        self._hung: list[ThreadedCall] = []
        self._ending = False

    async def describe(self) -> ToolDescription:
        """The tool's description; the first caller waits until the tool is created."""
        tool = await self._ready()
        return ToolDescription(tool.description, dict(tool.parameters), tool.rules)

    async def call(self, values: dict[str, Any]) -> ToolResponse:
        """Call the tool once a slot is free. Errors are sent as text, because their classes may be importable only here."""
        tool = await self._ready()
        await self._places.acquire()
        threaded: ThreadedCall | None = None
        try:
            await self.check()  # the slot may have been released by a worker that is ending
            if not inspect.iscoroutinefunction(tool.function):
                tool = copy(tool)
                tool.function = threaded = ThreadedCall(tool.function)
            return await tool.call(values)
        except (ToolError, ToolMiss) as refusal:
            raise bounded_refusal(refusal, tool.rules) from None
        except RequestError:
            raise
        except Exception as error:
            raise error if isinstance(error, ToolFault) else ToolFault(with_type(error)) from None
        finally:
            if threaded is not None and threaded.inside:
                late = asyncio.create_task(self._wait_for(threaded, tool.rules.timeout_seconds))
                self._late.add(late)
                late.add_done_callback(self._late.discard)
            else:
                self._places.release()

    async def check(self) -> None:
        """Raise `NotBegun` if the worker is about to end itself."""
        if self._ending:
            raise NotBegun("its worker ended before the call began")

    async def examine(self) -> None:
        try:
            await (await self._ready()).examine()
        except Exception as error:
            raise error if isinstance(error, ToolFault) else ToolFault(with_type(error)) from None

    async def _ready(self) -> FunctionTool:
        async with self._making:
            if self._tool is None:
                self._tool = await in_thread(self._source.make_shared)
            return self._tool

    async def _wait_for(self, call: ThreadedCall, seconds: float) -> None:
        """Hold the slot of an abandoned call until its thread leaves the function or hangs.

        A hung thread cannot be stopped. Once as many threads hang as there are slots, the process ends itself, and Ray restarts it.
        """
        try:
            async with asyncio.timeout(call.begun + seconds + HUNG_SECONDS - time.monotonic()):
                await call.left.wait()
        except TimeoutError:
            self._hung = [each for each in (*self._hung, call) if each.inside]
            if len(self._hung) >= self._concurrency and not self._ending:
                self._ending = True
                asyncio.get_running_loop().call_later(EXIT_SECONDS, os._exit, 1)
        self._places.release()


class WorkerTool(StatelessTool):
    """A tool that runs in a `ToolHost`."""

    def __init__(self, source: ToolSource, config: WorkerConfig) -> None:
        """Find or start the worker, and wait until the tool is created.

        Raises:
            RequestError: Ray is not running or lacks resources, or the tool cannot be created.
            WorkerDied: its process died.
        """
        self._source, self._config = source, config
        self._worker: Any = None
        described = self._describe(source.name)
        super().__init__(source.name, described.description, described.parameters, described.rules)

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        return await self._ask("call", dict(values))

    async def examine(self) -> None:
        await self._ask("examine")

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """The worker's answer, or its successor's if it ends before the call has begun."""
        while True:
            try:
                return await self._ask_once(method, *arguments)
            except NotBegun:
                await self._wait_for_next()

    async def _wait_for_next(self) -> None:
        deadline = time.monotonic() + self._config.start_timeout_seconds
        while True:
            await asyncio.sleep(EXIT_SECONDS)
            try:
                await self._ask_once("check")
                return
            except ToolFault:
                if time.monotonic() > deadline:
                    raise

    async def _ask_once(self, method: str, *arguments: Any) -> Any:
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

        reference = getattr(self._handle(), method).remote(*arguments)
        try:
            return await reference
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else ToolFault(with_type(error)) from None
        except ActorUnavailableError as error:
            raise ToolFault("its worker died during the call and is being restarted") from error
        except ActorDiedError as error:
            self._worker = None
            raise ToolFault("its worker died") from error
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise

    def _handle(self) -> Any:
        """The worker, an actor named after its tool and a digest of the tool's definition, so that no other is mistaken for it."""
        import ray

        if self._worker is None:
            actor: Any = ray.remote(ToolHost).options(
                name=f"tool {self._source.name} {digest([self._source.identity, self._config.model_dump()])}",
                get_if_exists=True,
                num_cpus=self._config.cpus,
                num_gpus=self._config.gpus,
                max_concurrency=MAX_WAITING,
                max_restarts=-1,
                runtime_env={"env_vars": PROCESS_ENVIRONMENT},
            )
            self._worker = actor.remote(self._source, self._config.concurrency)
        return self._worker

    def _describe(self, name: str) -> ToolDescription:
        import ray
        from ray.exceptions import RayError, RayTaskError

        from rl.worker_death import worker_died

        if not ray.is_initialized():
            raise RequestError(f"the tool {name!r} runs in a Ray worker, but Ray is not running here.")
        _check_resources(name, self._config)
        seconds = self._config.start_timeout_seconds
        try:
            described: ToolDescription = self._handle().describe.remote().future().result(seconds)
            return described
        except TimeoutError as error:
            raise RequestError(
                f"the worker of the tool {name!r} did not start within {seconds:g} seconds; it needs {self._config.cpus:g} CPUs and "
                f"{self._config.gpus:g} GPUs from Ray."
            ) from error
        except RayTaskError as error:
            if isinstance(error.cause, RequestError):
                raise error.cause from None
            raise RequestError(f"the tool {name!r} cannot be created in its worker: {with_type(error.cause or error)}.") from error
        except RayError as error:
            if (died := worker_died(f"the worker of the tool {name!r}", error)) is not None:
                raise died from error
            raise RequestError(f"the worker of the tool {name!r} does not start: {with_type(error)}.") from error


def _check_resources(name: str, config: WorkerConfig) -> None:
    import ray

    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    for what, wanted in (("CPU", config.cpus), ("GPU", config.gpus)):
        if wanted > total.get(what, 0.0):
            raise RequestError(f"the worker of the tool {name!r} needs {wanted:g} {what}s, but Ray has {total.get(what, 0.0):g}.")
