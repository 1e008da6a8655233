"""Assign tasks of written worlds to a use: a suite, RL, RL with a simulated user, or SFT demonstrations.

The use follows from seed and task key alone, so a resumed run decides identically.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eval.graders.state import REFERENCE
from rl.envs.base import Resources
from rl.envs.tool_world.conversation import RESPOND, USER
from rl.envs.tool_world.environment import create
from rl.renderers.base import Action
from synth.parts import acted, asked, came, identity, offer
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse.digests import seed_from
from warehouse.records import ANSWER, Example, Task

DEMONSTRATION = "demonstration"
"""Split of demonstrated tasks, which RL does not draw."""
DONE = "Done."
"""Answer of a demonstration whose task asks for none."""
OPENING = (
    "You serve the users of a {domain}. Talk to the user by "
    + RESPOND
    + ", ask for what you need to know, do what they want with the other "
    "tools and nothing else, and tell them when it is done. Case {number}."
)
"""Question of a task that is a user's hidden goal."""


@dataclass(frozen=True, slots=True)
class SharedOut:
    """Tasks by use; `trained` are RL tasks, with and without a simulated user."""

    trained: list[Task] = field(default_factory=list)
    held_out: list[Task] = field(default_factory=list)
    demonstrated: list[Task] = field(default_factory=list)


def share_out(tasks: Sequence[Task], config: WrittenWorldsConfig, seed: int) -> SharedOut:
    shared = SharedOut()
    for task in tasks:
        chance = random.Random(seed_from("tool worlds", seed, task.key))
        if chance.random() < config.held_out:
            shared.held_out.append(replace(task, split=config.suite))
        elif chance.random() < config.demonstrated:
            shared.demonstrated.append(replace(task, split=DEMONSTRATION))
        elif chance.random() < config.conversations and task.provenance[REFERENCE] and not task.answers:
            shared.trained.append(task_of_user(task))
        else:
            shared.trained.append(task)
    return shared


def task_of_user(task: Task) -> Task:
    """The task as the hidden goal of a simulated user, whom the policy must ask."""
    number = task.key.rsplit("-", 1)[-1][:6]
    domain = str(task.provenance["world"]["domain"]).replace("_", " ")
    provenance = {**task.provenance, USER: {"goal": task.question}}
    return replace(task, key=f"{task.key}-user", question=OPENING.format(domain=domain, number=number), provenance=provenance)


def goal_in_words(task: Task) -> str:
    return str(task.provenance.get(USER, {}).get("goal", task.question))


def demonstrate(tasks: Sequence[Task], wheel_turn: int) -> list[Example]:
    """Play the tasks' recorded solutions and return them as examples."""

    async def play() -> list[Example]:
        return [await _demonstration(task, wheel_turn) for task in tasks]

    return asyncio.run(play())


async def _demonstration(task: Task, wheel_turn: int) -> Example:
    environment = create(Resources())
    tools = (await environment.reset(task, seed=0)).tools
    parts = asked(task.question)
    for call in task.provenance["calls"]:
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        step = await environment.step(Action(call["tool"], arguments))
        parts = (*parts, *acted(call["tool"], arguments), *came(step.observation))
    parts = (*parts, *acted(ANSWER, task.answers[0] if task.answers else DONE))
    await environment.close()
    return offer(Example(f"tool-world-{identity(task.key, parts=parts)}-{wheel_turn}", "trajectory", parts, (task.key,), wheel_turn), tools)
