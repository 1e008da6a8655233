"""Alternatives that a policy's own engine samples at a temperature.

It is asked for all steps before the first decision is made, so that requests run beside each other. What cannot be read as an action
is a `Failure` with its text; what the policy was not able to say, another proposer of the mixture has to make up for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import replace

from rl.engines.base import EngineFault, Generation, Sampling
from rl.renderers.base import Dialect, ParseError
from synth.generation import AsyncRunner, GenerationPool
from synth.has.decisions import Option, Step, describe, option
from synth.has.proposers import StepKey
from synth.teachers.teacher import parted
from warehouse.digests import seed_from
from warehouse.records import Failure


class PolicyProposer:
    """A policy's engines sample each alternative from the step's own context, in token ids as they were.

    Foreign runs have no token ids, so it proposes nothing for them. `loop` runs the one that the engines live in; `concurrency` bounds
    the requests in flight, and `spare_requests` those of a step beyond one an alternative. A sample that does what was done is the action
    that was taken, written anew; without one it stands as its own policy wrote it.
    """

    def __init__(
        self,
        pool: GenerationPool,
        loop: AsyncRunner,
        dialect: Dialect,
        sampling: Sampling,
        seed: int = 0,
        concurrency: int = 64,
        spare_requests: int = 0,
    ) -> None:
        self._pool, self._loop, self._dialect, self._seed = pool, loop, dialect, seed
        self._sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids or dialect.stop_token_ids)
        self._places, self._spare = asyncio.Semaphore(concurrency), spare_requests
        self._found: dict[StepKey, dict[str, Option]] = {}

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        """Samples `count` actions for each step, and others in the place of those that it has already or that are none.

        The failures are of the engines' faults and of samples that are no action.
        """
        own = [step for step in steps if step.prompt_ids]
        foreign = dict.fromkeys(step.trajectory_id for step in steps if not step.prompt_ids)
        reason = "a policy cannot go on from a run without token ids"
        failures = [Failure("synth", "proposal_no_token_ids", reason, trajectory) for trajectory in foreign]
        failures += self._loop.wait(self._sample_all([(step, number) for step in own for number in range(count)]))
        for number in range(count, count + self._spare):
            short = [step for step in own if len(self.propose(step, count, (), random.Random(0))) < count]
            failures += self._loop.wait(self._sample_all([(step, number) for step in short]))
        return failures

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        """The first `count` of what was sampled for `step` and is not what was done."""
        excluded = {*excluded, describe(step.turn).action}
        return [found for action, found in self._found.get(step.key, {}).items() if action not in excluded][:count]

    def taken(self, step: Step) -> Option | None:
        """What was done, as the policy says it; or as it was."""
        was = describe(step.turn)
        return self._found.get(step.key, {}).get(was.action, was)

    async def _sample_all(self, wanted: Sequence[tuple[Step, int]]) -> list[Failure]:
        sampled = await asyncio.gather(*(self._sample(step, number) for step, number in wanted))
        found, failures = parted(self._read(step, result) for (step, _), result in zip(wanted, sampled, strict=True))
        for key, action in found:
            self._found.setdefault(key, {}).setdefault(action.action, action)
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
            item = {"step": step.key, "text": self._dialect.decode(result.token_ids)}
            return Failure("synth", "proposal_unreadable", "what the policy proposed is no action", item)
        return step.key, option(action.think or "", *((call.tool, call.arguments) for call in action.calls))
