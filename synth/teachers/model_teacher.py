"""A teacher model: cache, concurrency, rate limit, budget and retries around a source of completions.

A request is answered from the lake at no cost, or by waiting for an identical request in flight. Otherwise up to `attempts` tries are made:
reserve the cost, wait for the rate limit, generate, book the cost, store.

The maximum cost of a try is written to a ledger next to the lake beforehand, its actual cost afterwards. A try that was never booked,
because its process was killed, counts at its maximum, so budgets hold across processes. Completions are stored at once, for later stages
and after a crash; each retried try is a row of `failures`.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from synth.teachers.config import TeacherConfig
from synth.teachers.source import RETRYABLE, BackgroundLoop, Source, SourceError, largest_cost
from synth.teachers.teacher import STAGE, Fault, OracleTeacher, Reply, Teacher, completion_id, failed, judged
from warehouse.errors import RequestError
from warehouse.lake import Lake
from warehouse.records import Completion, Failure, Request, Task
from warehouse.schema import Record

log = logging.getLogger("flywheel")

SECONDS_PER_LINE = 30.0
"""Minimum seconds between two progress lines."""
LONGEST_PAUSE_SECONDS = 60.0
"""Maximum seconds between two tries of a request."""
RETRIED = "retried_"
"""Prefix of the failure kinds of retried tries."""


FILE = "spending.sqlite"
"""Ledger file in the lake's folder."""
_PATIENCE_SECONDS = 60.0
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS accounts (teacher TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tries (id INTEGER PRIMARY KEY AUTOINCREMENT, teacher TEXT NOT NULL, tokens INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Spent:
    requests: int = 0
    tokens: int = 0


class Ledger:
    """Cost account of one teacher, in the file at `path` (None: in memory); not thread-safe. A new account starts at `known`."""

    def __init__(self, path: Path | None, teacher: str, known: Spent) -> None:
        self._teacher = teacher
        place = ":memory:" if path is None else str(path)
        self._connection = sqlite3.connect(place, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection.executescript(_TABLES)
        self._connection.execute("INSERT OR IGNORE INTO accounts VALUES (?, ?, ?)", (teacher, known.requests, known.tokens))

    @property
    def spent(self) -> Spent:
        """Total so far; unbooked tries count at their maximum."""
        sql = "SELECT requests, tokens + (SELECT coalesce(sum(tokens), 0) FROM tries WHERE teacher = ?1) FROM accounts WHERE teacher = ?1"
        ((requests, tokens),) = self._connection.execute(sql, (self._teacher,)).fetchall()
        return Spent(int(requests), int(tokens))

    def begin(self, tokens: int, limits: tuple[int | None, int | None]) -> int | str:
        """Reserve a try of at most `tokens` and return its number, or the reason why `limits` (requests, tokens) forbid it."""
        max_requests, max_tokens = limits
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            spent = self.spent
            if max_requests is not None and spent.requests >= max_requests:
                return f"max_requests: all {max_requests} are used"
            if max_tokens is not None and spent.tokens + tokens > max_tokens:
                return f"max_tokens: {spent.tokens} of {max_tokens} are used, and this request may cost {tokens}"
            connection.execute("UPDATE accounts SET requests = requests + 1 WHERE teacher = ?", (self._teacher,))
            return int(connection.execute("INSERT INTO tries (teacher, tokens) VALUES (?, ?)", (self._teacher, tokens)).lastrowid or 0)

    def book(self, number: int, tokens: int) -> None:
        """Replace the reserved cost of a try by its actual cost."""
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM tries WHERE id = ?", (number,))
            connection.execute("UPDATE accounts SET tokens = tokens + ? WHERE teacher = ?", (tokens, self._teacher))

    def close(self) -> None:
        self._connection.close()


class Budget:
    """Limits over a ledger, for one event loop."""

    def __init__(self, max_requests: int | None, max_tokens: int | None, ledger: Ledger) -> None:
        self._limits, self._ledger = (max_requests, max_tokens), ledger
        self._open: set[int] = set()
        self._changed = asyncio.Condition()

    @property
    def spent(self) -> Spent:
        return self._ledger.spent

    async def set_aside(self, tokens: int) -> int:
        """Reserve a try and return its number; wait for open tries if only their reservations exceed the token limit.

        Raises:
            SourceError: a limit is reached.
        """
        async with self._changed:
            while isinstance(begun := self._ledger.begin(tokens, self._limits), str):
                if not self._open or begun.startswith("max_requests"):
                    raise SourceError(Fault.BUDGET, begun)
                await self._changed.wait()
            self._open.add(begun)
            return begun

    async def book(self, number: int, used: int) -> None:
        async with self._changed:
            self._ledger.book(number, used)
            self._open.discard(number)
            self._changed.notify_all()


class CompletionCache:
    """Completions of one lake; stored from one event loop, read from any thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._waiting: list[Record] = []
        self._committing = asyncio.Lock()

    def find(self, ids: Sequence[str]) -> dict[str, Completion]:
        """Stored completions among `ids`."""
        found = self._lake.read(Completion, "id IN (SELECT unnest(?))", [list(ids)]) if ids else []
        return {completion.id: completion for completion in found}

    @property
    def ledger(self) -> Path:
        return self._lake.place.folder / FILE

    async def keep(self, record: Record) -> None:
        """Store a completion or a try's failure; return once it is committed."""
        self._waiting.append(record)
        async with self._committing:
            batch, self._waiting = self._waiting, []
            if batch:
                await asyncio.to_thread(self._lake.add, batch)

    def spent(self, teacher: str) -> Spent:
        """Total cost of a teacher's stored completions."""
        sql = "SELECT coalesce(sum(attempts), 0), coalesce(sum(prompt_tokens + completion_tokens), 0) FROM completions WHERE teacher = ?"
        requests, tokens = (column[0].as_py() for column in self._lake.query(sql, [teacher]).columns)
        return Spent(int(requests), int(tokens))


class ModelTeacher:
    """A `Teacher` over a source that runs in `loop`; see `open_teacher`."""

    def __init__(self, source: Source, config: TeacherConfig, loop: BackgroundLoop, cache: CompletionCache | None = None) -> None:
        self._source, self._config, self._loop, self._cache = source, config, loop, cache
        self._asked: dict[str, asyncio.Task[Reply]] = {}
        self._stored: set[str] = set()
        self._under_way: set[asyncio.Task[Any] | None] = set()
        self._places = asyncio.Semaphore(config.places)
        rate = config.requests_per_minute
        self._rate = None if rate is None else AsyncLimiter(1, 60 / rate)
        known = cache.spent(source.name) if cache else Spent()
        self._ledger = Ledger(cache.ledger if cache else None, source.name, known)
        self._budget = Budget(config.max_requests, config.max_tokens, self._ledger)
        self._said, self._written, self._replies = time.monotonic(), 0, 0

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def spent(self) -> Spent:
        """Total cost of this teacher for this lake."""
        return self._budget.spent

    def close(self) -> None:
        self._ledger.close()

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """See `Teacher`. Stored completions are not requested again."""
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
        progress = asyncio.create_task(self._tell_progress())
        try:
            replies = await asyncio.gather(*tasks.values())
        except RequestError:  # tries under way end on their own and are kept; cancel all others
            for task in set(tasks.values()) - self._under_way:
                task.cancel()
            await asyncio.wait(tasks.values())
            raise
        except BaseException:
            for task in tasks.values():
                task.cancel()
            raise
        finally:
            progress.cancel()
        return found | dict(zip(tasks, replies, strict=True))

    async def _stored_meanwhile(self, requests: dict[str, Request]) -> dict[str, Reply]:
        keys = [key for key in requests if key in self._stored]
        if not keys or self._cache is None:
            return {}
        found = await asyncio.to_thread(self._cache.find, keys)
        return {key: judged(completion) for key, completion in found.items()}

    def _task(self, key: str, request: Request) -> asyncio.Task[Reply]:
        if key not in self._asked:
            task = self._asked[key] = asyncio.create_task(self._ask(request))
            task.add_done_callback(partial(self._end, key))
        return self._asked[key]

    async def _ask(self, request: Request) -> Reply:
        async with self._places:
            try:
                completion = await self._retried(request)
            except SourceError as error:
                return failed(error.fault, error.reason, self.name, request, error.text)
            if self._cache is not None:  # before its slot is freed, so at most the requests in flight can be lost
                await self._cache.keep(completion)
                self._stored.add(completion.id)
        return judged(completion)

    def _end(self, key: str, task: asyncio.Task[Reply]) -> None:
        self._asked.pop(key, None)
        reply = None if task.cancelled() or task.exception() else task.result()
        self._replies += 1
        self._written += reply.completion_tokens if isinstance(reply, Completion) else 0

    async def _tell_progress(self) -> None:
        """Log replies so far, replies to come, and tokens per second of finished replies, once per `SECONDS_PER_LINE`, until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_PER_LINE)
            if (waited := time.monotonic() - self._said) >= SECONDS_PER_LINE:
                log.info("%s  %d replies, %d left, %.0f tokens/s", self.name, self._replies, len(self._asked), self._written / waited)
                self._said, self._written = time.monotonic(), 0

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
        usd = self._config.usd(completion.prompt_tokens, completion.completion_tokens)
        return replace(completion, attempts=attempt.retry_state.attempt_number, usd=usd)

    async def _note_retry(self, request: Request, state: RetryCallState) -> None:
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
        """Seconds before the next try: the server's request, else exponential backoff with full jitter."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, SourceError) and error.pause_seconds is not None:
            return min(error.pause_seconds, LONGEST_PAUSE_SECONDS)
        return wait_random_exponential(multiplier=self._config.first_pause_seconds, max=LONGEST_PAUSE_SECONDS)(state)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, SourceError) and error.fault in RETRYABLE


@contextmanager
def open_teacher(config: TeacherConfig, lake: Lake | None = None, tasks: Iterable[Task] = ()) -> Iterator[Teacher]:
    """Open the teacher of a configuration; a context manager.

    Args:
        lake: stores and returns completions; None: nothing is cached and spending starts at zero.
        tasks: knowledge of the oracle.

    Raises:
        RequestError: no API key, or no model in the folder.
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
    if config.kind == "openai":
        from synth.teachers.openai_server import OpenAiSource

        return OpenAiSource(config)
    from synth.teachers.engine import EngineSource

    return EngineSource.start(config, loop)
