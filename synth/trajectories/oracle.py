"""The graph's own teacher: it needs no model, because the formula of a task and the graph give every step.

For a task it says what to search for, which document answers, which relation to follow there and what the final answer is. It
thinks after reading a document: the relation that mattered and what it gave ("employer Blue River").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl.retrieval.search import passage
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.paths import Hop, Retrieve, Route, find_document, stating_documents, trace
from synth.questions.wording import spoken
from synth.trajectories.transcripts import action, observation, prompt
from warehouse.records import Document, Task

Show = Callable[[Document], str]
"""How an observation shows a document."""

Segments = tuple[tuple[str, bool], ...]
"""Pieces of text, each with whether the policy wrote it."""


@dataclass(frozen=True, slots=True)
class OracleStep:
    """One search: the thought before it (empty before the first), the query, and the document that comes back."""

    think: str
    query: str
    document: Document


@dataclass(frozen=True, slots=True)
class Solution:
    """The steps to an answer, the thought after the last document, and the answer."""

    steps: tuple[OracleStep, ...]
    think: str
    answer: str


def path_of(graph: KnowledgeGraph, task: Task) -> Route | None:
    """The path through the graph that a task asks for; None where its formula is of another kind, or its answer not proven."""
    return trace(graph, task.formula, task.answers[0]) if task.formula and task.answers else None


def solution_of(graph: KnowledgeGraph, task: Task, retrieve: Retrieve | None = None) -> Solution | None:
    """How the oracle solves `task`; None where the graph and its documents do not carry it."""
    path = path_of(graph, task)
    return walk(graph, path, retrieve) if path else None


def walk(graph: KnowledgeGraph, path: Route, retrieve: Retrieve | None = None) -> Solution | None:
    """The steps along `path`; None where a document is missing."""
    steps: list[OracleStep] = []
    think = ""
    for hop in path:
        document = read(graph, hop, retrieve)
        if document is None:
            return None
        steps.append(OracleStep(think, hop.query, document))
        think = thought(graph, hop)
    return Solution(tuple(steps), think, path[-1].value)


def read(graph: KnowledgeGraph, hop: Hop, retrieve: Retrieve | None) -> Document | None:
    """The document that a hop reads: what the search finds or, without a search, the first that states what is needed."""
    if retrieve is not None or not hop.anchors:
        return find_document(graph, hop, retrieve)
    stating = sorted(stating_documents(graph, hop))
    return graph.documents[stating[0]] if stating else None


def thought(graph: KnowledgeGraph, hop: Hop) -> str:
    """What the oracle thinks after the document of `hop`: the relation and what it gave, or the kind of thing it found."""
    return f"{spoken(hop.relation or graph.types.get(hop.entity, 'found'))} {hop.value}"


def transcript(question: str, solution: Solution, show: Show = passage) -> Segments:
    """The whole trajectory as segments: the question and the observations are not the policy's."""
    segments = [(prompt(question), False)]
    for step in solution.steps:
        segments.append((action("search", step.query, step.think), True))
        segments.append((observation(show(step.document)), False))
    segments.append((action("answer", solution.answer, solution.think), True))
    return tuple(segments)
