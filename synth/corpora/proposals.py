"""What the Expander proposes, and what can be shown of it.

A proposal describes a constant without naming it and gives the facts that the description rests on. It becomes part of a question when
every fact is grounded in its document, the description names what it must and nothing that it must not, and the formula stays a
question's: connected, without constants beside constants. The proposals of one layer become part of it together, or none does. That the
description has no second answer would take a graph to prove; what can be had of that is in `expansion_proofs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from synth.corpora.grounding import StatedFact, grounding_defect
from synth.corpora.tools import DescriptionVerdict
from synth.formulas.triples import (
    CONSTANT,
    UNION,
    VARIABLE,
    constant,
    count_constants,
    depth,
    is_constant,
    layers,
    nodes_of,
    validate,
)
from synth.questions.text_comparison import mentions, plain
from warehouse.digests import digest
from warehouse.records import Document, Task, Triple


class ProposedFact(StatedFact):
    """A fact, the words that state it, and the id of the document that they stand in."""

    document: str


class Proposal(BaseModel):
    """A description of a constant and what it rests on. `unknowns` are the entities on the way, which the description does not name."""

    description: str = Field(min_length=1)
    facts: list[ProposedFact] = Field(min_length=1)
    unknowns: list[str] = []


class ProposalDefect(StrEnum):
    """Why a proposal is not taken; what a fact lacks is a `grounding.Lack`."""

    NO_PROPOSAL = "no_proposal"
    NO_CONSTANT = "no_constant"
    NOT_ABOUT_CONSTANT = "not_about_constant"
    DOCUMENT_UNKNOWN = "document_unknown"
    LEAKED = "leaked"
    NOT_NAMED = "not_named"
    CONSTANT_EDGE = "constant_edge"
    MET_TWICE = "met_twice"
    LAYER_INCOMPLETE = "layer_incomplete"
    NOT_UNIQUE = "not_unique"
    REDUNDANT = "redundant_constraint"
    MALFORMED_FORMULA = "malformed_formula"
    TYPE_INCONSISTENT = "type_inconsistent"
    TOO_SIMPLE = "too_simple"


@dataclass(frozen=True, slots=True)
class Objection:
    """What speaks against a proposal, as the kind and the reason of a failure."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeafExpansion:
    """A constant of a question, what describes it, and what the teacher says of the description."""

    name: str
    proposal: Proposal
    verdict: DescriptionVerdict


def objection_to(proposal: Proposal, task: Task, name: str, documents: Mapping[str, Document]) -> Objection | None:
    """The first thing that can be shown to be wrong with `proposal` for the constant `name` of `task`."""
    for fact in proposal.facts:
        document = documents.get(fact.document)
        if document is None:
            return Objection(ProposalDefect.DOCUMENT_UNKNOWN, f"no document has the id {fact.document!r}")
        if lack := grounding_defect(fact, document.title, document.text):
            return Objection(lack, f"{fact.subject} — {fact.relation} — {fact.object} in {fact.document!r}")
    return _objection_to_words(proposal, task, name) or _objection_to_formula(proposal, task, name)


def _objection_to_words(proposal: Proposal, task: Task, name: str) -> Objection | None:
    for secret in (name, *proposal.unknowns, *task.answers):
        if mentions(proposal.description, secret):
            return Objection(ProposalDefect.LEAKED, f"the description names {secret!r}")
    unnamed = [text for text in _named(proposal, name) if not mentions(proposal.description, text)]
    if unnamed:
        return Objection(ProposalDefect.NOT_NAMED, f"the description does not name {unnamed[0]!r}")
    if not mentions(task.question, name):
        return Objection(ProposalDefect.NOT_NAMED, f"the question does not name {name!r}, so nothing can stand in its place")
    return None


def _objection_to_formula(proposal: Proposal, task: Task, name: str) -> Objection | None:
    if not any(plain(name) in (plain(fact.subject), plain(fact.object)) for fact in proposal.facts):
        return Objection(ProposalDefect.NOT_ABOUT_CONSTANT, f"no fact is about {name!r}")
    formula = expanded_formula(proposal, task.formula, name)
    if any(is_constant(subject) and is_constant(value) for subject, _, value in formula):
        return Objection(ProposalDefect.CONSTANT_EDGE, "a fact joins two names and nothing unknown")
    problems = validate(formula)
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def expanded_formula(proposal: Proposal, formula: Sequence[Triple], name: str) -> tuple[Triple, ...]:
    """The formula with the constant `name` made a variable, which the facts of the proposal define."""
    taken = set(nodes_of(formula))
    fresh = (f"{VARIABLE}x{number}" for number in range(len(taken) + len(proposal.unknowns) + 1))
    free = [node for node in fresh if node not in taken]
    variables = {plain(text): node for text, node in zip((name, *proposal.unknowns), free, strict=False)}
    old = constant(name)
    replaced = [tuple(variables[plain(name)] if part == old else part for part in triple) for triple in formula]
    new = [(_node(fact.subject, variables), fact.relation, _node(fact.object, variables)) for fact in proposal.facts]
    return tuple((subject, relation, value) for subject, relation, value in dict.fromkeys((*replaced, *new)))


