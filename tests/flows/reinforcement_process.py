"""For each line `HOME KILL` on standard input: a forked process that does the RL stage of HOME, and its exit status is printed.

The stage, its lake, its learner and its checkpoints are the real ones; in the place of engines and environments a tiny policy samples for
itself, request by request, so that what it samples follows from weights and seed alone. At request number KILL the process kills itself.
Forked from a process that has imported everything, so that a kill hits work and not the loading of libraries.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from flows.context import open_context
from flows.pipeline import run_attempt
from flows.stages.async_evaluation import STAGE as BESIDE
from flows.stages.reinforcement import reinforce
from rl.engines.base import PoolFigures, WeightProbe
from rl.env_pool.circuit_breaker import EnvironmentPoolFigures
from rl.policies.policy import load_policy
from rl.rollouts.admission import Admission
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import Rollouts, TrajectoryStream
from tests.rl.toy import FIRST_GOOD, OBSERVATION, turn
from warehouse.records import Call, Failure, StopReason, Trajectory, Turn


class ToyRollouts:
    """A tiny policy that answers rightly where most of its tokens are good ones; weights may be loaded between two turns."""

    is_open = True

    def __init__(self, kill: int) -> None:
        self.kill = kill
        self.paused = False
        self.numbers = itertools.count()
        self.admission = Admission(256)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def load_weights(self, path: Path, version: int) -> None:
        self.weights = load_policy(path)[0].eval(), version

    def probe(self, question: str, temperature: float) -> list[WeightProbe]:
        """Three tokens, sampled with the weights that were loaded last."""
        made = self.act(0, [2, 30, 3], (), seed=0, greedy=False)
        return [WeightProbe("toy", (2, 30, 3), made.action_ids, made.action_logprobs)]

    def pause(self) -> None:
        """The learner's turn: nothing may be asked for."""
        self.paused = True

    def resume(self) -> None:
        """The learner's turn is over."""
        self.paused = False

    def submit(self, requests: Sequence[RolloutRequest]) -> TrajectoryStream:
        return TrajectoryStream(self.loop, requests, self.admitted)

    def extend(self, stream: TrajectoryStream, requests: Sequence[RolloutRequest]) -> None:
        stream.extend(requests)

    def admit(self, most: int | None) -> None:
        self.loop.call_soon_threadsafe(self.admission.admit, most)

    def take_concurrency_metrics(self) -> dict[str, float]:
        """No engine is looked at."""
        return self.admission.take_metrics()

    def figures(self) -> PoolFigures:
        """There are no engines."""
        return PoolFigures(0.0, (), 0, 0, 0, 0, 0, 0)

    def environment_figures(self) -> EnvironmentPoolFigures:
        """Nor environments."""
        return EnvironmentPoolFigures(0, (), ())

    def drain_retries(self) -> list[Failure]:
        """Nothing is lost."""
        return []

    def close(self) -> None:
        """Nothing to end."""

    async def admitted(self, request: RolloutRequest) -> Trajectory:
        async with self.admission.places:
            return await self.one(request)

    async def one(self, request: RolloutRequest) -> Trajectory:
        assert not self.paused or request.stage == BESIDE, "sampled in the learner's turn"
        if next(self.numbers) == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        turns = list[Turn]()
        context = [2, 30 + request.seed % 7, 3]
        for index, observation in enumerate((OBSERVATION, ())):
            await asyncio.sleep(0.001 * (request.seed % 5))
            while self.paused:  # as vLLM has it: what is under way waits
                await asyncio.sleep(0.001)
            made = self.act(index, context, observation, request.seed, greedy=request.temperature == 0)
            context += [*made.action_ids, *observation]
            turns.append(made)
        good = sum(token >= FIRST_GOOD for each in turns for token in each.action_ids)
        answer = "yes" if good >= 2 else "no"
        turns[1] = replace(turns[1], tool="answer", arguments=answer, calls=(Call("answer", answer, None),))
        return Trajectory(
            request.trajectory_id, request.task.key, request.policy, request.stage, request.horizon, tuple(context[:3]), tuple(turns),
            StopReason.ANSWERED, None, None, request.seed, None, None, request.wheel_turn, request.step, request.suite, request.sample,
        )  # fmt: skip

    @torch.no_grad()
    def act(self, index: int, context: list[int], observation: Sequence[int], seed: int, greedy: bool) -> Turn:
        """Three tokens, by the weights of now."""
        model, version = self.weights
        chance, ids, logprobs = torch.Generator().manual_seed(seed + index), list[int](), list[float]()
        for _ in range(3):
            logs = model(torch.tensor([[*context, *ids]])).logits[0, -1].log_softmax(-1)
            ids.append(int(logs.argmax() if greedy else torch.multinomial(logs.exp(), 1, generator=chance)))
            logprobs.append(logs[ids[-1]].item())
        return replace(turn(index, ids, logprobs, observation), policy_version=version)


def work(home: Path, kill: int) -> None:
    torch.set_num_threads(1)
    with open_context(home) as context:
        context._rollouts = cast(Rollouts, ToyRollouts(kill))
        settings: dict[str, Any] = {}
        run_attempt(context.lake, "t1-rl", "rl", 1, settings, lambda run: reinforce(context, run, 1, "t1-sft"))


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        home, kill = line.split()
        child = os.fork()
        if child == 0:
            work(Path(home), int(kill))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
