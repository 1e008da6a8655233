"""A teacher in the agent loop of `rl`: the loop works in token ids, a teacher in messages, and here the one becomes the other.

A teacher behind a server shows no token ids, so a token is a character here: an id is a code point, and every limit that the loop calls
tokens is one of characters. Two code points that no text may hold say who speaks, so nothing that a document spells can end a
message. An action is an optional thought and one call in tags, as in `rl.renderers.tags`; at most four tools: servers take four stops.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from rl.call_arguments import of_text, parameters_of, read_json_at
from rl.content import PlacedImage
from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.envs.base import Environment, EnvironmentFault, Observation, Step, fault_kind
from rl.renderers.base import TRUNCATION_MARKER, Action, ActionTurn, ParseError, Result, Schema, Truncation, text_of
from rl.renderers.tool_parsers import read_json_calls
from synth.teachers.teacher import PASSING, Fault, Teacher, ask
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Failure, Message, Request, Task, Trajectory
from warehouse.replies import split_reasoning

log = logging.getLogger("flywheel")

USER, ASSISTANT = 0xE000, 0xE001
"""Who speaks from here on: code points of Unicode's private use area."""
_MARKS = re.compile(f"[{chr(USER)}{chr(ASSISTANT)}]")


class TextDialect:
    """Actions in tags over characters."""

    stop_token_ids: tuple[int, ...] = ()

    def __init__(self, tools: Sequence[str]) -> None:
        self._opening = re.compile(rf"<({'|'.join(tools)})>\s*")
        self._tools = tuple(tools)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at which an action ends."""
        return tuple(f"</{tool}>" for tool in self._tools)

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Truncation | None = None) -> tuple[int, ...]:
        """The question, and what there is to see, as the user's first message; the tools stand in the system's."""
        if not seen:
            return self._from_user(question)
        return self._from_user(f"{question}\n\n{seen if cut is None else _cut(seen, cut.max_tokens, cut)}")

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        """What a tool brought as the user's next message of at most `cut.max_tokens` characters, marks included."""
        return tuple(i for result in results for i in self._from_user(_cut(text_of(result), cut.max_tokens - 2, cut)))

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Read a thought, if there is one, and exactly one call after it."""
        text = self.decode(action_ids)
        thought, rest = split_reasoning(text)
        calls = list(self._tagged(rest))
        if len(calls) == 1:
            tool, inside = calls[0]
            call = Action(tool, inside if tool == ANSWER else of_text(inside, parameters_of(tool, tools)))
            return ActionTurn((call,), thought or None)
        written = None if calls else read_json_calls(text, tools)
        if isinstance(written, ParseError) or (written is not None and len(written.calls) == 1):
            return written
        return ParseError(f"expected exactly one call of {', '.join(self._tools)} in tags, and there are {len(calls)}")

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of characters; the marks are shown as line breaks."""
        return _MARKS.sub("\n", "".join(map(chr, token_ids))).strip()

    def closed(self, text: str) -> str:
        """The text with the closing tag that it was stopped at, which servers leave out."""
        opened = [tool for tool in self._tools if text.count(f"<{tool}>") > text.count(f"</{tool}>")]
        return f"{text}</{opened[-1]}>" if opened else text

    def _tagged(self, text: str) -> Iterator[tuple[str, str]]:
        """Each call's tool and what stands in its tags; a closing tag inside the JSON of its arguments ends nothing."""
        place = 0
        while (opening := self._opening.search(text, place)) is not None:
            closing, inside = f"</{opening[1]}>", opening.end()
            try:
                value, end = read_json_at(text, inside)
                inside = end if isinstance(value, dict) and text[end:].lstrip().startswith(closing) else inside
            except (ValueError, RecursionError):
                pass  # plain text
            end = text.find(closing, inside)
            if end < 0:
                return
            yield opening[1], text[opening.end() : end].strip()
            place = end + len(closing)

    def _from_user(self, text: str) -> tuple[int, ...]:
        return (USER, *map(ord, _MARKS.sub("", text)), ASSISTANT)


