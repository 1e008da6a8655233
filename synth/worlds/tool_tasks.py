"""Tasks of tool worlds from a seed: goals drawn at random, carried out, and proven by carrying them out again.

A task that fails its proof is not made: the calls alone, in a fresh world, must make exactly the changes that the task names as its
reference. A goal whose solution is not the only one (two flights at the same price) is not set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from pydantic import Field, PositiveInt

from eval.graders.state import REFERENCE, changes
from rl.envs.tool_world.environment import World, find_world
from rl.tools import ToolError, ToolMiss
from synth.worlds.tool_goals import GOALS, Goal, TaskDraft, Unfit
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import Task
from warehouse.settings import Section

ENVIRONMENT = "tool_world"
VERIFIER = "state"
TRIES = 60
"""Worlds that may be tried for one task before the request is refused."""


class ToolWorldConfig(Section):
    """Which tasks are made."""

    domains: tuple[str, ...] = tuple(GOALS)
    size: int = Field(default=12, ge=4)
    """About how many records the largest tables of a world hold."""
    max_goals: PositiveInt = 3
    """Goals of one task, from 1 to this."""
    asked_share: float = Field(default=0.2, ge=0, le=1)
    """Share of the tasks that ask for an answer and want nothing changed."""


def generate_tasks(count: int, seed: int, config: ToolWorldConfig | None = None, split: str = "train") -> Iterator[Task]:
    """`count` tasks, no two of the same content; the same for the same seed.

    Raises:
        RequestError: where a domain is unknown, or its worlds are too small for such tasks.
    """
    config = config or ToolWorldConfig()
    unknown = sorted(set(config.domains) - GOALS.keys())
    if unknown:
        raise RequestError(f"no tasks can be made in {', '.join(unknown)}; there are {', '.join(GOALS)}.")
    seen: set[str] = set()
    for number in range(count):
        domain = config.domains[number % len(config.domains)]
        for attempt in range(TRIES):
            task = _attempt(domain, seed_from(seed, split, number, attempt), config, split)
            if task is not None and task.key not in seen:
                seen.add(task.key)
                yield task
                break
        else:
            raise RequestError(f"no task could be made in {domain} in {TRIES} worlds of size {config.size}: give a larger size.")


def replay(world: World, calls: Sequence[dict[str, Any]]) -> dict[str, object]:
    """The changes that calls make in a world, which they change."""
    before = deepcopy(world.state)
    for call in calls:
        world.call(call["tool"], call["arguments"])
    return changes(before, world.state)


def _attempt(domain: str, seed: int, config: ToolWorldConfig, split: str) -> Task | None:
    """A task in the world of `seed`, or None where that world does not suit."""
    kind = find_world(domain, {})
    draft = TaskDraft(kind(seed, config.size), Random(seed_from(seed, "goals")))
    before, began = draft.world.digest, deepcopy(draft.world.state)
    try:
        for goal in _goals(draft.rng, GOALS[domain], config):
            draft.sentences.append(goal.act(draft))
    except (Unfit, ToolError, ToolMiss):
        return None
    reference = changes(began, draft.world.state)
    proven = replay(kind(seed, config.size), draft.calls) == reference and bool(reference) == (draft.answer is None)
    if not proven:
        return None
    return _task(domain, seed, config.size, before, draft, reference, split)


def _goals(rng: Random, goals: Sequence[Goal], config: ToolWorldConfig) -> list[Goal]:
    """Goals in an order in which each has what it needs: a question alone, or things to be done."""
    if rng.random() < config.asked_share:
        return [rng.choice([goal for goal in goals if goal.asks])]
    chosen: list[Goal] = []
    for _ in range(rng.randint(1, config.max_goals)):
        given = {goal.gives for goal in chosen if goal.gives}
        fitting = [goal for goal in goals if not goal.asks and goal not in chosen and (goal.needs is None or goal.needs in given)]
        # A goal that needs what the last one gave comes right after it: only there does «that booking» mean one thing.
        joined = [goal for goal in fitting if chosen and goal.needs is not None and goal.needs == chosen[-1].gives]
        free = [goal for goal in fitting if goal.needs is None]
        if not joined and not free:
            break
        chosen.append(rng.choice(joined or free))
    return chosen


def _task(domain: str, seed: int, size: int, world_digest: str, draft: TaskDraft, reference: dict[str, object], split: str) -> Task:
    question = " ".join(draft.sentences)
    provenance = {
        "world": {"domain": domain, "seed": seed, "size": size, "digest": world_digest},
        "verifier": VERIFIER,
        REFERENCE: reference,
        "calls": draft.calls,
    }
    answers = () if draft.answer is None else (draft.answer,)
    key = f"tool-world-{domain}-{digest([question, world_digest, reference, answers])}"
    return Task(
        key,
        ENVIRONMENT,
        question,
        answers,
        split=split,
        hops=len(draft.calls),
        constraints=len(draft.sentences),
        provenance=provenance,
    )
