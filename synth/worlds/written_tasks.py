"""What becomes of the tasks of written worlds: for a suite, for RL, for a user to have as their goal, or for SFT as a demonstration.

Which one a task becomes follows from its key alone, so that work which is begun again decides the same.
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
from rl.envs.tool_world.environment import ToolWorldOptions, create
from rl.envs.tool_world.limits import CodeLimits
from rl.renderers.base import Action
from synth.parts import acted, asked, came, identity, offer
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse.digests import seed_from
from warehouse.records import ANSWER, Example, Task

DEMONSTRATION = "demonstration"
"""The split of tasks that are demonstrated: RL does not draw them."""
DONE = "Done."
"""What a demonstration answers where nothing is asked for."""
OPENING = (
    "You serve the users of a {domain}. Talk to the user by "
    + RESPOND
    + ", ask for what you need to know, do what they want with the other "
    "tools and nothing else, and tell them when it is done. Case {number}."
)
"""What a policy is told of a task that a user has as their goal."""


@dataclass(frozen=True, slots=True)
class SharedOut:
    """Tasks by what they are for. `trained` are RL's, those with a user among them."""

    trained: list[Task] = field(default_factory=list)
    held_out: list[Task] = field(default_factory=list)
    demonstrated: list[Task] = field(default_factory=list)


def share_out(tasks: Sequence[Task], config: WrittenWorldsConfig, seed: int) -> SharedOut:
    """Each task for one thing, by the shares that the configuration wants."""
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
    """The task as the hidden goal of a user, whom the policy has to ask for it."""
    number = task.key.rsplit("-", 1)[-1][:6]
    domain = str(task.provenance["world"]["domain"]).replace("_", " ")
    provenance = {**task.provenance, USER: {"goal": task.question}}
    return replace(task, key=f"{task.key}-user", question=OPENING.format(domain=domain, number=number), provenance=provenance)


def goal_in_words(task: Task) -> str:
    """What is wanted of a task, whether it says so itself or its user does."""
    return str(task.provenance.get(USER, {}).get("goal", task.question))


def demonstrate(tasks: Sequence[Task], limits: CodeLimits, wheel_turn: int) -> list[Example]:
    """The solutions of tasks as examples, each played as it is written down."""
    return asyncio.run(_demonstrate(tasks, limits, wheel_turn))


async def _demonstrate(tasks: Sequence[Task], limits: CodeLimits, wheel_turn: int) -> list[Example]:
    options = ToolWorldOptions(code=limits).model_dump(exclude_none=True)
    return list(await asyncio.gather(*(_demonstration(task, options, wheel_turn) for task in tasks)))


async def _demonstration(task: Task, options: dict[str, object], wheel_turn: int) -> Example:
    environment = create(Resources(options=options))
    tools = (await environment.reset(task, seed=0)).tools
    parts = asked(task.question)
    for call in task.provenance["calls"]:
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        step = await environment.step(Action(call["tool"], arguments))
        parts = (*parts, *acted(call["tool"], arguments), *came(step.observation))
    parts = (*parts, *acted(ANSWER, task.answers[0] if task.answers else DONE))
    await environment.close()
    return offer(Example(f"tool-world-{identity(task.key, parts=parts)}-{wheel_turn}", "trajectory", parts, (task.key,), wheel_turn), tools)