def _cut(text: str, most: int, cut: Truncation) -> str:
    """At most `most` characters of `text`, with the marker where something was cut off."""
    if len(text) <= most:
        return text
    room = most - len(TRUNCATION_MARKER)
    right = {"right": 0, "left": room, "middle": room // 2}[cut.side]
    return text[: room - right] + TRUNCATION_MARKER + text[len(text) - right :]


def messages_of(token_ids: Sequence[int], system: str) -> tuple[Message, ...]:
    """A context as the conversation that it is."""
    messages = [Message("system", system)]
    for part in re.split(f"(?={chr(USER)})|(?={chr(ASSISTANT)})", "".join(map(chr, token_ids))):
        if text := _MARKS.sub("", part):
            messages.append(Message("user" if ord(part[0]) == USER else "assistant", text))
    return tuple(messages)


class TeacherEngine:
    """The part of an engine that the agent loop uses, over a teacher.

    `max_tokens` bounds a completion in the teacher's own tokens. A completion that was cut off is an action that cannot be read, and
    the teacher sees that as an observation; every other failure is a fault, and makes the trajectory invalid.
    """

    def __init__(self, teacher: Teacher, dialect: TextDialect, system: str, max_tokens: int, threads: Executor) -> None:
        self._teacher, self._dialect, self._system = teacher, dialect, system
        self._max_tokens, self._threads = max_tokens, threads

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """The teacher's next action as characters; there are no log-probabilities, and zeros stand in their place.

        There are no images either: the dialect refuses them.
        """
        messages = messages_of(prompt_ids, self._system)
        request = Request(messages, self._max_tokens, sampling.temperature, sampling.seed or 0, self._dialect.stops)
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, ask, self._teacher, request)
        if isinstance(reply, Failure):
            if reply.kind not in (Fault.CUT, Fault.EMPTY):
                raise EngineFault(f"{reply.kind}: {reply.reason}")
            text, stop = str(reply.item["text"]), GenerationStop.LENGTH
        else:
            text, stop = self._dialect.closed(reply.text), GenerationStop.STOP
        ids = tuple(map(ord, _MARKS.sub("", text)))[: sampling.max_tokens]
        return Generation(ids, (0.0,) * len(ids), stop, (0,) * len(ids))


def may_pass(error: str) -> bool:
    """Whether a run that ended with this error may get on another time, because the teacher had only left it without a reply."""
    return error.partition(":")[0] in PASSING


class GuardedEnvironment:
    """An environment in this process as the agent loop wants it: whatever it raises is a fault, but for what the asker must mend."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin a trajectory."""
        try:
            return await self._environment.reset(task, seed)
        except (EnvironmentFault, RequestError):
            raise
        except Exception as error:
            raise EnvironmentFault(f"{type(error).__name__}: {error}", fault_kind(error)) from error

    async def step(self, action: Action) -> Step:
        """Answer one action."""
        try:
            return await self._environment.step(action)
        except (EnvironmentFault, RequestError):
            raise
        except Exception as error:
            raise EnvironmentFault(f"{type(error).__name__}: {error}", fault_kind(error)) from error

    async def close(self) -> None:
        """Release what the trajectory holds; it is over by then, and a fault of this says nothing of it."""
        try:
            await self._environment.close()
        except Exception as error:
            log.warning("an environment could not be closed: %s: %s", type(error).__name__, error)


def text_alone(trajectory: Trajectory) -> Trajectory:
    """The trajectory as it is stored: characters are no token ids, and what stood for log-probabilities was none."""
    turns = tuple(replace(turn, action_ids=(), action_logprobs=(), observation_ids=()) for turn in trajectory.turns)
    return replace(trajectory, prompt_ids=(), turns=turns)
