"""The graph's own agent: it needs no model, because the formula of a task and the graph give every step of a trajectory.

For a task it says what to search for, which document answers, which relation to follow there and what the final answer is. It
thinks after reading a document: the relation that mattered and what it gave ("employer Blue River").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from eval.graders.answers import join_items
from eval.graders.verifiers import asks_for_set
from rl.retrieval.search import passage
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import Parts, acted, asked, came
from synth.questions.paths import Hop, Retrieve, Route, find_document, stating_documents, trace
from synth.questions.wording import spoken
from warehouse.records import ANSWER, Document, Task

Show = Callable[[Document], str]
"""How an observation shows a document."""


@dataclass(frozen=True, slots=True)
class OracleStep:
    """One search: the thought before it (empty before the first), the query, and the document that comes back.

    `wanted` is what the document is read for: a relation in words, or the kind of thing that it is about.
    """

    think: str
    query: str
    document: Document
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class Solution:
    """The steps to an answer, the thought after the last document, and the answer."""

    steps: tuple[OracleStep, ...]
    think: str
    answer: str


def path_of(graph: KnowledgeGraph, task: Task) -> Route | None:
    """The path through the graph that a task asks for; None where its formula is of another kind, or its answer not proven."""
    return trace(graph, task.formula, task.answers[0]) if task.formula and task.answers else None


def paths_of(graph: KnowledgeGraph, task: Task) -> tuple[Route, ...]:
    """The paths to all that a task asks for: one, or one to each answer of a set. None at all where `path_of` would miss one of them."""
    wanted = [replace(task, answers=(answer,)) for answer in task.answers] if asks_for_set(task) else [task]
    found = [path for path in (path_of(graph, each) for each in wanted) if path is not None]
    return tuple(found) if len(found) == len(wanted) else ()


def solution_of(graph: KnowledgeGraph, task: Task, retrieve: Retrieve | None = None) -> Solution | None:
    """How the oracle solves `task`; None where the graph and its documents do not carry it."""
    paths = paths_of(graph, task)
    return walk(graph, paths, retrieve) if paths else None


def walk(graph: KnowledgeGraph, paths: Sequence[Route], retrieve: Retrieve | None = None) -> Solution | None:
    """The steps along `paths`, which are those of one formula, and the ends of all of them; None where a document is missing.

    What several paths read at the same place is read once, and all that it gives is thought of together.
    """
    places: dict[tuple[int, Hop], list[Hop]] = {}
    for path in paths:
        for number, hop in enumerate(path):
            given = places.setdefault((number, replace(hop, value="")), [])
            if hop not in given:
                given.append(hop)
    steps: list[OracleStep] = []
    think = ""
    for hops in places.values():
        documents = [read(graph, hop, retrieve) for hop in hops]
        if documents[0] is None or any(document != documents[0] for document in documents):
            return None
        steps.append(OracleStep(think, hops[0].query, documents[0], wanted(graph, hops[0])))
        think = thought(graph, *hops)
    return Solution(tuple(steps), think, join_items(list(dict.fromkeys(path[-1].value for path in paths))))


def read(graph: KnowledgeGraph, hop: Hop, retrieve: Retrieve | None) -> Document | None:
    """The document that a hop reads: what the search finds or, without a search, the first that states what is needed."""
    if retrieve is not None or not hop.anchors:
        return find_document(graph, hop, retrieve)
    stating = sorted(stating_documents(graph, hop))
    return graph.documents[stating[0]] if stating else None


def thought(graph: KnowledgeGraph, hop: Hop, *more: Hop) -> str:
    """What the oracle thinks after the document of `hop`: the relation and what it gave, or the kind of thing it found.

    `more` are hops that follow the same relation in the same document, to other values.
    """
    return f"{wanted(graph, hop)} {join_items([each.value for each in (hop, *more)])}"


def wanted(graph: KnowledgeGraph, hop: Hop) -> str:
    """What a hop reads its document for: the relation that it follows, or the kind of thing that it looks for."""
    return spoken(hop.relation or graph.types.get(hop.entity, "found"))


def transcript(question: str, solution: Solution, show: Show = passage) -> Parts:
    """The whole trajectory; what is learnt of it is what the policy says and does."""
    parts = asked(question)
    for step in solution.steps:
        parts += acted("search", step.query, step.think) + came(show(step.document))
    return parts + acted(ANSWER, solution.answer, solution.think)
