"""A teacher that is a model: cache, concurrency, rate, budget and retries around whatever generates the text.

stored before?              -> that completion, at no cost
being asked this moment?    -> wait for it
else up to `attempts` tries -> set the cost aside, wait for the rate, generate, book the cost, store

The budget bounds requests and tokens, whatever runs side by side (`ledger.py`): before a try the most that it can cost is set aside, and
afterwards what it did cost is booked. A byte-level tokenizer makes no more tokens than there are bytes, so the bound holds without knowing
the server's tokenizer. Completions are stored in the lake as soon as they are there, and found again by the next stage and after a crash;
each try that has to be made again is a row of `failures`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from synth.teachers.config import TeacherConfig
from synth.teachers.ledger import FILE, Budget, Ledger, Spent, largest_cost
from synth.teachers.source import RETRYABLE, BackgroundLoop, Source, SourceError
from synth.teachers.teacher import STAGE, Fault, OracleTeacher, Reply, Teacher, completion_id, failed, judged
from warehouse.errors import RequestError
from warehouse.lake import Lake
from warehouse.records import Completion, Failure, Request, Task
from warehouse.schema import Record

LONGEST_PAUSE_SECONDS = 60.0
"""Maximum pause between two attempts of a request."""
RETRIED = "retried_"
"""How the kinds of failures begin that are tries which were made again."""


class CompletionCache:
    """The completions of one lake, kept from one event loop and found from any thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._waiting: list[Record] = []
        self._committing = asyncio.Lock()

    def find(self, ids: Sequence[str]) -> dict[str, Completion]:
        """Those of `ids` that are stored."""
        found = self._lake.read(Completion, "id IN (SELECT unnest(?))", [list(ids)]) if ids else []
        return {completion.id: completion for completion in found}

    @property
    def ledger(self) -> Path:
        """The file that says what was spent on completions of this lake."""
        return self._lake.place.folder / FILE

    async def keep(self, record: Record) -> None:
        """Store a completion, or what a try came to that brought none; returns when it is safe."""
        self._waiting.append(record)
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
        self._under_way: set[asyncio.Task[Any] | None] = set()
        self._places = asyncio.Semaphore(config.concurrency)
        rate = config.requests_per_minute
        self._rate = None if rate is None else AsyncLimiter(1, 60 / rate)
        known = cache.spent(source.name) if cache else Spent()
        self._ledger = Ledger(cache.ledger if cache else None, source.name, known)
        self._budget = Budget(config.max_requests, config.max_tokens, self._ledger)

    @property
    def name(self) -> str:
        """The source's name."""
        return self._source.name

    @property
    def spent(self) -> Spent:
        """What has been spent, on this teacher and for this lake."""
        return self._budget.spent

    def close(self) -> None:
        """Let go of the file of what was spent; nothing may be asked any more."""
        self._ledger.close()

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply to each request, those in the lake first and without asking."""
        if not self._config.holds_to_forms:
            requests = [replace(request, form=None) for request in requests]
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
        except RequestError:  # what is under way is refused as well, or paid for and kept; nothing more is sent
            for task in set(tasks.values()) - self._under_way:
                task.cancel()
            await asyncio.wait(tasks.values())
            raise
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
            if self._cache is not None:  # within its place: what may be lost is never more than what is in flight
                await self._cache.keep(completion)
                self._stored.add(completion.id)
        return judged(completion)

    async def _retried(self, request: Request) -> Completion:
        async for attempt in AsyncRetrying(
            stop=stop_after_attempt(self._config.attempts),
            wait=self._pause,
            retry=retry_if_exception(_may_pass),
            before_sleep=partial(self._note_retry, request),
            reraise=True,
        ):
            with attempt:
                completion = await self._try(request)
        return replace(completion, attempts=attempt.retry_state.attempt_number)

    async def _note_retry(self, request: Request, state: RetryCallState) -> None:
        """Keep what a try came to that is made again."""
        error = state.outcome.exception() if state.outcome else None
        if self._cache is not None and isinstance(error, SourceError):
            item = {"teacher": self.name, "request": request.digest, "try": error.number, "text": error.text}
            await self._cache.keep(Failure(STAGE, f"{RETRIED}{error.fault}", error.reason, item))

    async def _try(self, request: Request) -> Completion:
        cost = largest_cost(request)
        number = await self._budget.set_aside(cost)
        used, mine = 0, asyncio.current_task()
        try:
            if self._rate is not None:
                await self._rate.acquire()
            self._under_way.add(mine)
            used = cost
            completion = await self._in_time(request)
            used = completion.prompt_tokens + completion.completion_tokens
        except SourceError as error:
            used = cost if error.may_be_billed else 0
            error.number = number
            raise
        except RequestError:
            used = 0
            raise
        finally:
            await self._budget.book(number, used)
            self._under_way.discard(mine)
        return completion

    async def _in_time(self, request: Request) -> Completion:
        seconds = self._config.try_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._source.generate(request)
        except TimeoutError as error:
            raise SourceError(Fault.TIMEOUT, f"no completion within {seconds:g} seconds") from error

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next try: what the server asks for, else exponential backoff with full jitter."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, SourceError) and error.pause_seconds is not None:
            return min(error.pause_seconds, LONGEST_PAUSE_SECONDS)
        return wait_random_exponential(multiplier=self._config.first_pause_seconds, max=LONGEST_PAUSE_SECONDS)(state)


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
            with closing(ModelTeacher(source, config, loop, CompletionCache(lake) if lake else None)) as teacher:
                yield teacher
        finally:
            loop.wait(source.close())


def _source(config: TeacherConfig, loop: BackgroundLoop) -> Source:
    """The source that a configuration names; clients and engines are imported only where they are wanted."""
    if config.kind == "openai":
        from synth.teachers.openai_server import OpenAiSource

        return OpenAiSource(config)
    from synth.teachers.engine import EngineSource

    return EngineSource.start(config, loop)
