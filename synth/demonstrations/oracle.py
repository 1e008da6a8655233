"""Oracle agent: derives trajectories from a task's formula and the graph, without a model.

The oracle knows each query, the document that answers it, the relation to follow and the final answer. After each document it thinks of the
relation and its value ("employer Blue River"). With an imperfect search it reads further pages or rephrases until the right document
appears (not a namesake, not a stub without the fact); after a failed search it thinks of what was missing ("no employer").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from eval.graders.answers import join_items
from eval.graders.verifiers import asks_for_set
from rl.retrieval.search import Hits, passage, shown
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import Parts, acted, asked, came
from synth.questions.paths import Hop, Retrieve, Route, find_document, stating_documents, trace
from synth.questions.wording import spoken
from warehouse.records import ANSWER, Document, Task


@dataclass(frozen=True, slots=True)
class OracleStep:
    """One search: preceding thought (empty at first), query, returned document, and the relation or entity type it is read for."""

    think: str
    query: str
    document: Document
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class Solution:
    steps: tuple[OracleStep, ...]
    think: str
    answer: str


def path_of(graph: KnowledgeGraph, task: Task) -> Route | None:
    """Path asked for by a task; None if its formula is no path or its answer is not proven."""
    return trace(graph, task.formula, task.answers[0]) if task.formula and task.answers else None


def paths_of(graph: KnowledgeGraph, task: Task) -> tuple[Route, ...]:
    """One path, or one per answer of a set; empty if any is missing."""
    wanted = [replace(task, answers=(answer,)) for answer in task.answers] if asks_for_set(task) else [task]
    found = [path for path in (path_of(graph, each) for each in wanted) if path is not None]
    return tuple(found) if len(found) == len(wanted) else ()


def solution_of(graph: KnowledgeGraph, task: Task, retrieve: Retrieve | None = None) -> Solution | None:
    """Oracle solution of `task`; None if graph and documents do not support it."""
    paths = paths_of(graph, task)
    return walk(graph, paths, retrieve) if paths else None


def walk(graph: KnowledgeGraph, paths: Sequence[Route], retrieve: Retrieve | None = None) -> Solution | None:
    """Steps along all `paths` of one formula; None if a document is missing. A read shared by several paths occurs once."""
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
    """Document read at a hop: the search's top hit or, without a search, the first document that states the required facts."""
    if retrieve is not None or not hop.anchors:
        return find_document(graph, hop, retrieve)
    stating = sorted(stating_documents(graph, hop))
    return graph.documents[stating[0]] if stating else None


def thought(graph: KnowledgeGraph, hop: Hop, *more: Hop) -> str:
    """Thought after the document of `hop`: the relation and its value; `more` are hops to other values of the same relation."""
    return f"{wanted(graph, hop)} {join_items([each.value for each in (hop, *more)])}"


def wanted(graph: KnowledgeGraph, hop: Hop) -> str:
    """What the document is read for: a relation, or the type of the entity."""
    return spoken(hop.relation or graph.types.get(hop.entity, "found"))


def transcript(question: str, solution: Solution) -> Parts:
    """Full trajectory; the loss covers thoughts and actions only."""
    parts = asked(question)
    for step in solution.steps:
        parts += acted("search", step.query, step.think) + came(passage(step.document))
    return parts + acted(ANSWER, solution.answer, solution.think)


Search = Callable[[str], Hits]
"""The rollouts' search: maps a query to hits in the order shown."""
MOST_TRIES = 5
"""Maximum searches per document."""
_PAGES = (2, 3)


@dataclass(frozen=True, slots=True)
class Try:
    query: str
    hits: Hits

    def shows(self, document: Document) -> bool:
        """Whether a hit has the document's id, even if its text contains noise."""
        return any(hit.id == document.id for hit in self.hits.documents)


Tries = tuple[Try, ...]
"""Searches for one document; the last one returns it."""


def is_shown_at_once(solution: Solution, search: Search) -> bool:
    """Whether the first search of every step returns its document."""
    return all(Try(step.query, search(step.query)).shows(step.document) for step in solution.steps)


def all_tries(solution: Solution, search: Search, rng: random.Random) -> tuple[Tries, ...] | None:
    """Searches for each document; None if one is not found within `MOST_TRIES`."""
    tried = tuple(_tries(step, search, rng) for step in solution.steps)
    return tried if all(tried) else None


def transcript_with(question: str, solution: Solution, tried: Sequence[Tries]) -> Parts:
    """Full trajectory with all searches; the loss covers thoughts and actions only."""
    parts = asked(question)
    for step, tries in zip(solution.steps, tried, strict=True):
        think = step.think
        for each in tries:
            parts += acted("search", each.query, think) + came(shown(each.hits))
            think = f"no {step.wanted}"
    return parts + acted(ANSWER, solution.answer, solution.think)


def _tries(step: OracleStep, search: Search, rng: random.Random) -> Tries:
    first = Try(step.query, search(step.query))
    tried = [first]
    for query in _others(step, first.hits, rng):
        if tried[-1].shows(step.document):
            return tuple(tried)
        if len(tried) == MOST_TRIES:
            break
        tried.append(Try(query, search(query)))
    return tuple(tried) if tried[-1].shows(step.document) else ()


def _others(step: OracleStep, first: Hits, rng: random.Random) -> Iterator[str]:
    """Follow-up queries in order; further pages only if the first search had hits."""
    on = [f"{step.query} page {number}" for number in _PAGES] if first.documents else []
    words = [f"{step.query} {step.wanted}", f"{step.wanted} {step.query}", f"{step.wanted} of {step.query}"]
    rng.shuffle(words)
    yield from (*on, *words) if rng.random() < 0.5 else (*words[:1], *on, *words[1:])