def merge_objection(task: Task, leaves: Sequence[LeafExpansion]) -> Objection | None:
    """What speaks against expanding all `leaves` at once, each of which stands for itself.

    Nothing is met twice, as in what a graph grows: a name that one description hides, no other may name, and no name serves two.
    """
    for leaf in leaves:
        others = [other for other in leaves if other is not leaf]
        hidden = [text for other in others for text in (other.name, *other.proposal.unknowns)]
        if told := next((text for text in hidden if mentions(leaf.proposal.description, text)), None):
            return Objection(ProposalDefect.LEAKED, f"the description of {leaf.name!r} names {told!r}, which another one hides")
        named = set(map(plain, _named(leaf.proposal, leaf.name)))
        met = [text for other in others for text in (other.name, *other.proposal.unknowns, *_named(other.proposal, other.name))]
        if twice := next((text for text in met if plain(text) in named), None):
            return Objection(ProposalDefect.MET_TWICE, f"{twice!r} stands in two descriptions")
    if not_replaced := [leaf.name for leaf in leaves if not _whole(leaf.name).search(task.question)]:
        return Objection(ProposalDefect.NOT_NAMED, f"the question does not spell {not_replaced[0]!r}, so nothing can stand in its place")
    problems = validate(merged_formula(task, leaves))
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def merged_formula(task: Task, leaves: Sequence[LeafExpansion]) -> tuple[Triple, ...]:
    """The formula with the constants of all `leaves` made variables."""
    formula = task.formula
    for leaf in leaves:
        formula = expanded_formula(leaf.proposal, formula, leaf.name)
    return formula


def merged_question(task: Task, leaves: Sequence[LeafExpansion]) -> str:
    """The question with each name's description in its place; what a description says is not looked at again."""
    described = {leaf.name.casefold(): leaf.proposal.description for leaf in leaves}
    names = sorted((leaf.name for leaf in leaves), key=len, reverse=True)
    return _whole(*names).sub(lambda found: described[found[0].casefold()], task.question)


def expanded_task(task: Task, leaves: Sequence[LeafExpansion], proofs: dict[str, Any], teacher: str) -> Task:
    """The task with a description in the place of each constant; the answers stay, and what is proven of it is written down."""
    formula, question = merged_formula(task, leaves), merged_question(task, leaves)
    documents = sorted({fact.document for leaf in leaves for fact in leaf.proposal.facts})
    steps = [
        {
            "constant": leaf.name,
            "description": leaf.proposal.description,
            "documents": sorted({fact.document for fact in leaf.proposal.facts}),
        }
        for leaf in leaves
    ]
    about = {"expanded_from": task.key, "expander": teacher, "expansions": [*task.provenance.get("expansions", []), *steps]}
    return replace(
        task,
        key=digest([task.key, "expanded", formula, question]),
        question=question,
        formula=formula,
        hops=task.hops + len(documents),
        constraints=count_constants(formula),
        layers=depth(formula),
        provenance={**task.provenance, **about},
        proofs=proofs,
    )


def _whole(*names: str) -> re.Pattern[str]:
    """Any of these names, as whole words."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", re.IGNORECASE)


def _named(proposal: Proposal, name: str) -> list[str]:
    """The names that the facts are about, beside the constant and the unknowns."""
    secret = {plain(text) for text in (name, *proposal.unknowns)}
    return [text for fact in proposal.facts for text in (fact.subject, fact.object) if plain(text) not in secret]


def _node(text: str, variables: Mapping[str, str]) -> str:
    return variables.get(plain(text)) or f"{CONSTANT}{text}"


def leaves_of(task: Task) -> list[str]:
    """The constants of a formula as their texts, those nearest the target first; of several members as they stand."""
    constants = [node for layer in layers(task.formula) for node in nodes_of(layer) if is_constant(node)]
    return [node.removeprefix(CONSTANT) for node in dict.fromkeys(constants)]


def is_replaceable(task: Task, name: str) -> bool:
    """Whether an expansion may replace a constant: it has one member, and the question names it."""
    return UNION not in name and mentions(task.question, name) > 0
