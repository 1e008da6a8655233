"""Examples as chat messages in OpenAI's form, with arguments as objects: what chat templates render.

A message of the assistant holds its thought in `<think>` at the beginning of its content, and its calls as `tool_calls`; each result is a
message of the tool that names its call. `weight` says whether a message of the assistant is learned, as in OpenAI's fine-tuning files. A
sampled run is written from its turns, not from its tokens. What the form cannot hold raises `NotExpressible`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from rl.renderers.arguments import as_object, parameters_of
from rl.renderers.base import NotExpressible, Schema
from synth.parts import Parts, asked, of_turn
from warehouse.importers.messages import read_messages
from warehouse.importers.runs import MalformedRow
from warehouse.records import Example, Part, PartKind, Trajectory
from warehouse.replies import split_reasoning

Message = dict[str, Any]


def parts_of(example: Example, run: Trajectory | None, question: str | None) -> Parts:
    """The parts of an example; those of a sampled one are read off the turns of its `run`."""
    if all(part.kind is not PartKind.TOKENS for part in example.parts):
        return example.parts
    if run is None or question is None:
        raise NotExpressible("its tokens were sampled, and the lake does not have the run or its task")
    turns = [of_turn(turn) for turn in run.turns]
    return (*asked(question), *(part for turn in turns for part in turn))


def system_of(run: Trajectory) -> str | None:
    """The system prompt that an imported run began with, as its row has it."""
    row = run.provenance.get("row")
    for messages in [row.get(name) for name in ("messages", "conversations", "prompt", "traj")] if isinstance(row, dict) else []:
        try:
            read = read_messages(messages)
        except MalformedRow:
            continue
        if said := [message.text for message in takewhile(lambda message: message.role == "system", read)]:
            return "\n\n".join(said)
    return None


def messages_of(parts: Sequence[Part], tools: Sequence[Schema], system: str | None = None) -> list[Message]:
    """Parts as messages. Raises NotExpressible where the form cannot hold them."""
    writer = _Writer(tools, [] if system is None else [{"role": "system", "content": system}])
    for part in parts:
        writer.write(part)
    writer.end_action()
    if writer.waiting:
        raise NotExpressible("it ends with a call that has no result")
    if not any(message["role"] == "user" for message in writer.messages):
        raise NotExpressible("it has no question")
    return writer.messages


@dataclass(slots=True)
class _Action:
    """What the assistant says and does before anything comes back."""

    thoughts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    learned: bool = False


@dataclass(slots=True)
class _Writer:
    """The messages so far, the action that is being gathered, and the calls that wait for their results."""

    tools: Sequence[Schema]
    messages: list[Message]
    action: _Action | None = None
    waiting: list[tuple[str, str]] = field(default_factory=list)
    calls: int = 0

    def write(self, part: Part) -> None:
        match part.kind:
            case PartKind.QUESTION:
                self.end_action()
                self.messages.append({"role": "user", "content": part.text})
            case PartKind.RESULT:
                self.end_action()
                self._result(part.text)
            case PartKind.THOUGHT | PartKind.CALL | PartKind.ANSWER:
                self._act(part)
            case PartKind.TOOLS:
                pass
            case _:
                raise NotExpressible(f"a part of the kind {part.kind} is no message")

    def end_action(self) -> None:
        """The message of the action that is being gathered, if there is one."""
        action, self.action = self.action, None
        if action is None:
            return
        if len(action.answers) + bool(action.calls) > 1:
            raise NotExpressible("an answer stands in a message of its own")
        if self.waiting:
            raise NotExpressible("an action follows a call that has no result")
        message: Message = {"role": "assistant", "content": _content(action), "weight": int(action.learned)}
        for tool, written in action.calls:
            self.waiting.append((f"call{self.calls:05}", tool))  # nine letters and digits: what Mistral's templates ask for
            self.calls += 1
            function = {"name": tool, "arguments": _arguments(tool, written, self.tools)}
            message.setdefault("tool_calls", []).append({"id": self.waiting[-1][0], "type": "function", "function": function})
        self.messages.append(message)

    def _act(self, part: Part) -> None:
        begins = self.action is None or (part.kind is PartKind.THOUGHT and bool(self.action.calls or self.action.answers))
        if begins:
            self.end_action()
            self.action = _Action()
        assert self.action is not None
        self.action.learned |= part.learnt
        match part.kind:
            case PartKind.THOUGHT:
                self.action.thoughts.append(part.text)
            case PartKind.CALL:
                self.action.calls.append((part.tool, part.text))
            case _:
                self.action.answers.append(part.text)

    def _result(self, text: str) -> None:
        if self.waiting:
            identifier, tool = self.waiting.pop(0)
            self.messages.append({"role": "tool", "tool_call_id": identifier, "name": tool, "content": text})
        elif self.messages and self.messages[-1]["role"] == "user":  # what is shown beside the question
            self.messages[-1]["content"] += f"\n\n{text}"
        elif self.messages and self.messages[-1]["role"] == "assistant":  # what is said to an action that is no call
            self.messages.append({"role": "user", "content": text})
        else:
            raise NotExpressible("there are more results than calls")


def _content(action: _Action) -> str:
    """The text of an action; what was thought must be read off it again."""
    thought, answer = "\n".join(action.thoughts).strip(), "".join(action.answers).strip()
    if not action.calls and not action.answers:
        return thought
    content = f"<think>\n{thought}\n</think>\n\n{answer}" if thought else answer
    if split_reasoning(content) != (thought, answer):
        raise NotExpressible("a thought or an answer holds marks of reasoning")
    return content


def _arguments(tool: str, written: str, tools: Sequence[Schema]) -> dict[str, Any]:
    try:
        return as_object(written, parameters_of(tool, tools))
    except ValueError as error:
        raise NotExpressible(f"a call of {tool!r} whose arguments have no names: {error}"[:300]) from error
