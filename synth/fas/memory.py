"""Entity-anchored open-world memory of AgentFounder (arXiv 2509.13310, section 2.2), and questions of several styles over its slices.

The memory maps entities to statements; it is no graph, since statements do not link entries. Statements record source, time and kind. They
come from facts in documents, passages (filed under every entity they name) and tool results of stored runs.

A slice holds the statements about the entities along a path. Question styles: *factual* (one statement), *multi-hop* (the whole path),
*numerical* (a count, a difference, or how many share a value) and *synthesis* (several statements about one or two entities). Each question
has an answer and its supporting statements; a slice that does not support a style yields no question of it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from synth.corpora.passages import NameFinder, capitalised_names, passages_of
from synth.formulas.projections import solve
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import responses_of
from synth.questions.paths import MAX_SHARING, Hop, Route, formula_of
from synth.questions.wording import Phrasing, spoken, word_question
from warehouse.records import NOT_RUN, Document, Fact, Trajectory, Triple

PASSAGE_CHARACTERS = 300
"""Maximum characters of a passage statement, in whole sentences."""
LONGEST_PASSAGE = 1_000
"""Longer passages are skipped, as they have no sentence end (tables, for example)."""
_TIME = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")
_YEAR = re.compile(r"\b(?:1\d|20)\d{2}\b")


class Origin(StrEnum):
    FACT = "fact"
    PASSAGE = "passage"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about an entity; `relation` is empty for passages, `source` is a document id or `trajectory/turn`.

    `time` is the year or ISO 8601 date that the source gives the entity, None unless there is exactly one.
    """

    entity: str
    relation: str
    text: str
    source: str
    time: str | None = None
    origin: Origin = Origin.FACT


