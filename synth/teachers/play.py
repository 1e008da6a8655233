"""A teacher acts in an environment: the agent loop and the environment are those of a policy's rollouts, the engine is a teacher.

The loop works in token ids and a teacher in messages, and a server shows no token ids. So a token is a character here: an id is a code
point, and every limit that the loop states in tokens is in characters. Two code points of Unicode's private use area mark who speaks;
they are removed from all texts, so no document can end a message. An action is an optional thought and one call in tags, as in
`rl.renderers.tags`; at most four tools, because servers take four stops. Runs of one task differ by their seeds, and are graded elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from rl.call_arguments import of_text, parameters_of, read_json_at
from rl.content import PlacedImage
from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.envs.base import Environment, EnvironmentFault, Observation, Resources, Step, fault_kind, find_environment, offered_tools
from rl.envs.config import EnvironmentPoolConfig
from rl.renderers.base import TRUNCATION_MARKER, Action, ActionTurn, ParseError, Result, Schema, Truncation, text_of
from rl.renderers.tool_parsers import read_json_calls
from rl.retrieval.indexes import Indexes
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits
from rl.supervised.config import TaughtRunsConfig
from synth.teachers.teacher import PASSING, Fault, Teacher, ask
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Failure, Message, Request, Task, Trajectory
from warehouse.replies import split_reasoning

log = logging.getLogger("flywheel")

USER, ASSISTANT = 0xE000, 0xE001
"""Marks of who speaks from here on."""
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
        """The question and the first observation as the user's first message; the system message describes the tools."""
        if not seen:
            return self._from_user(question)
        return self._from_user(f"{question}\n\n{seen if cut is None else _cut(seen, cut.max_tokens, cut)}")

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        """Results of tools as user messages of at most `cut.max_tokens` characters each, marks included."""
        return tuple(i for result in results for i in self._from_user(_cut(text_of(result), cut.max_tokens - 2, cut)))

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Read an optional thought and exactly one call."""
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
        """The text, with line breaks for marks."""
        return _MARKS.sub("\n", "".join(map(chr, token_ids))).strip()

    def closed(self, text: str) -> str:
        """The text with its closing tag, which servers leave out as a stop."""
        opened = [tool for tool in self._tools if text.count(f"<{tool}>") > text.count(f"</{tool}>")]
        return f"{text}</{opened[-1]}>" if opened else text

    def _tagged(self, text: str) -> Iterator[tuple[str, str]]:
        """Tool and content of each tagged call; a closing tag inside the JSON arguments ends nothing."""
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
    if len(text) <= most:
        return text
    room = most - len(TRUNCATION_MARKER)
    right = {"right": 0, "left": room, "middle": room // 2}[cut.side]
    return text[: room - right] + TRUNCATION_MARKER + text[len(text) - right :]


def messages_of(token_ids: Sequence[int], system: str) -> tuple[Message, ...]:
    """A context as messages."""
    messages = [Message("system", system)]
    for part in re.split(f"(?={chr(USER)})|(?={chr(ASSISTANT)})", "".join(map(chr, token_ids))):
        if text := _MARKS.sub("", part):
            messages.append(Message("user" if ord(part[0]) == USER else "assistant", text))
    return tuple(messages)


class TeacherEngine:
    """A teacher as the agent loop's engine; `max_tokens` bounds a completion in the teacher's own tokens.

    A completion that was cut off is an unreadable action, which the teacher reads as an observation. Any other failure is a fault and
    makes the trajectory invalid.
    """

    def __init__(self, teacher: Teacher, dialect: TextDialect, system: str, max_tokens: int, threads: Executor) -> None:
        self._teacher, self._dialect, self._system = teacher, dialect, system
        self._max_tokens, self._threads = max_tokens, threads

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """The teacher's next action as characters, with zeros as log-probabilities; the dialect refuses images."""
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
    """Whether a run that ended with this error may succeed another time, because only the teacher's reply was missing."""
    return error.partition(":")[0] in PASSING


@contextmanager
def _as_faults() -> Iterator[None]:
    try:
        yield
    except (EnvironmentFault, RequestError):
        raise
    except Exception as error:
        raise EnvironmentFault(f"{type(error).__name__}: {error}", fault_kind(error)) from error


