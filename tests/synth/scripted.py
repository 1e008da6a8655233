"""A teacher and a policy that say what a test gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from synth.teachers.teacher import Ending, Reply, completion_id
from warehouse.records import Completion, Failure, Request


class ScriptedTeacher:
    """Replies by a function of the request's last message, and keeps what it is asked."""

    name = "scripted"

    def __init__(self, says: Callable[[str], str | None]) -> None:
        self._says = says
        self.asked: list[str] = []
        self.requests: list[Request] = []

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A completion for each text, a failure for each None."""
        self.requests += requests
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        question = request.messages[-1].content
        self.asked.append(question)
        text = self._says(question)
        if text is None:
            return Failure("teacher", "timeout", "no answer in time", {"request": request.digest})
        return Completion(completion_id(self.name, request), self.name, request.content, text, Ending.STOP, 1, 1)


class ScriptedPolicy:
    """An engine pool that continues by a function of a request's number and prompt; None is an engine fault."""

    def __init__(self, says: Callable[[int, tuple[int, ...]], Sequence[int] | None]) -> None:
        self._says = says
        self.prompts: list[tuple[int, ...]] = []
        self.released: list[str] = []

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self.prompts.append(tuple(prompt_ids))
        ids = self._says(int(request_id.rsplit("/", 1)[1]), tuple(prompt_ids))
        if ids is None:
            raise EngineFault("gone")
        return Generation(tuple(ids), (0.0,) * len(ids), GenerationStop.STOP, (0,) * len(ids))

    def release(self, request_id: str) -> None:
        self.released.append(request_id)
