"""The entity-anchored open-world memory of AgentFounder: what is known of each entity, statement by statement.

The memory (arXiv 2509.13310, section 2.2) is no graph: no statement points to another entity's entry. Each keeps where it was read, of what
time it speaks and what kind of text it is from, and what is read later is appended. It is filled from three sources: the facts that a
graph's documents state, passages of the documents themselves, and what tools brought in stored runs. A passage stands under every entity
that it names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from synth.corpora.passages import NameFinder, capitalised_names, passages_of
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import responses_of
from synth.questions.wording import spoken
from warehouse.records import NOT_RUN, Document, Fact, Trajectory

PASSAGE_CHARACTERS = 300
"""Length of a statement that is a passage, in whole sentences."""
LONGEST_PASSAGE = 1_000
"""A longer piece without the end of a sentence is no statement, but a table or worse."""
_TIME = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")
_YEAR = re.compile(r"\b(?:1\d|20)\d{2}\b")


class Origin(StrEnum):
    """What kind of text a statement is from."""

    FACT = "fact"
    PASSAGE = "passage"
    RESULT = "result"
    """What a tool brought."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement about an entity.

    `relation` is what it is about, empty for a passage; `source` is the id of the document that states it, or the trajectory and the turn
    in which a tool brought it. `time` is the year or day (ISO 8601) that the source gives the entity, None where it gives none or several.
    """

    entity: str
    relation: str
    text: str
    source: str
    time: str | None = None
    origin: Origin = Origin.FACT


class Memory:
    """Entries by entity, in the order in which statements came; one that is there already is not taken twice."""

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self._entries: dict[str, dict[Statement, None]] = {}
        self.append(statements)

    @classmethod
    def of(cls, graph: KnowledgeGraph, entities: Iterable[str]) -> Memory:
        """The memory of what a graph's documents say about `entities`."""
        return cls(statement for entity in entities for statement in remember(graph, entity))

    def append(self, statements: Iterable[Statement]) -> None:
        """Take in what was read."""
        for statement in statements:
            self._entries.setdefault(statement.entity, {})[statement] = None

    def about(self, entity: str) -> tuple[Statement, ...]:
        """The entry of one entity."""
        return tuple(self._entries.get(entity, ()))

    def slices(self, count: int, entities: int, most: int, rng: random.Random) -> Iterator[tuple[Statement, ...]]:
        """Slices of the memory: what is known of a few entities, of each at most its share of `most` statements, drawn at random.

        The first entity is drawn from all; the others from those that its statements name, then from all, so that a question can lead from
        one to the next.
        """
        known = list(self._entries)
        finder = NameFinder(known)
        for _ in range(count if known else 0):
            chosen = [rng.choice(known)]
            while len(chosen) < min(entities, len(known)):
                near = [name for entity in chosen for statement in self.about(entity) for name in finder.find(statement.text)]
                pool = [name for name in dict.fromkeys(near) if name not in chosen] or [name for name in known if name not in chosen]
                chosen.append(rng.choice(pool))
            share = max(1, most // len(chosen))
            yield tuple(dict.fromkeys(statement for entity in chosen for statement in _some(self.about(entity), share, rng)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return sum(len(entry) for entry in self._entries.values())


def _some(statements: Sequence[Statement], most: int, rng: random.Random) -> list[Statement]:
    """At most so many of them, in their order."""
    places = sorted(rng.sample(range(len(statements)), min(most, len(statements))))
    return [statements[place] for place in places]


def remember(graph: KnowledgeGraph, entity: str) -> tuple[Statement, ...]:
    """The entry of one entity: a statement for each fact and document that states it."""
    return statements_of(graph, graph.about(entity))


def statements_of(graph: KnowledgeGraph, facts: Iterable[Fact]) -> tuple[Statement, ...]:
    """The statements of some facts, one for each document that states it."""
    return tuple(_statement(graph, fact, source) for fact in facts for source in fact.documents)


def statements_in(documents: Iterable[Document], finder: NameFinder) -> Iterator[Statement]:
    """The passages of documents, each under its document's title and under every name that it holds."""
    for document in documents:
        for passage in _passages(document.text):
            for entity in dict.fromkeys((document.title, *finder.find(passage))):
                yield Statement(entity, "", passage, document.id, _year(passage), Origin.PASSAGE)


def statements_brought(trajectories: Iterable[Trajectory], finder: NameFinder) -> Iterator[Statement]:
    """The passages that tools brought in stored runs, each under every name that it holds: those that are known, or look like names."""
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.tool_outcome not in (None, "ok") or turn.tool_outcome == NOT_RUN:
                continue
            source = f"{trajectory.id}/{turn.index}"
            for passage in (passage for text in responses_of(turn) for passage in _passages(text)):
                for entity in dict.fromkeys((*finder.find(passage), *capitalised_names(passage))):
                    yield Statement(entity, "", passage, source, _year(passage), Origin.RESULT)


def _passages(text: str) -> list[str]:
    return [passage for passage in passages_of(text, PASSAGE_CHARACTERS) if len(passage) <= LONGEST_PASSAGE]


def _statement(graph: KnowledgeGraph, fact: Fact, source: str) -> Statement:
    relation = spoken(fact.relation)
    return Statement(fact.subject, relation, f"{relation} {fact.object}", source, _time(graph, fact.subject, source))


def _time(graph: KnowledgeGraph, entity: str, source: str) -> str | None:
    times = {fact.object for fact in graph.about(entity) if source in fact.documents and _TIME.fullmatch(fact.object)}
    return times.pop() if len(times) == 1 else None


def _year(passage: str) -> str | None:
    """The only year that a passage names."""
    years = set(_YEAR.findall(passage))
    return years.pop() if len(years) == 1 else None
