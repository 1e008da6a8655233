"""Contrastive decision records: where the oracle can tell which action leads on, and which does not.

An action is worth something by the path of the question: a search leads on if it brings the next document that the path has not read
yet, an answer if it is an accepted one. Whatever else it brings does not count, so another way to the same answer counts as none. Of
each such decision one action that leads on is listed with those that do not, at a random place, and named.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from eval.graders.answers import exact_match
from synth.demonstrations.oracle import paths_of, thought
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.has.decisions import Decision, DecisionRecord, Option, calls_in, option
from synth.parts import Parts, asked, calls_of, considered, identity, of_turn
from synth.questions.paths import Retrieve, Route, stating_documents
from warehouse.records import ANSWER, Document, Example, Task, Turn


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands on its question's path: the path and how many of its documents have been read, in their order."""

    task: Task
    path: Route
    read: int


class ActionOracle:
    """Tells which actions lead on; `retrieve` is the search that they would use, without it titles serve."""

    def __init__(self, graph: KnowledgeGraph, retrieve: Retrieve | None = None) -> None:
        self._graph = graph
        self._retrieve = retrieve

    def progress(self, task: Task, before: Sequence[Turn]) -> Progress | None:
        """Where a run stands after the turns `before`; None where the graph knows no path to the answer, or several, as to a set."""
        paths = paths_of(self._graph, task)
        if len(paths) != 1:
            return None
        (path,) = paths
        read = 0
        for turn in before:
            for tool, query in calls_of(turn):
                read += read < len(path) and tool == "search" and self._brings(path, read, query)
        return Progress(task, path, read)

    def leads_on(self, at: Progress, action: Option) -> bool:
        """Whether `action` leads on from there; of several calls one is enough."""
        return any(self._call_leads_on(at, tool, argument) for tool, argument in action.calls)

    def best(self, at: Progress) -> Option:
        """What the oracle would do."""
        think = thought(self._graph, at.path[at.read - 1]) if at.read else ""
        if at.read < len(at.path):
            return option(think, ("search", at.path[at.read].query))
        return option(think, ("answer", at.path[-1].value))

    def _call_leads_on(self, at: Progress, tool: str, argument: str) -> bool:
        if tool == ANSWER:
            return exact_match(argument, at.task.answers)
        return tool == "search" and at.read < len(at.path) and self._brings(at.path, at.read, argument)

    def _brings(self, path: Route, number: int, query: str) -> bool:
        document = self._find(query)
        return document is not None and document.id in stating_documents(self._graph, path[number])

    def _find(self, query: str) -> Document | None:
        return self._retrieve(query) if self._retrieve is not None else self._graph.titled(query)


def contrasts(
    oracle: ActionOracle, task: Task, record: DecisionRecord, count: int, rng: random.Random, wheel_turn: int = 1
) -> list[Example]:
    """At most `count` contrastive examples from the decisions of a record, at steps drawn at random, in their order."""
    found = [(decision, drawn) for decision in record.steps if (drawn := _contrast(oracle, task, decision, rng)) is not None]
    chosen = sorted(rng.sample(range(len(found)), min(count, len(found))))
    return [_example(record, *found[number], wheel_turn) for number in chosen]


def _contrast(oracle: ActionOracle, task: Task, decision: Decision, rng: random.Random) -> tuple[tuple[Option, ...], int] | None:
    """The options, one of which leads on, and its number; None where their worth is not known or all are worth the same.

    Where none of the decision's own leads on, the oracle's is added.
    """
    at = oracle.progress(task, decision.step.before)
    if at is None:
        return None
    worth = [oracle.leads_on(at, option) for option in decision.options]
    good = [option for option, leads in zip(decision.options, worth, strict=True) if leads] or _checked(oracle, at)
    bad = [option for option, leads in zip(decision.options, worth, strict=True) if not leads]
    if not good or not bad:
        return None
    options = [rng.choice(good), *bad]
    best = options[0]
    rng.shuffle(options)
    return tuple(options), options.index(best)


def _checked(oracle: ActionOracle, at: Progress) -> list[Option]:
    best = oracle.best(at)
    return [best] if oracle.leads_on(at, best) else []


def _example(record: DecisionRecord, decision: Decision, drawn: tuple[tuple[Option, ...], int], wheel_turn: int) -> Example:
    """The run up to the decision, which is not trained, then the options and the one that leads on."""
    options, number = drawn
    listed = " ".join(f"{place}. {option.text}" for place, option in enumerate(options, start=1))
    best = options[number]
    decided = considered(f"options: {listed} Only option {number + 1} leads on") + calls_in(best)
    parts = asked(record.question) + _history(decision.step.before) + decided
    identifier = f"contrast-{identity(record.trajectory_id, parts=parts, by_mask=True)}"
    return Example(identifier, "has_contrast", parts, (record.trajectory_id,), wheel_turn)


def _history(turns: Sequence[Turn]) -> Parts:
    """The actions before, of which nothing is learnt, and what came of them."""
    return tuple(part for turn in turns for part in of_turn(turn, learnt=False))
