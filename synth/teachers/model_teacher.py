"""A teacher that is a model: cache, concurrency, rate, budget and retries around whatever generates the text.

stored before?              -> that completion, at no cost
being asked this moment?    -> wait for it
else up to `attempts` tries -> set the cost aside, wait for the rate, generate, book the cost, store

The budget bounds requests and tokens, whatever runs side by side: before a try the most that it can cost is set aside, and afterwards what
it did cost is booked. A byte-level tokenizer makes no more tokens than there are bytes, so the bound holds without knowing the server's
tokenizer. Completions are stored in the lake as soon as they are there, and found again by the next stage and after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from synth.teachers.config import TeacherConfig
from synth.teachers.source import RETRYABLE, UNBILLED, BackgroundLoop, Source, SourceError
from synth.teachers.teacher import Fault, OracleTeacher, Reply, Teacher, completion_id, failed, judged
from warehouse.lake import Lake
from warehouse.records import Completion, Request, Task

MESSAGE_OVERHEAD_TOKENS = 16
"""Tokens that a chat template may put around a message."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests made and tokens used."""

    requests: int = 0
    tokens: int = 0


def largest_cost(request: Request) -> int:
    """The most tokens that a request can cost: prompt and completion."""
    prompt = sum(len(message.content.encode()) + MESSAGE_OVERHEAD_TOKENS for message in request.messages)
    return prompt + request.max_tokens


class Budget:
    """Limits over what is spent; lives in one event loop."""

    def __init__(self, max_requests: int | None, max_tokens: int | None, spent: Spent) -> None:
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._requests, self._tokens = spent.requests, spent.tokens
        self._set_aside = 0
        self._changed = asyncio.Condition()

    @property
    def spent(self) -> Spent:
        """What has been spent until now."""
        return Spent(self._requests, self._tokens)

    async def set_aside(self, tokens: int) -> None:
        """Take one request and `tokens` out, waiting for others to be booked where only they stand in the way.

        Raises:
            SourceError: where the limit is reached.
        """
        async with self._changed:
            while not self._fits(tokens):
                if not self._set_aside:
                    raise SourceError(Fault.BUDGET, f"max_tokens: {self._tokens} of {self._max_tokens} are spent, this may cost {tokens}")
                await self._changed.wait()
            if self._max_requests is not None and self._requests >= self._max_requests:
                raise SourceError(Fault.BUDGET, f"max_requests: all {self._max_requests} are made")
            self._requests += 1
            self._set_aside += tokens

    async def book(self, set_aside: int, used: int) -> None:
        """Replace what was set aside for a try by what it used."""
        async with self._changed:
            self._set_aside -= set_aside
            self._tokens += used
            self._changed.notify_all()

    def _fits(self, tokens: int) -> bool:
        return self._max_tokens is None or self._tokens + self._set_aside + tokens <= self._max_tokens


