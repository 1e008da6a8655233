"""Alternatives that a model proposes: a teacher that is asked for several at once, or a policy's own engine at a temperature.

Both are asked for all steps before the first decision is made, so that requests run beside each other. What cannot be read as an action
is a `Failure` with its text; what a model was not able to say, another proposer of the mixture has to make up for.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from rl.engines.base import EngineFault, Generation, Sampling
from rl.renderers.base import Dialect, ParseError
from synth.has.decisions import Option, Step, describe, option, shortened
from synth.teachers.teacher import Teacher, parted
from warehouse.digests import seed_from
from warehouse.records import Failure, Request, user

T = TypeVar("T")
StepKey = tuple[str, int]
"""Id of the trajectory and index of the turn."""

_ASK = """A task is being worked on with tools. Question: {question}

So far:
{history}

The next action was: {taken}

Write {count} other actions that could have been taken at this point, different from each other and from that one, each a line of JSON:
{{"think": "why", "tool": "the tool's name", "arguments": "its argument"}}
Write those lines and nothing else."""


class GenerationPool(Protocol):
    """The part of an `EnginePool` that is used here."""

    async def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation: ...

    def release(self, request_id: str) -> None: ...


class AsyncRunner(Protocol):
    """Whoever runs the event loop that a pool lives in: a `BackgroundLoop`, or `Rollouts`."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...


class _ModelProposer:
    """The actions that a model proposed for each step."""

    def __init__(self) -> None:
        self._found: dict[StepKey, list[Option]] = {}

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        """The first `count` of what the model proposed for `step`."""
        different = {found.text: found for found in self._found.get(step.key, ()) if found.text not in excluded}
        return list(different.values())[:count]


class TeacherProposer(_ModelProposer):
    """A teacher writes the alternatives of a step in one completion; `max_response_characters` bounds each response it is shown."""

    def __init__(
        self, teacher: Teacher, max_tokens: int = 512, temperature: float = 0.7, seed: int = 0, max_response_characters: int = 2_000
    ):
        super().__init__()
        self._teacher = teacher
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed
        self._shown = max_response_characters

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        """Asks for the alternatives of all steps; the failures are of bad completions and of lines that are no action."""
        failures: list[Failure] = []
        replies = self._teacher.complete([self._request(step, count) for step in steps])
        for step, reply in zip(steps, replies, strict=True):
            if isinstance(reply, Failure):
                failures.append(reply)
                continue
            self._found[step.key], unread = read_actions(reply.text)
            failures += [_unread("teacher", step, line) for line in unread]
        return failures

    def _request(self, step: Step, count: int) -> Request:
        lines = [line for turn in step.before for line in (describe(turn).text, f"-> {shortened(turn.observation, self._shown)}")]
        history = "\n".join(lines) or "nothing yet"
        asked = _ASK.format(question=step.question, history=history, taken=describe(step.turn).text, count=count)
        return user(asked, max_tokens=self._max_tokens, temperature=self._temperature, seed=seed_from("has teacher", self._seed, *step.key))


def read_actions(text: str) -> tuple[list[Option], list[str]]:
    """The actions in a completion, a line of JSON each, and the lines that are none; blank lines and code fences are passed over."""
    actions: list[Option] = []
    unread: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith("```"):
            continue
        action = _action(bare)
        if action is None:
            unread.append(bare)
        else:
            actions.append(action)
    return actions, unread


def _action(line: str) -> Option | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("tool"), str) or not row["tool"].strip():
        return None
    think = row.get("think")
    return option(think.strip() if isinstance(think, str) else "", (row["tool"].strip(), _argument(row.get("arguments", ""))))


def _argument(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class PolicyProposer(_ModelProposer):
    """A policy's engines sample each alternative from the step's own context, in token ids as they were.

    Foreign runs have no token ids, so it proposes nothing for them. `loop` runs the one that the engines live in; `concurrency` bounds
    the requests in flight.
    """

    def __init__(
        self, pool: GenerationPool, loop: AsyncRunner, dialect: Dialect, sampling: Sampling, seed: int = 0, concurrency: int = 64
    ) -> None:
        super().__init__()
        self._pool, self._loop, self._dialect, self._seed = pool, loop, dialect, seed
        self._sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids or dialect.stop_token_ids)
        self._places = asyncio.Semaphore(concurrency)

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        """Samples `count` actions for each step; the failures are of the engines' faults and of samples that are no action."""
        own = [step for step in steps if step.prompt_ids]
        foreign = dict.fromkeys(step.trajectory_id for step in steps if not step.prompt_ids)
        reason = "a policy cannot go on from a run without token ids"
        failures = [Failure("synth", "proposal_no_token_ids", reason, trajectory) for trajectory in foreign]
        return failures + self._loop.wait(self._sample_all(own, count))

    async def _sample_all(self, steps: Sequence[Step], count: int) -> list[Failure]:
        wanted = [(step, number) for step in steps for number in range(count)]
        sampled = await asyncio.gather(*(self._sample(step, number) for step, number in wanted))
        found, failures = parted(self._read(step, result) for (step, _), result in zip(wanted, sampled, strict=True))
        for key, action in found:
            self._found.setdefault(key, []).append(action)
        return failures

    async def _sample(self, step: Step, number: int) -> Generation | EngineFault:
        ids = [*step.prompt_ids, *(i for turn in step.before for i in (*turn.action_ids, *turn.observation_ids))]
        sampling = replace(self._sampling, seed=seed_from("has policy", self._seed, *step.key, number))
        request = f"has/{step.trajectory_id}/{step.turn.index}/{number}"
        async with self._places:
            try:
                return await self._pool.generate(request, ids, sampling)
            except EngineFault as fault:
                return fault
            finally:
                self._pool.release(request)

    def _read(self, step: Step, result: Generation | EngineFault) -> tuple[StepKey, Option] | Failure:
        if isinstance(result, EngineFault):
            return Failure("synth", "proposal_engine_fault", str(result), step.key)
        action = self._dialect.parse(result.token_ids)
        if isinstance(action, ParseError):
            return _unread("policy", step, self._dialect.decode(result.token_ids))
        return step.key, option(action.think or "", *((call.tool, call.arguments) for call in action.calls))


def _unread(proposer: str, step: Step, text: str) -> Failure:
    return Failure("synth", "proposal_unreadable", f"what the {proposer} proposed is no action", {"step": step.key, "text": text})
