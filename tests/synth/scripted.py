"""A teacher and a policy that say what a test gave them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from synth.teachers.readers import CONTRADICTS, FITS, KIND, SOUND, STATED
from synth.teachers.teacher import REPAIR, Ending, Reply, completion_id
from warehouse.records import Completion, Failure, Request


def labelled() -> dict[str, str]:
    """The right reply to each labelled case of the readers, by its prompt."""
    return {
        prompt.show(row): verdict(prompt.label_of(row["kind"]))
        for prompt in (CONTRADICTS, FITS, KIND, SOUND, STATED)
        for row in map(json.loads, prompt.labelled.read_text().splitlines())
    }


def asked_first(messages: Sequence[str]) -> str:
    """What was asked before any reply was rejected."""
    while len(messages) > 2 and messages[-1].startswith(REPAIR.partition("{")[0]):
        messages = messages[:-2]
    return messages[-1]


def calling(tool: str, thought: str = "", **arguments: Any) -> str:
    """A call as a chat model writes it."""
    return f"{thought}<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def verdict(said: str) -> str:
    """A reader's verdict as JSON."""
    return json.dumps({"verdict": said})


LABELLED = labelled()


class ScriptedTeacher:
    """Replies by a function of what a request asks, which it keeps; a failure for None. It judges labelled cases rightly."""

    name = "scripted"

    def __init__(self, says: Callable[[str], str | None]) -> None:
        self._says = says
        self.asked: list[str] = []
        self.requests: list[Request] = []

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """A completion for each text, a failure for each None."""
        return [self._reply(request) for request in requests]

    def _reply(self, request: Request) -> Reply:
        question = asked_first([message.content for message in request.messages])
        if question in LABELLED:
            return Completion(completion_id(self.name, request), self.name, request.content, LABELLED[question], Ending.STOP, 1, 1)
        self.requests.append(request)
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