class CompletionCache:
    """The completions of one lake, kept from one event loop and found from any thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._waiting: list[Completion] = []
        self._committing = asyncio.Lock()

    def find(self, ids: Sequence[str]) -> dict[str, Completion]:
        """Those of `ids` that are stored."""
        found = self._lake.read(Completion, "id IN (SELECT unnest(?))", [list(ids)]) if ids else []
        return {completion.id: completion for completion in found}

    async def keep(self, completion: Completion) -> None:
        """Store a completion; returns when it is safe."""
        self._waiting.append(completion)
        async with self._committing:
            batch, self._waiting = self._waiting, []
            if batch:
                await asyncio.to_thread(self._lake.add, batch)

    def spent(self, teacher: str) -> Spent:
        """What the stored completions of a teacher have cost."""
        sql = "SELECT coalesce(sum(attempts), 0), coalesce(sum(prompt_tokens + completion_tokens), 0) FROM completions WHERE teacher = ?"
        requests, tokens = (column[0].as_py() for column in self._lake.query(sql, [teacher]).columns)
        return Spent(int(requests), int(tokens))


class ModelTeacher:
    """A `Teacher` over a source that lives in `loop`; opened by `open_teacher`."""

    def __init__(self, source: Source, config: TeacherConfig, loop: BackgroundLoop, cache: CompletionCache | None = None) -> None:
        self._source, self._config, self._loop, self._cache = source, config, loop, cache
        self._asked: dict[str, asyncio.Task[Reply]] = {}
        self._stored: set[str] = set()
        self._places = asyncio.Semaphore(config.concurrency)
        rate = config.requests_per_minute
        self._rate = None if rate is None else AsyncLimiter(1, 60 / rate)
        self._budget = Budget(config.max_requests, config.max_tokens, cache.spent(source.name) if cache else Spent())

    @property
    def name(self) -> str:
        """The source's name."""
        return self._source.name

    @property
    def spent(self) -> Spent:
        """What has been spent, on this teacher and for this lake."""
        return self._budget.spent

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply to each request, those in the lake first and without asking."""
        ids = [completion_id(self.name, request) for request in requests]
        stored = self._cache.find(list(dict.fromkeys(ids))) if self._cache else {}
        missing = {key: request for key, request in zip(ids, requests, strict=True) if key not in stored}
        asked = self._loop.wait(self._ask_all(missing)) if missing else {}
        return [judged(stored[key]) if key in stored else asked[key] for key in ids]

    async def _ask_all(self, requests: dict[str, Request]) -> dict[str, Reply]:
        found = await self._stored_meanwhile(requests)
        tasks = {key: self._task(key, request) for key, request in requests.items() if key not in found}
        try:
            replies = await asyncio.gather(*tasks.values())
        except BaseException:
            for task in tasks.values():
                task.cancel()
            raise
        return found | dict(zip(tasks, replies, strict=True))

    async def _stored_meanwhile(self, requests: dict[str, Request]) -> dict[str, Reply]:
        """Replies that another thread brought between the look into the lake and now."""
        keys = [key for key in requests if key in self._stored]
        if not keys or self._cache is None:
            return {}
        found = await asyncio.to_thread(self._cache.find, keys)
        return {key: judged(completion) for key, completion in found.items()}

    def _task(self, key: str, request: Request) -> asyncio.Task[Reply]:
        """The task that asks, of which there is one however many wait for it."""
        if key not in self._asked:
            task = self._asked[key] = asyncio.create_task(self._ask(request))
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        return self._asked[key]

    async def _ask(self, request: Request) -> Reply:
        async with self._places:
            try:
                completion = await self._retried(request)
            except SourceError as error:
                return failed(error.fault, error.reason, self.name, request, error.text)
        if self._cache is not None:
            await self._cache.keep(completion)
            self._stored.add(completion.id)
        return judged(completion)

    async def _retried(self, request: Request) -> Completion:
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(self._config.attempts), wait=self._pause, retry=retry_if_exception(_may_pass), reraise=True
        ):
            with attempt:
                completion = await self._try(request)
        return replace(completion, attempts=attempt.retry_state.attempt_number)

    async def _try(self, request: Request) -> Completion:
        cost = largest_cost(request)
        await self._budget.set_aside(cost)
        used = cost
        try:
            if self._rate is not None:
                await self._rate.acquire()
            completion = await self._in_time(request)
            used = completion.prompt_tokens + completion.completion_tokens
        except SourceError as error:
            used = 0 if error.fault in UNBILLED else cost
            raise
        finally:
            await self._budget.book(cost, used)
        return completion

    async def _in_time(self, request: Request) -> Completion:
        seconds = self._config.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._source.generate(request)
        except TimeoutError as error:
            raise SourceError(Fault.TIMEOUT, f"no completion within {seconds:g} seconds") from error

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next try: what the server asks for, else exponential backoff with full jitter."""
        error = state.outcome.exception() if state.outcome else None
        longest = self._config.longest_pause_seconds
        if isinstance(error, SourceError) and error.pause_seconds is not None:
            return min(error.pause_seconds, longest)
        return wait_random_exponential(multiplier=self._config.first_pause_seconds, max=longest)(state)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, SourceError) and error.fault in RETRYABLE


@contextmanager
def open_teacher(config: TeacherConfig, lake: Lake | None = None, tasks: Iterable[Task] = ()) -> Iterator[Teacher]:
    """The teacher of a configuration, ended with the `with` block.

    Args:
        lake: where completions are kept and found again; without one nothing is cached and spending begins at zero.
        tasks: what the oracle knows.

    Raises:
        RequestError: no key, no model in the folder.
        EngineFault: an engine does not start.
    """
    if config.kind == "oracle":
        yield OracleTeacher.of(tasks)
        return
    with BackgroundLoop("teacher") as loop:
        source = _source(config, loop)
        try:
            yield ModelTeacher(source, config, loop, CompletionCache(lake) if lake else None)
        finally:
            loop.wait(source.close())


def _source(config: TeacherConfig, loop: BackgroundLoop) -> Source:
    """The source that a configuration names; clients and engines are imported only where they are wanted."""
    if config.kind == "openai":
        from synth.teachers.openai_server import OpenAiSource

        return OpenAiSource(config)
    from synth.teachers.engine import EngineSource

    return EngineSource.start(config, loop)
