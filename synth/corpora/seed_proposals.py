"""A teacher's proposal of a question about a walk, and the checks that need no model.

A proposal states its question twice: in words, and as knowledge projections (WebShaper, arXiv 2507.15061, section 3), each a fact with its
quotation. The formula follows: the answer becomes the target, hidden entities become variables, everything else a constant. Several facts
about one unknown are an intersection; `alternatives` to a constant object are a union. So every triple has a quotation by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field

from synth.corpora.passages import Passage, Walk
from synth.corpora.proposals import GroundingDefect, Objection, ProposalDefect, StatedFact, grounding_defect
from synth.formulas.triples import TARGET, UNION, VARIABLE, constant, count_constants, depth, formula_digest, is_constant, validate
from synth.questions.text_comparison import mentions, name_key, numbers, plain
from warehouse.digests import digest
from warehouse.records import Task, Triple

MOST_PROJECTIONS = 8
"""Most projections, and most unknowns, per proposal."""
MOST_ALTERNATIVES = 3

Name = Annotated[str, Field(max_length=200)]
"""An entity or a relation, as a teacher writes it."""


class SeedDefect(StrEnum):
    """Why a proposal is rejected, in addition to `GroundingDefect` and `ProposalDefect`."""

    PASSAGE_UNKNOWN = "passage_unknown"
    ANSWER_NOT_STATED = "answer_not_stated"
    DOUBLE = "double"
    CONTRADICTED = "contradicted"
    NOT_ANSWERED = "not_answered"
    SECOND_ANSWER = "second_answer"


class ProposedProjection(StatedFact):
    """A fact with its quotation and the number of the quoted passage, from 1."""

    subject: Name
    relation: Name
    object: Name
    quote: Annotated[str, Field(max_length=600)]
    alternatives: list[Name] = Field(default=[], max_length=MOST_ALTERNATIVES)
    passage: int


class SeedProposal(BaseModel):
    """A question, its answer and its projections; `unknowns` are intermediate entities that the question does not name."""

    question: str = Field(min_length=1, max_length=600)
    answer: Name = Field(min_length=1)
    projections: list[ProposedProjection] = Field(min_length=1, max_length=MOST_PROJECTIONS)
    unknowns: list[Name] = Field(default=[], max_length=MOST_PROJECTIONS)

    @property
    def formula(self) -> tuple[Triple, ...]:
        secret = {name_key(text): f"{VARIABLE}x{number}" for number, text in enumerate(self.unknowns)} | {name_key(self.answer): TARGET}
        triples = (
            (
                secret.get(name_key(fact.subject)) or constant(fact.subject),
                fact.relation,
                secret.get(name_key(fact.object)) or constant(*{fact.object, *fact.alternatives}),
            )
            for fact in self.projections
        )
        return tuple(dict.fromkeys(triples))

    @property
    def named(self) -> list[str]:
        """What the question must name: everything but the answer and the unknowns."""
        secret = {name_key(text) for text in (self.answer, *self.unknowns)}
        texts = (text for fact in self.projections for text in (fact.subject, fact.object, *fact.alternatives))
        return [text for text in dict.fromkeys(texts) if name_key(text) not in secret]


@dataclass(frozen=True, slots=True)
class Seed:
    """A proposal about a walk."""

    walk: Walk
    proposal: SeedProposal

    def passage_of(self, fact: ProposedProjection) -> Passage:
        """The passage that the fact quotes."""
        return self.walk.passages[fact.passage - 1]

    @property
    def documents(self) -> list[str]:
        """Sorted ids of the quoted documents."""
        return sorted({self.passage_of(fact).document for fact in self.proposal.projections})

    @property
    def key(self) -> str:
        """Key of its task: equal for questions that ask the same and have the same answer."""
        return digest(["seed", formula_digest(self.proposal.formula), plain(self.proposal.answer)])


def objection_to_quotes(seed: Seed) -> Objection | None:
    """The first projection whose quotation is not in the passage it names."""
    for fact in seed.proposal.projections:
        if not 1 <= fact.passage <= len(seed.walk.passages):
            return Objection(SeedDefect.PASSAGE_UNKNOWN, f"there is no passage {fact.passage}")
        if not mentions(seed.passage_of(fact).text, fact.quote):
            return Objection(GroundingDefect.QUOTE_NOT_FOUND, f"{fact.claim}: {fact.quote!r} is not in its passage")
    return None


def objection_to_entities(seed: Seed) -> Objection | None:
    """The first quotation that does not name both ends, a missing answer, or a malformed formula."""
    for fact in seed.proposal.projections:
        passage = seed.passage_of(fact)
        if lack := grounding_defect(fact, passage.title, passage.text):
            return Objection(lack, f"{fact.claim}: {fact.quote!r}")
    return _objection_to_formula(seed.proposal)


def _objection_to_formula(proposal: SeedProposal) -> Objection | None:
    names, formula = (proposal.answer, *proposal.unknowns), proposal.formula
    secret = set(map(name_key, names))
    if not all(map(plain, names)) or len(secret) < len(names):
        return Objection(ProposalDefect.MET_TWICE, "the answer and the unknowns are not all different names")
    if not any(TARGET in (subject, value) for subject, _, value in formula):
        return Objection(SeedDefect.ANSWER_NOT_STATED, f"no projection is about {proposal.answer!r}")
    if any(UNION in text for text in proposal.named):
        return Objection(ProposalDefect.MALFORMED_FORMULA, f"a name holds {UNION!r}")
    offered = [fact for fact in proposal.projections if fact.alternatives]
    if any(name_key(fact.object) in secret or not all(map(plain, fact.alternatives)) for fact in offered):
        return Objection(ProposalDefect.MALFORMED_FORMULA, "alternatives need a constant object, and must not be blank")
    if any(is_constant(subject) and is_constant(value) for subject, _, value in formula):
        return Objection(ProposalDefect.CONSTANT_EDGE, "a projection joins two constants")
    problems = validate(formula)
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def objection_to_words(seed: Seed) -> Objection | None:
    """What the question gives away, fails to name, or adds."""
    proposal = seed.proposal
    for secret in (proposal.answer, *proposal.unknowns):
        if mentions(proposal.question, secret):
            return Objection(ProposalDefect.LEAKED, f"the question names {secret!r}")
    for text in proposal.named:
        if not mentions(proposal.question, text):
            return Objection(ProposalDefect.NOT_NAMED, f"the question does not name {text!r}")
    stated = [text for fact in proposal.projections for text in (fact.subject, fact.object, fact.quote, *fact.alternatives)]
    new = numbers(proposal.question) - {number for text in stated for number in numbers(text)}
    return Objection(ProposalDefect.NUMBER_NOT_STATED, f"the question contains {min(new)}, which no quotation states") if new else None


def task_of(seed: Seed, teacher: str, environment: str) -> Task:
    """The seed as a task, without proofs."""
    proposal, formula = seed.proposal, seed.proposal.formula
    provenance = {
        "seeded_by": teacher,
        "shape": "seed",
        "path": list(proposal.unknowns),
        "walk": [passage.id for passage in seed.walk.passages],
        "linked_by": [{"kind": link.kind, "words": link.words} for link in seed.walk.links],
        "projections": [_quoted(fact, seed.passage_of(fact)) for fact in proposal.projections],
    }
    return Task(
        key=seed.key,
        environment=environment,
        question=proposal.question.strip(),
        answers=(proposal.answer.strip(),),
        formula=formula,
        hops=len(seed.documents),
        constraints=count_constants(formula),
        layers=depth(formula),
        provenance=provenance,
    )


def numbered(passages: Sequence[Passage]) -> str:
    """Passages as shown to a teacher, numbered from 1."""
    return "\n\n".join(f"[{number}] {passage.title}\n{passage.text}" for number, passage in enumerate(passages, 1))


def _quoted(fact: ProposedProjection, passage: Passage) -> dict[str, str]:
    return {**fact.model_dump(include={"subject", "relation", "object", "quote"}), "document": passage.document, "passage": passage.id}