class Memory:
    """Statements by entity, in insertion order, without duplicates."""

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self._entries: dict[str, dict[Statement, None]] = {}
        self.append(statements)

    def append(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            self._entries.setdefault(statement.entity, {})[statement] = None

    def about(self, entity: str) -> tuple[Statement, ...]:
        return tuple(self._entries.get(entity, ()))

    def slices(self, count: int, entities: int, most: int, rng: random.Random) -> Iterator[tuple[Statement, ...]]:
        """Draw `count` random slices of at most `most` statements, split equally among the entities.

        The first entity is drawn from all; others preferably from those named in its statements, to allow multi-hop questions.
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
    places = sorted(rng.sample(range(len(statements)), min(most, len(statements))))
    return [statements[place] for place in places]


def remember(graph: KnowledgeGraph, entity: str) -> tuple[Statement, ...]:
    """One statement per fact about `entity` and document that states it."""
    return statements_of(graph, graph.about(entity))


def statements_of(graph: KnowledgeGraph, facts: Iterable[Fact]) -> tuple[Statement, ...]:
    """One statement per fact and document that states it."""
    return tuple(_statement(graph, fact, source) for fact in facts for source in fact.documents)


def statements_in(documents: Iterable[Document], finder: NameFinder) -> Iterator[Statement]:
    """Passages of documents, filed under the document's title and every known name they contain."""
    for document in documents:
        for passage in _passages(document.text):
            for entity in dict.fromkeys((document.title, *finder.find(passage))):
                yield Statement(entity, "", passage, document.id, _year(passage), Origin.PASSAGE)


def statements_brought(trajectories: Iterable[Trajectory], finder: NameFinder) -> Iterator[Statement]:
    """Passages of tool results in stored runs, filed under every known or capitalised name they contain."""
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
    years = set(_YEAR.findall(passage))
    return years.pop() if len(years) == 1 else None


def required_knowledge(graph: KnowledgeGraph, path: Route) -> tuple[Statement, ...]:
    """Statements that support a question along `path`, hop by hop; for a union, those that exist."""
    return tuple(statement for hop in path for statement in statements_of(graph, _needed(graph, hop)))


def _needed(graph: KnowledgeGraph, hop: Hop) -> list[Fact]:
    wanted = {(hop.relation, hop.value), *((anchor.relation, value) for anchor in hop.anchors for value in anchor.values)}
    return [fact for fact in graph.about(hop.entity) if (fact.relation, fact.object) in wanted]


class QuestionStyle(StrEnum):
    FACTUAL = "factual"
    MULTI_HOP = "multi_hop"
    NUMERICAL = "numerical"
    SYNTHESIS = "synthesis"


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """Slices shown to a teacher: entities and statements per slice, question styles, and reply tokens."""

    entities: int = 3
    statements: int = 24
    styles: tuple[QuestionStyle, ...] = tuple(QuestionStyle)
    max_tokens: int = 1_024


@dataclass(frozen=True, slots=True)
class Plan:
    """Relations to find out, in order, and the first action: a call of `tool` with `query`."""

    relations: tuple[str, ...]
    query: str
    tool: str = "search"

    @property
    def thought(self) -> str:
        return f"plan: {', '.join(self.relations)}"


def propose(path: Route) -> Plan:
    """Oracle plan for a question along `path`."""
    found_by = [" and ".join(spoken(anchor.relation) for anchor in hop.anchors) for hop in path]
    relations = [r for hop, found in zip(path, found_by, strict=True) for r in (found, spoken(hop.relation or "")) if r]
    return Plan(tuple(relations), path[0].query)


@dataclass(frozen=True, slots=True)
class SliceQuestion:
    """A question over a slice, with its supporting statements and a plan.

    `secret` must not occur in the first query: the answer, or None if it is a number. `unique`: the graph gives no other answer.
    """

    style: QuestionStyle | None
    question: str
    answer: str
    required: tuple[Statement, ...]
    plan: Plan
    secret: str | None
    unique: bool
    formula: tuple[Triple, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    graph: KnowledgeGraph
    path: Route
    phrasing: Phrasing
    variety: int
    rng: random.Random

    def stated(self, entity: str) -> list[Fact]:
        return [fact for fact in self.graph.about(entity) if fact.documents]

    def single(self, entity: str) -> list[Fact]:
        """Documented facts that are the only ones of their relation."""
        return [fact for fact in self.stated(entity) if len(self.graph.objects(entity, fact.relation)) == 1]

    @property
    def entities(self) -> list[str]:
        """Entities whose documents the path reads."""
        return list(dict.fromkeys(hop.entity for hop in self.path))

    def word(self, relation: str) -> str:
        return self.phrasing.word(relation) if self.variety == 1 else spoken(relation)


def ask_along(slice_: Slice, path: Route, style: QuestionStyle | None = None) -> SliceQuestion:
    """Question along a path of the slice."""
    formula = formula_of(path)
    question = word_question(formula, slice_.phrasing, slice_.variety, slice_.rng)
    answer = path[-1].value
    unique = len(solve(slice_.graph, formula)) == 1
    required = required_knowledge(slice_.graph, path)
    return SliceQuestion(style, question, answer, required, propose(path), answer, unique, formula)


def ask(slice_: Slice, style: QuestionStyle) -> SliceQuestion | None:
    """Question of the given style, or None if the slice does not support one."""
    return _ASK[style](slice_)


def _factual(slice_: Slice) -> SliceQuestion | None:
    facts = [fact for entity in slice_.entities for fact in slice_.single(entity)]
    if not facts:
        return None
    fact = slice_.rng.choice(facts)
    return ask_along(slice_, (Hop(fact.subject, fact.relation, fact.object),), QuestionStyle.FACTUAL)


def _multi_hop(slice_: Slice) -> SliceQuestion | None:
    return ask_along(slice_, slice_.path, QuestionStyle.MULTI_HOP) if len(slice_.path) > 1 else None


def _numerical(slice_: Slice) -> SliceQuestion | None:
    for kind in slice_.rng.sample((_counts, _differences, _sharings), 3):
        found = list(kind(slice_))
        if found:
            return slice_.rng.choice(found)
    return None


def _counts(slice_: Slice) -> Iterator[SliceQuestion]:
    for entity in slice_.entities:
        stated = slice_.stated(entity)
        for relation in dict.fromkeys(fact.relation for fact in stated):
            facts = [fact for fact in stated if fact.relation == relation]
            if len(facts) > 1 and len(facts) == len(slice_.graph.objects(entity, relation)):
                word = slice_.word(relation)
                question = (
                    f"number of {word} of {entity}?" if slice_.variety == 1 else f"How many different values has the {word} of {entity}?"
                )
                yield _number(slice_, question, len(facts), facts, Plan((spoken(relation), "count"), entity))


def _differences(slice_: Slice) -> Iterator[SliceQuestion]:
    numbers = [fact for entity in slice_.entities for fact in slice_.single(entity) if fact.object.isdecimal()]
    for place, one in enumerate(numbers):
        for other in numbers[place + 1 :]:
            if one.relation == other.relation and one.subject != other.subject:
                question = f"How far apart are the {slice_.word(one.relation)} of {one.subject} and of {other.subject}?"
                value = abs(int(one.object) - int(other.object))
                yield _number(slice_, question, value, [one, other], Plan((spoken(one.relation), "difference"), one.subject))


def _sharings(slice_: Slice) -> Iterator[SliceQuestion]:
    for entity in slice_.entities:
        for fact in slice_.stated(entity):
            sharing = slice_.graph.subjects_of(fact.relation, fact.object)
            if not 1 < len(sharing) <= MAX_SHARING:
                continue
            facts = [f for other in sharing for f in slice_.stated(other) if (f.relation, f.object) == (fact.relation, fact.object)]
            if len(facts) == len(sharing):
                question = f"How many have {fact.object} as {slice_.word(fact.relation)}?"
                query = f"{spoken(fact.relation)} {fact.object}"
                yield _number(slice_, question, len(facts), facts, Plan((spoken(fact.relation), "count"), query))


def _number(slice_: Slice, question: str, value: int, facts: Sequence[Fact], plan: Plan) -> SliceQuestion:
    return SliceQuestion(QuestionStyle.NUMERICAL, question, str(value), statements_of(slice_.graph, facts), plan, None, True)


def _synthesis(slice_: Slice) -> SliceQuestion | None:
    rich = [(entity, facts) for entity in slice_.entities if len(facts := slice_.single(entity)) > 1]
    if not rich:
        return None
    chosen = slice_.rng.sample(rich, min(2, len(rich)))
    picked = [(entity, slice_.rng.sample(facts, 2)) for entity, facts in chosen]
    wanted = [f"{' and '.join(slice_.word(fact.relation) for fact in facts)} of {entity}" for entity, facts in picked]
    head = f"Compare {picked[0][0]} with {picked[1][0]}" if len(picked) > 1 else f"Sum up {picked[0][0]}"
    facts = [fact for _, found in picked for fact in found]
    answer = "; ".join(fact.object for fact in facts)
    plan = Plan(tuple(dict.fromkeys(spoken(fact.relation) for fact in facts)), picked[0][0])
    question = f"{head}: {', '.join(wanted)}?"
    return SliceQuestion(QuestionStyle.SYNTHESIS, question, answer, statements_of(slice_.graph, facts), plan, answer, True)


_ASK: dict[QuestionStyle, Callable[[Slice], SliceQuestion | None]] = {
    QuestionStyle.FACTUAL: _factual,
    QuestionStyle.MULTI_HOP: _multi_hop,
    QuestionStyle.NUMERICAL: _numerical,
    QuestionStyle.SYNTHESIS: _synthesis,
}
