"""A teacher that says what a test gave it: for checks whose subject is what a teacher may say, not how it is reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synth.teachers.teacher import Ending, Reply, completion_id
from warehouse.records import Completion, Failure, Request


class ScriptedTeacher:
    """Replies by a function of the request's last message; an exception's place is taken by a failure."""

    name = "scripted"

    def __init__(self, says: Callable[[str], str | None]) -> None:
        self._says = says
        self.asked: list[str] = []

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A completion for each text, a failure for each None."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        question = request.messages[-1].content
        self.asked.append(question)
        text = self._says(question)
        if text is None:
            return Failure("teacher", "timeout", "no answer in time", {"request": request.digest})
        return Completion(completion_id(self.name, request), self.name, request.content, text, Ending.STOP, 1, 1)
