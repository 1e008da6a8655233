"""Where the alternatives of a decision come from: the graph, or other runs. None of what they propose is executed.

The oracle perturbs what the graph knows. Runs without a graph of their own (foreign ones) are given the actions of other runs: of those
on the same question, then on the nearest questions. Models propose in `teacher_proposer` and `policy_proposer`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from rl.retrieval.search import SearchIndex
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.has.decisions import Option, Step, describe, option, steps_of
from synth.parts import calls_of
from synth.questions.paths import Retrieve
from synth.questions.wording import spoken
from warehouse.records import Document, Failure, Task, Trajectory, Turn

StepKey = tuple[str, int]
"""Id of the trajectory and index of the turn."""


class Proposer(Protocol):
    """Proposes other actions for a step."""

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        """Receives all steps before the first proposal, so that a model is asked once; returns what went wrong."""
        ...

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        """Up to `count` options of different actions, none of them `excluded`; fewer where it knows no more."""
        ...

    def taken(self, step: Step) -> Option | None:
        """The action that was taken, as this proposer writes actions; None where it could not."""
        ...


class _AsItWas:
    """What proposers have in common that write actions as runs do."""

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        """Needs none."""
        return []

    def taken(self, step: Step) -> Option | None:
        """As the run has it."""
        return describe(step.turn)


class OracleProposer(_AsItWas):
    """The oracle's perturbation: going on with, or answering by, another fact of what was read; then searches for anything else.

    `retrieve` is the search that the trajectories used, to know which document a response showed; without it titles serve. Searches for
    anything else name entities that are `allowed`; None: any.
    """

    def __init__(self, graph: KnowledgeGraph, retrieve: Retrieve | None = None, allowed: Callable[[str], bool] | None = None) -> None:
        self._graph = graph
        self._retrieve = retrieve
        self._entities = [name for name in graph.subjects if allowed is None or allowed(name)]
        self._titles: dict[str, list[str]] = {}

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        """From the last document read, from those before it, then from anywhere in the graph."""
        chosen: dict[str, Option] = {}
        read = [title for turn in step.before for title in self._shown(turn)]
        for entity in dict.fromkeys(reversed(read)):
            known = {found.action: found for found in _after_reading(self._graph, entity)}
            pool = [found for action, found in known.items() if action not in excluded and action not in chosen]
            chosen |= {found.action: found for found in rng.sample(pool, min(count - len(chosen), len(pool)))}
        return [*chosen.values(), *_elsewhere(self._entities, {*excluded, *chosen}, count - len(chosen), rng)]

    def _shown(self, turn: Turn) -> list[str]:
        """The titles of the documents that the searches of a turn showed."""
        return [title for tool, query in calls_of(turn) if tool == "search" and query for title in self._found(query)]

    def _found(self, query: str) -> list[str]:
        if query not in self._titles:
            document = self._retrieve(query) if self._retrieve is not None else self._graph.titled(query)
            self._titles[query] = [document.title] if document is not None else []
        return self._titles[query]


def _after_reading(graph: KnowledgeGraph, entity: str) -> list[Option]:
    """What the oracle could do after the document of `entity`: go on with any of its facts, or answer with it."""
    thoughts = [(f"{spoken(fact.relation)} {fact.object}", fact.object) for fact in graph.about(entity) if fact.documents]
    return [option(thought, (tool, value)) for thought, value in thoughts for tool in ("search", "answer")]


def _elsewhere(entities: Sequence[str], excluded: set[str], count: int, rng: random.Random) -> list[Option]:
    """`count` searches for entities drawn from these, or as many as there are."""
    drawn = rng.sample(entities, min(len(entities), count + len(excluded)))
    return [found for found in (option("", ("search", entity)) for entity in drawn) if found.action not in excluded][:count]


class OthersProposer(_AsItWas):
    """Actions of other runs: on the same question, then on the questions nearest to it in words, then any."""

    NEAREST = 10
    """How many of the nearest questions are looked at."""

    def __init__(self, trajectories: Iterable[Trajectory], tasks: Mapping[str, Task]) -> None:
        self._actions: dict[str, list[tuple[str, Option]]] = {}
        self._questions = {key: task.question for key, task in tasks.items()}
        for trajectory in trajectories:
            if trajectory.task_key in tasks:
                found = [(trajectory.id, describe(step.turn)) for step in steps_of(trajectory, "")]
                self._actions.setdefault(trajectory.task_key, []).extend(found)
        self._keys = list(self._actions)
        documents = [Document(key, "", self._questions[key], "") for key in self._keys]
        self._index = SearchIndex(documents) if documents else None
        self._near: dict[str, list[str]] = {}

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        """From the nearest runs outward; never an action of the same run, which would show what comes later."""
        chosen: dict[str, Option] = {}
        for key in self._sources(step, rng):
            found = {o.action: o for owner, o in self._actions[key] if owner != step.trajectory_id and o.action not in excluded}
            pool = [o for action, o in found.items() if action not in chosen]
            chosen |= {o.action: o for o in rng.sample(pool, min(count - len(chosen), len(pool)))}
            if len(chosen) == count:
                break
        return list(chosen.values())

    def _sources(self, step: Step, rng: random.Random) -> Iterable[str]:
        """Keys of the questions to take actions from, the same one first."""
        if self._index is None:
            return
        if step.task_key not in self._near:
            hits = self._index.search(step.question, self.NEAREST + 1)
            self._near[step.task_key] = [hit.id for hit in hits if hit.id != step.task_key]
        near = self._near[step.task_key]
        yield from [step.task_key] * (step.task_key in self._actions) + near
        yield from rng.sample(self._keys, min(len(self._keys), 100))
