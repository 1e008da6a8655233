"""A teacher plays the environment: it is told of the tools, works on a task by calling them, and leaves a trajectory to learn from.

The loop and the environment are those of a policy's rollouts; only the engine is a teacher (`conversation.py`). Several runs of a task
differ by their seeds. Nothing is judged here: that is the business of the task's verifier, and which of the runs are learnt from is that of
`demonstrations/runs.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rl.envs.base import Resources, find_environment, offered_tools
from rl.envs.config import EnvironmentPoolConfig
from rl.renderers.base import Schema
from rl.retrieval.indexes import Indexes
from rl.rollouts.agent_loop import AgentLoop, RolloutRequest
from rl.rollouts.config import Limits
from rl.supervised.config import TaughtRunsConfig
from synth.teachers.conversation import GuardedEnvironment, TeacherEngine, TextDialect, text_alone
from synth.teachers.teacher import Teacher
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Task, Trajectory

STAGE = "demonstration"
"""The stage of trajectories that a teacher made."""
MOST_TOOLS = 3
"""Tools beside the answer: servers take four texts to stop at."""


def requests_for(tasks: Iterable[Task], teacher: str, config: TaughtRunsConfig, seed: int, wheel_turn: int) -> list[RolloutRequest]:
    """The runs that are wanted of a teacher. Their ids follow from teacher, task and attempt: what is stored is not asked again."""
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
    """A trajectory for each request, in their order, as text: a teacher shows no token ids.

    Raises:
        RequestError: an environment cannot be had, or has more tools than a teacher can be offered; or it cannot be reached at all.
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
    """An environment as a teacher plays it: what makes it, its tools, and what the teacher is told of them."""

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
        """An environment for one run."""
        index = self._indexes.of(request.task)
        return GuardedEnvironment(self._factory(Resources(index, self._options, request.trajectory_id)))


def instructions(tools: Sequence[Schema]) -> str:
    """What a teacher is told: how an action is written, and each tool with its arguments."""
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
