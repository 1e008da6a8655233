"""Run a teacher in an environment with the agent loop and environments of policy rollouts; the teacher is the engine.

The loop works in token ids, but servers expose none, so a token is a character here: an id is a code point, and token limits of the loop
count characters. Three code points of Unicode's private use area mark the speakers; they are removed from all texts, so no document can end
a message. A teacher calls tools in the format of its chat template or server; a message without a call is the answer, or is sent to the
simulated user if there is one. Runs of one task differ by seed; they are graded elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from rl.call_arguments import as_object, parameters_of
from rl.content import PlacedImage
from rl.engines.base import EngineFault, Generation, GenerationStop, Sampling
from rl.envs.base import Environment, EnvironmentFault, Observation, Resources, Step, fault_kind, find_environment
from rl.envs.config import EnvironmentPoolConfig
from rl.envs.tool_world.conversation import RESPOND
from rl.renderers.base import TRUNCATION_MARKER, Action, ActionTurn, NotExpressible, ParseError, Result, Schema, Truncation, text_of
from rl.renderers.tool_parsers import parse_json_in_tags, read_json_calls
from rl.retrieval.indexes import Indexes
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits
from rl.supervised.config import TaughtRunsConfig
from synth.teachers.teacher import PASSING, Fault, MeteredTeacher, Teacher, ask
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Failure, Message, Request, Task, Trajectory

log = logging.getLogger("flywheel")

USER, ASSISTANT, TOOL = 0xE000, 0xE001, 0xE002
"""Speaker marks."""
_ROLES = {USER: "user", ASSISTANT: "assistant", TOOL: "tool"}
_MARKS = re.compile(f"[{''.join(map(chr, _ROLES))}]")
INSTRUCTIONS = """Solve the task by calling tools, one step at a time, and take what you say from what they return. As soon as you know \
the answer, reply with it alone, as short as possible, without a call. Each reply is either one call or the answer, without explanations."""
REMINDER = "\n\nIf this shows the answer, reply with the answer alone. If not, search for something else."
"""Suffix of each search result. Without it, Qwen2.5-Coder-1.5B repeats its call until the last turn; without the last sentence of
`INSTRUCTIONS`, it explains its tools instead of calling them.
"""
NEXT = "\n\nIf all is done, say so without a call. If not, make the next call."
"""Suffix of each result of other tools."""


class TextDialect:
    """JSON calls over characters, for one run; `tools` are the run's initial tools."""

    stop_token_ids: tuple[int, ...] = ()
    tools: tuple[Schema, ...] = ()

    def prompt_ids(self, question: str, seen: str = "", tools: Sequence[Schema] = (), cut: Truncation | None = None) -> tuple[int, ...]:
        """Question and first observation as the first user message; the tools are sent with the requests."""
        self.tools = tuple(tools)
        shown = f"\n\n{seen if cut is None else _cut(seen, cut.max_tokens, cut)}" if seen else ""
        return (USER, *_ids(question + shown), ASSISTANT)

    def reply_ids(self, action_ids: Sequence[int], results: Sequence[Result], cut: Truncation) -> tuple[int, ...]:
        """Results of calls as tool messages of at most `cut.max_tokens` characters each, marks included; corrections as user messages."""
        turn = self._read(action_ids)
        speaker = TOOL if isinstance(turn, ActionTurn) and turn.calls[0].tool != ANSWER else USER
        shown = (i for result in results for i in (speaker, *_ids(_cut(text_of(result), cut.max_tokens - 2, cut))))
        return (*shown, ASSISTANT)

    def action_ids(self, turn: ActionTurn, tools: Sequence[Schema] = ()) -> tuple[int, ...]:
        """A thought and its calls, or the answer alone, as chat models write them. Raises NotExpressible if arguments are no object."""
        said = [call.arguments for call in turn.calls if call.tool == ANSWER]
        if not said:
            said = [*filter(None, [turn.think]), *(_written(call, tools) for call in turn.calls)]
        return tuple(_ids("\n".join(said)))

    def parse(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        """Parse an optional thought and calls, or the answer; with a simulated user, the answer is a message to them."""
        turn = self._read(action_ids, tools)
        if isinstance(turn, ParseError) or turn.calls[0].tool != ANSWER or not self.offers(RESPOND):
            return turn
        return replace(turn, calls=(Action(RESPOND, json.dumps({"message": turn.calls[0].arguments}, ensure_ascii=False)),))

    def offers(self, name: str) -> bool:
        return any(tool["function"]["name"] == name for tool in self.tools)

    def _read(self, action_ids: Sequence[int], tools: Sequence[Schema] = ()) -> ActionTurn | ParseError:
        text = self.decode(action_ids)
        return read_json_calls(text, tools or self.tools) or parse_json_in_tags(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text with marks replaced by line breaks."""
        return _MARKS.sub("\n", "".join(map(chr, token_ids))).strip()


def _ids(text: str) -> Iterator[int]:
    return map(ord, _MARKS.sub("", text))


def _written(call: Action, tools: Sequence[Schema]) -> str:
    try:
        arguments = as_object(call.arguments, parameters_of(call.tool, tools))
    except ValueError as error:
        raise NotExpressible(f"the arguments of {call.tool} are no object: {error}") from error
    return f"<tool_call>\n{json.dumps({'name': call.tool, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def _cut(text: str, most: int, cut: Truncation) -> str:
    if len(text) <= most:
        return text
    room = most - len(TRUNCATION_MARKER)
    right = {"right": 0, "left": room, "middle": room // 2}[cut.side]
    return text[: room - right] + TRUNCATION_MARKER + text[len(text) - right :]


def messages_of(token_ids: Sequence[int], system: str, reminder: str = "") -> tuple[Message, ...]:
    """Context as messages, with `reminder` at the end of each result."""
    messages = [Message("system", system)]
    for part in re.split(f"(?={_MARKS.pattern})", "".join(map(chr, token_ids))):
        if text := _MARKS.sub("", part):
            role = _ROLES[ord(part[0])]
            messages.append(Message(role, text + reminder * (role == "tool")))
    return tuple(messages)


class TeacherEngine:
    """A teacher as the agent loop's engine; `max_tokens` limits a completion in the teacher's own tokens.

    A truncated or empty completion becomes an unparsable action, to which the loop replies. Any other failure is a fault and makes the
    trajectory invalid.
    """

    def __init__(
        self,
        teacher: Teacher,
        dialect: TextDialect,
        system: str,
        max_tokens: int,
        threads: Executor,
        reminder: str = "",
    ) -> None:
        self._teacher, self._dialect, self._system, self._reminder = teacher, dialect, system, reminder
        self._max_tokens, self._threads = max_tokens, threads

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[PlacedImage] = ()
    ) -> Generation:
        """Next action of the teacher as characters, with zero log-probabilities; the dialect rejects images. Raises EngineFault."""
        reminder = self._reminder if self._dialect.offers("search") or not self._reminder else NEXT
        messages, tools = messages_of(prompt_ids, self._system, reminder), json.dumps(self._dialect.tools)
        request = Request(
            messages, self._max_tokens, sampling.temperature, sampling.seed or 0, tools=tools if self._dialect.tools else None
        )
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, ask, self._teacher, request)
        if isinstance(reply, Failure):
            if reply.kind not in (Fault.CUT, Fault.EMPTY):
                raise EngineFault(f"{reply.kind}: {reply.reason}")
            text, stop = str(reply.item["text"]), GenerationStop.LENGTH
        else:
            text, stop = reply.text, GenerationStop.STOP
        ids = tuple(_ids(text))[: sampling.max_tokens]
        return Generation(ids, (0.0,) * len(ids), stop, (0,) * len(ids))


def may_pass(error: str) -> bool:
    """Whether a run that ended with this error may succeed later, since only the teacher's reply was missing."""
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
    """Wraps an environment in this process: exceptions become EnvironmentFault, except RequestError."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def reset(self, task: Task, seed: int) -> Observation:
        with _as_faults():
            return await self._environment.reset(task, seed)

    async def step(self, action: Action) -> Step:
        with _as_faults():
            return await self._environment.step(action)

    async def close(self) -> None:
        """Close the environment; errors are logged only, since the trajectory is complete."""
        try:
            await self._environment.close()
        except Exception as error:
            log.warning("an environment could not be closed: %s: %s", type(error).__name__, error)


def text_alone(trajectory: Trajectory) -> Trajectory:
    """Trajectory without the placeholder token ids and log-probabilities, for storage."""
    turns = tuple(replace(turn, action_ids=(), action_logprobs=(), observation_ids=()) for turn in trajectory.turns)
    return replace(trajectory, prompt_ids=(), turns=turns)


STAGE = "demonstration"
COST = "teacher"
"""Provenance key of a teacher run: the teacher's counts, as in `MeteredTeacher.drain`."""


def requests_for(tasks: Iterable[Task], teacher: str, config: TaughtRunsConfig, seed: int, wheel_turn: int) -> list[RolloutRequest]:
    """Runs to request from a teacher, with ids derived from teacher, task, attempt and settings, so stored runs can be skipped."""
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
    """Play one trajectory per request, in order, stored as text. Raises RequestError if an environment is unavailable."""
    kinds = {name: _Stage(name, environments, indexes) for name in sorted({request.task.environment for request in requests})}
    return asyncio.run(_play(requests, teacher, kinds, config, concurrency))


async def _play(
    requests: Sequence[RolloutRequest], teacher: Teacher, kinds: Mapping[str, _Stage], config: TaughtRunsConfig, concurrency: int
) -> list[Trajectory]:
    places = asyncio.Semaphore(concurrency)
    limits = Limits(
        max_action_tokens=config.max_action_tokens * 8,  # in characters; the teacher's own tokens are limited by its request
        max_observation_tokens=config.max_observation_characters,
        max_context_tokens=config.max_context_characters,
        temperature=config.temperature,
    )

    async def one(request: RolloutRequest, threads: ThreadPoolExecutor) -> Trajectory:
        kind = kinds[request.task.environment]
        dialect, metered = TextDialect(), MeteredTeacher(teacher)
        engine = TeacherEngine(metered, dialect, INSTRUCTIONS, config.max_action_tokens, threads, REMINDER)
        async with places:
            environment = kind.open(request)
            try:
                run = text_alone(await AgentLoop(engine, dialect, limits).run(request, environment))
                return replace(run, provenance={**run.provenance, COST: metered.drain()})
            finally:
                await environment.close()

    with ThreadPoolExecutor(concurrency) as threads:
        return list(await asyncio.gather(*(one(request, threads) for request in requests)))


class _Stage:
    def __init__(self, name: str, environments: EnvironmentPoolConfig, indexes: Indexes) -> None:
        kind = environments.kind(name)
        self._factory = find_environment(kind.factory or name)
        self._indexes, self._options = indexes, kind.options

    def open(self, request: RolloutRequest) -> GuardedEnvironment:
        index = self._indexes.of(request.task)
        return GuardedEnvironment(self._factory(Resources(index, self._options, request.trajectory_id)))