class GuardedEnvironment:
    """An environment in this process whose exceptions are faults, except RequestError."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, task: Task, seed: int) -> Observation:
        """See `Environment`."""
        with _as_faults():
            return await self._environment.reset(task, seed)

    async def step(self, action: Action) -> Step:
        """See `Environment`."""
        with _as_faults():
            return await self._environment.step(action)

    async def close(self) -> None:
        """See `Environment`; a failure is only logged, because the trajectory is over."""
        try:
            await self._environment.close()
        except Exception as error:
            log.warning("an environment could not be closed: %s: %s", type(error).__name__, error)


def text_alone(trajectory: Trajectory) -> Trajectory:
    """The trajectory to store, without the characters and zeros in place of token ids and log-probabilities."""
    turns = tuple(replace(turn, action_ids=(), action_logprobs=(), observation_ids=()) for turn in trajectory.turns)
    return replace(trajectory, prompt_ids=(), turns=turns)


STAGE = "demonstration"
"""The stage of trajectories that a teacher made."""
MOST_TOOLS = 3
"""Maximum tools besides the answer: servers take four stops."""


def requests_for(tasks: Iterable[Task], teacher: str, config: TaughtRunsConfig, seed: int, wheel_turn: int) -> list[RolloutRequest]:
    """The runs to request from a teacher. Their ids follow from teacher, task and attempt, so stored runs are not repeated."""
    return [
        RolloutRequest(
            trajectory_id=f"taught-{digest([teacher, task.key, config.temperature, config.horizon, seed, attempt])}",
            task=task,
            policy=teacher,
            horizon=config.horizon,
            seed=seed_from("taught", seed, task.key, attempt),
            temperature=config.temperature,
            stage=STAGE,
            wheel_turn=wheel_turn,
            sample=attempt,
        )
        for task in tasks
        for attempt in range(config.attempts)
    ]


def play(
    requests: Sequence[RolloutRequest],
    teacher: Teacher,
    environments: EnvironmentPoolConfig,
    indexes: Indexes,
    config: TaughtRunsConfig,
    concurrency: int,
) -> list[Trajectory]:
    """A trajectory for each request, in their order, as text.

    Raises:
        RequestError: an environment is unavailable or has more tools than a teacher can be offered.
    """
    kinds = {name: _Stage(name, environments, indexes) for name in sorted({request.task.environment for request in requests})}
    return asyncio.run(_play(requests, teacher, kinds, config, concurrency))


async def _play(
    requests: Sequence[RolloutRequest], teacher: Teacher, kinds: Mapping[str, _Stage], config: TaughtRunsConfig, concurrency: int
) -> list[Trajectory]:
    places = asyncio.Semaphore(concurrency)
    limits = Limits(
        max_action_tokens=config.max_action_tokens * 8,  # characters here: the teacher's own tokens are bounded by its request
        max_observation_tokens=config.max_observation_characters,
        max_context_tokens=config.max_context_characters,
        temperature=config.temperature,
    )

    async def one(request: RolloutRequest, threads: ThreadPoolExecutor) -> Trajectory:
        kind = kinds[request.task.environment]
        engine = TeacherEngine(teacher, kind.dialect, kind.system, config.max_action_tokens, threads)
        async with places:
            environment = kind.open(request)
            try:
                return text_alone(await AgentLoop(engine, kind.dialect, limits).run(request, environment))
            finally:
                await environment.close()

    with ThreadPoolExecutor(concurrency) as threads:
        return list(await asyncio.gather(*(one(request, threads) for request in requests)))


class _Stage:
    """An environment as a teacher plays it: its factory, its tools, and the instructions."""

    def __init__(self, name: str, environments: EnvironmentPoolConfig, indexes: Indexes) -> None:
        kind = environments.kind(name)
        try:
            tools = offered_tools(name, environments, indexes.any)
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(
                f"the environment {name!r} has other tools for each task, and a teacher is told of all beforehand: {error}"
            ) from error
        names = [tool["function"]["name"] for tool in tools]
        if len(names) > MOST_TOOLS:
            raise RequestError(
                f"the environment {name!r} has {len(names)} tools, and a teacher can be offered {MOST_TOOLS}: leave some out."
            )
        self.dialect = TextDialect([*names, ANSWER])
        self.system = instructions(tools)
        self._factory = find_environment(kind.factory or name)
        self._indexes, self._options = indexes, kind.options

    def open(self, request: RolloutRequest) -> GuardedEnvironment:
        index = self._indexes.of(request.task)
        return GuardedEnvironment(self._factory(Resources(index, self._options, request.trajectory_id)))


def instructions(tools: Sequence[Schema]) -> str:
    """The system message: the form of an action, and each tool with its arguments."""
    lines = ["Solve the task by calling tools. Write a short thought in <think>...</think>, then exactly one action in its tag:"]
    for tool in tools:
        function = tool["function"]
        properties = function.get("parameters", {}).get("properties", {})
        given = "; ".join(f"{name}: {about.get('description', about.get('type', ''))}" for name, about in properties.items())
        form = "its text" if len(properties) == 1 else "a JSON object"
        lines.append(f"<{function['name']}>{form}</{function['name']}>: {function.get('description', '')} ({given})")
    lines.append(f"<{ANSWER}>the final answer, as short as can be</{ANSWER}>")
    lines.append("Take what you say from what the tools bring, one step at a time.")
    return "\n".join(lines)
