"""Word a formula without a model.

The formula's tree is read from the target down. Variety 1 is compact, one word per relation ("metropolis of nation of hometown of Amber
Stone?"); 2 is a sentence; 3 paraphrases. A graph may provide words, questions, phrases and conditions per relation; the default is its
name.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from synth.formulas.triples import TARGET, is_constant, members
from synth.graph.knowledge_graph import KnowledgeGraph
from warehouse.records import Triple

_OPENINGS = ("Who or what is {}?", "Name {}.", "Find {}.", "I am looking for {}.", "Could you tell me {}?")


@dataclass(frozen=True, slots=True)
class Phrasing:
    """Wording of relations.

    `phrases` ask for a relation's object, with `{s}` for its subject; `nouns` name the subject's type ("film"); `questions` and
    `conditions` are those of `Wording`. Any may lack a relation.
    """

    phrases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nouns: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    questions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)

    def word(self, relation: str) -> str:
        return self.words.get(relation) or spoken(relation)

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> Phrasing:
        """Phrasing of a graph; a relation's noun is the type of the first entity that has it."""
        nouns: dict[str, str] = {}
        relations = graph.relations
        for entity in graph.subjects:
            if len(nouns) == len(relations):
                break
            for fact in graph.about(entity):
                nouns.setdefault(fact.relation, graph.types.get(entity, "one"))
        own = graph.wordings
        return cls(
            {relation: wording.phrases for relation, wording in own.items() if wording.phrases},
            nouns,
            {relation: wording.word for relation, wording in own.items() if wording.word},
            questions={relation: wording.questions for relation, wording in own.items() if wording.questions},
            conditions={relation: wording.condition for relation, wording in own.items() if wording.condition},
        )


def word_question(formula: Sequence[Triple], phrasing: Phrasing, variety: int, rng: random.Random) -> str:
    """Question for the target of `formula`, a tree of unknowns."""
    writer = _Writer(formula, phrasing, variety, rng)
    if variety > 1 and (sentence := writer.sentence()) is not None:
        return sentence
    described = writer.describe(TARGET, frozenset())
    return f"{described}?" if variety == 1 else rng.choice(_OPENINGS).format(described)


def spoken(relation: str) -> str:
    return relation.replace("_", " ")


@dataclass(frozen=True, slots=True)
class _Writer:
    formula: Sequence[Triple]
    phrasing: Phrasing
    variety: int
    rng: random.Random

    def sentence(self) -> str | None:
        about = [number for number, triple in enumerate(self.formula) if TARGET in (triple[0], triple[2])]
        subject, relation, value = self.formula[about[0]]
        if len(about) > 1 or value != TARGET or relation not in self.phrasing.questions:
            return None
        return self._chosen(self.phrasing.questions[relation]).replace("{s}", self.describe(subject, frozenset(about)))

    def _chosen(self, wordings: Sequence[str]) -> str:
        return wordings[0] if self.variety == 2 else self.rng.choice(list(wordings))

    def describe(self, node: str, done: frozenset[int]) -> str:
        if is_constant(node):
            return " or ".join(members(node))
        mine = {n: t for n, t in enumerate(self.formula) if n not in done and node in (t[0], t[2])}
        done = done | mine.keys()
        several = len(mine) > 1
        of = [self._object_of(t[1], self._part(t[0], done, several)) for t in mine.values() if t[2] == node]
        about = sorted((t for t in mine.values() if t[2] != node), key=lambda t: not is_constant(t[2]))
        known = [self._condition(t[1], t[2], done, several) for t in about]
        head = _join(of) if of else self._noun(mine.values())
        if self.variety > 1 and any(t[1] in self.phrasing.conditions for t in about):
            own = (text if t[1] in self.phrasing.conditions else f"with {text}" for t, text in zip(about, known, strict=True))
            return f"{head} {' and '.join(own)}"
        return f"{head} with {_join(known)}" if known else head

    def _part(self, node: str, done: frozenset[int], several: bool) -> str:
        described = self.describe(node, done)
        return f"({described})" if several and not is_constant(node) and " and " in described else described

    def _object_of(self, relation: str, subject: str) -> str:
        if self.variety == 1:
            return f"{self.phrasing.word(relation)} of {subject}"
        known = self.phrasing.phrases.get(relation) or (f"the {spoken(relation)} of {{s}}",)
        return self._chosen(known).replace("{s}", subject)

    def _condition(self, relation: str, value: str, done: frozenset[int], several: bool) -> str:
        described = self._part(value, done, several)
        if self.variety > 1 and relation in self.phrasing.conditions:
            return self.phrasing.conditions[relation].replace("{o}", described)
        nested = self.variety == 1 and not is_constant(value) and not described.lstrip("(").startswith("the ")
        word = self.phrasing.word(relation) if self.variety == 1 else spoken(relation)
        return f"{word} {'the ' if nested else ''}{described}"

    def _noun(self, triples: Iterable[Triple]) -> str:
        relation = next(iter(triples))[1]
        return f"the {self.phrasing.nouns.get(relation, 'one')}"


def _join(parts: Sequence[str]) -> str:
    return " and ".join(parts)
