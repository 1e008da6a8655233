"""A teacher that is a model: cache, concurrency, rate, budget and retries around whatever generates the text.

stored before?              -> that completion, at no cost
being asked this moment?    -> wait for it
else up to `attempts` tries -> set the cost aside, wait for the rate, generate, book the cost, store
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from aiolimiter import AsyncLimiter
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from synth.teachers.background import BackgroundLoop
from synth.teachers.budget import Budget, Spent, largest_cost
from synth.teachers.cache import CompletionCache
from synth.teachers.config import TeacherConfig
from synth.teachers.source import PASSING, UNBILLED, Source, Unanswered
from synth.teachers.teacher import Fault, Reply, Request, completion_id, failed, judged
from warehouse.records import Completion


class ModelTeacher:
    """A `Teacher` over a source that lives in `loop`; opened by `synth.teachers.opening.open_teacher`."""

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
            except Unanswered as error:
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
        except Unanswered as error:
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
            raise Unanswered(Fault.TIMEOUT, f"no completion within {seconds:g} seconds") from error

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next try: what the server asks for, else exponential backoff with full jitter."""
        error = state.outcome.exception() if state.outcome else None
        longest = self._config.longest_pause_seconds
        if isinstance(error, Unanswered) and error.pause_seconds is not None:
            return min(error.pause_seconds, longest)
        return wait_random_exponential(multiplier=self._config.first_pause_seconds, max=longest)(state)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Unanswered) and error.fault in PASSING
