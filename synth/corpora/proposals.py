"""What the Expander proposes in the place of a constant, the checks of it that need no model, and the tasks that come of it.

A proposal describes a constant without naming it and gives the facts that the description rests on. It becomes part of a question when
every fact is grounded in its document, the description names what it must and nothing that it must not, and the formula stays a
question's: connected, without constants beside constants, and meeting nothing twice. The proposals of one layer become part of it together,
or none does. That the description has no second answer would take a graph to prove; what can be had of that is in `expansion_proofs`.
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
    members,
    nodes_of,
    validate,
)
from synth.questions.text_comparison import NameKey, mentions, name_key, numbers
from warehouse.digests import digest
from warehouse.records import Document, Task, Triple

MOST_FACTS = 8
"""Facts, and unknowns, of one proposal."""
LONGEST_DESCRIPTION = 400
"""Characters of a description."""


class ProposedFact(StatedFact):
    """A fact, the words that state it, and the id of the document that they stand in."""

    document: str


class Proposal(BaseModel):
    """A description of a constant and what it rests on. `unknowns` are the entities on the way, which the description does not name."""

    description: str = Field(min_length=1, max_length=LONGEST_DESCRIPTION)
    facts: list[ProposedFact] = Field(min_length=1, max_length=MOST_FACTS)
    unknowns: list[str] = Field(default=[], max_length=MOST_FACTS)


class ProposalDefect(StrEnum):
    """Why a proposal, or a whole layer, is not taken; what a fact lacks is a `grounding.GroundingDefect`."""

    NO_PROPOSAL = "no_proposal"
    NO_CONSTANT = "no_constant"
    NOT_ABOUT_CONSTANT = "not_about_constant"
    DOCUMENT_UNKNOWN = "document_unknown"
    LEAKED = "leaked"
    NOT_NAMED = "not_named"
    NUMBER_NOT_STATED = "number_not_stated"
    NOT_STATED = "not_stated"
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
    """A constant of a question, what describes it, and what the teacher says of the description and of its facts (None: nothing clear)."""

    name: str
    proposal: Proposal
    verdict: DescriptionVerdict
    stated: bool | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """The constants of a task that give way together, and what was found for those before."""

    task: Task
    names: tuple[str, ...]
    found: tuple[LeafExpansion, ...] = ()

    def hidden(self, name: str) -> list[str]:
        """What the description of `name` may not name, beside `name` itself.

        The answers, the entities on the way to them, what earlier layers replaced and met as unknowns; and the same of this layer.
        """
        own = [other for other in self.names if other != name]
        return list(dict.fromkeys([*_hidden_by(self.task), *own, *(text for leaf in self.found for text in leaf.proposal.unknowns)]))

    def met(self, name: str) -> list[str]:
        """What the question meets already: whatever is hidden, its constants, and what the descriptions of this layer name."""
        constants = [member for leaf in leaves_of(self.task) if leaf != name for member in leaf.split(UNION)]
        named = [text for leaf in self.found for text in _named(leaf.proposal, leaf.name)]
        return list(dict.fromkeys([*self.hidden(name), *constants, *named]))


def leaves_of(task: Task) -> list[str]:
    """The constants of a formula as their texts, those nearest the target first; of several members as they stand."""
    constants = [node for layer in layers(task.formula) for node in nodes_of(layer) if is_constant(node)]
    return [node.removeprefix(CONSTANT) for node in dict.fromkeys(constants)]


def not_replaceable(task: Task, names: Sequence[str]) -> list[str]:
    """Those of `names` that no description can stand for: they have several members, or the question does not spell them."""
    longest_first = sorted(names, key=len, reverse=True)
    found = _spelled(longest_first).finditer(task.question) if names else ()
    spelled = {longest_first[(match.lastindex or 1) - 1] for match in found}
    return [name for name in names if UNION in name or name not in spelled]


def objection_to(proposal: Proposal, layer: Layer, name: str, documents: Mapping[str, Document]) -> Objection | None:
    """The first thing that can be shown to be wrong with `proposal` for the constant `name` of a layer."""
    for fact in proposal.facts:
        document = documents.get(fact.document)
        if document is None:
            return Objection(ProposalDefect.DOCUMENT_UNKNOWN, f"no document has the id {fact.document!r}")
        if lack := grounding_defect(fact, document.title, document.text):
            return Objection(lack, f"{fact.claim} in {fact.document!r}")
    return _objection_to_words(proposal, layer, name) or _objection_to_formula(proposal, layer, name)


def _objection_to_words(proposal: Proposal, layer: Layer, name: str) -> Objection | None:
    for secret in (name, *proposal.unknowns, *layer.hidden(name)):
        if mentions(proposal.description, secret):
            return Objection(ProposalDefect.LEAKED, f"the description names {secret!r}")
    unnamed = [text for text in _named(proposal, name) if not mentions(proposal.description, text)]
    if unnamed:
        return Objection(ProposalDefect.NOT_NAMED, f"the description does not name {unnamed[0]!r}")
    stated = (text for fact in proposal.facts for text in (fact.subject, fact.object, fact.quote))
    new = numbers(proposal.description) - {number for text in stated for number in numbers(text)}
    if new:
        return Objection(ProposalDefect.NUMBER_NOT_STATED, f"the description says {min(new)}, and no fact does")
    return None


def _objection_to_formula(proposal: Proposal, layer: Layer, name: str) -> Objection | None:
    if not any(name_key(name) in (name_key(fact.subject), name_key(fact.object)) for fact in proposal.facts):
        return Objection(ProposalDefect.NOT_ABOUT_CONSTANT, f"no fact is about {name!r}")
    met = set(map(name_key, layer.met(name)))
    if twice := [text for text in (*_named(proposal, name), *proposal.unknowns) if name_key(text) in met]:
        return Objection(ProposalDefect.MET_TWICE, f"the question meets {twice[0]!r} already")
    formula = expanded_formula(proposal, layer.task.formula, name)
    if any(is_constant(subject) and is_constant(value) for subject, _, value in formula):
        return Objection(ProposalDefect.CONSTANT_EDGE, "a fact joins two names and nothing unknown")
    problems = validate(formula)
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def objection_to_merged(task: Task, leaves: Sequence[LeafExpansion]) -> Objection | None:
    """What speaks against the question with all `leaves` expanded, though each can stand by itself."""
    question = merged_question(task, leaves)
    told = [text for leaf in leaves for text in (leaf.name, *leaf.proposal.unknowns) if mentions(question, text)]
    if told:
        return Objection(ProposalDefect.LEAKED, f"the question still names {told[0]!r}")
    problems = validate(merged_formula(task, leaves))
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def expanded_formula(proposal: Proposal, formula: Sequence[Triple], name: str) -> tuple[Triple, ...]:
    """The formula with the constant `name` made a variable, which the facts of the proposal define."""
    taken = set(nodes_of(formula))
    fresh = (f"{VARIABLE}x{number}" for number in range(len(taken) + len(proposal.unknowns) + 1))
    free = [node for node in fresh if node not in taken]
    variables = {name_key(text): node for text, node in zip((name, *proposal.unknowns), free, strict=False)}
    old = constant(name)
    replaced = [tuple(variables[name_key(name)] if part == old else part for part in triple) for triple in formula]
    return tuple((subject, relation, value) for subject, relation, value in dict.fromkeys((*replaced, *_stated(proposal, variables))))


def definition_of(leaf: LeafExpansion, target: str) -> tuple[Triple, ...]:
    """The sub-question that a description asks: its facts, with `target` in the place of the constant."""
    unknowns = {name_key(text): f"{VARIABLE}u{number}" for number, text in enumerate(leaf.proposal.unknowns)}
    return tuple(_stated(leaf.proposal, {**unknowns, name_key(leaf.name): target}))


def merged_formula(task: Task, leaves: Sequence[LeafExpansion]) -> tuple[Triple, ...]:
    """The formula with the constants of all `leaves` made variables; the triples that were there before come first."""
    formula = task.formula
    for leaf in leaves:
        formula = expanded_formula(leaf.proposal, formula, leaf.name)
    return formula


def merged_question(task: Task, leaves: Sequence[LeafExpansion]) -> str:
    """The question with each name's description in its place; what a description says is not looked at again."""
    longest_first = sorted(leaves, key=lambda leaf: len(leaf.name), reverse=True)
    spelled = _spelled([leaf.name for leaf in longest_first])
    return spelled.sub(lambda found: longest_first[(found.lastindex or 1) - 1].proposal.description, task.question)


def expanded_task(
    task: Task, leaves: Sequence[LeafExpansion], proofs: Mapping[str, Any], teacher: str, structure: str = "layerwise"
) -> Task:
    """The task with a description in the place of each constant; the answers stay, and what is proven of it is written down."""
    formula, question = merged_formula(task, leaves), merged_question(task, leaves)
    documents = sorted({fact.document for leaf in leaves for fact in leaf.proposal.facts})
    steps = [*task.provenance.get("expansions", []), *map(_step, leaves)]
    about = {"expanded_from": task.key, "expander": teacher, "expanded_by": structure, "expansions": steps}
    return replace(
        task,
        key=digest([task.key, "expanded", formula, question]),
        question=question,
        formula=formula,
        hops=task.hops + len(documents),
        constraints=count_constants(formula),
        layers=depth(formula),
        provenance={**task.provenance, **about},
        proofs=dict(proofs),
    )


def _step(leaf: LeafExpansion) -> dict[str, Any]:
    """What is kept of one description in a task's provenance."""
    return {
        "constant": leaf.name,
        "description": leaf.proposal.description,
        "documents": sorted({fact.document for fact in leaf.proposal.facts}),
        "unknowns": list(leaf.proposal.unknowns),
    }


def _hidden_by(task: Task) -> list[str]:
    """What a question keeps to itself; what its formula has as a constant is not hidden."""
    replaced = [text for step in task.provenance.get("expansions", ()) for text in (step["constant"], *step.get("unknowns", ()))]
    shown = {name_key(member) for leaf in leaves_of(task) for member in members(leaf)}
    known = (*task.answers, *map(str, task.provenance.get("path", ())), *replaced)
    return [text for text in dict.fromkeys(known) if name_key(text) not in shown]


def _named(proposal: Proposal, name: str) -> list[str]:
    """The names that the facts are about, beside the constant and the unknowns."""
    secret = {name_key(text) for text in (name, *proposal.unknowns)}
    return [text for fact in proposal.facts for text in (fact.subject, fact.object) if name_key(text) not in secret]


def _stated(proposal: Proposal, nodes: Mapping[NameKey, str]) -> list[Triple]:
    """The facts as triples: what `nodes` knows by its name as that node, everything else as a constant."""
    return [
        (
            nodes.get(name_key(fact.subject)) or f"{CONSTANT}{fact.subject}",
            fact.relation,
            nodes.get(name_key(fact.object)) or f"{CONSTANT}{fact.object}",
        )
        for fact in proposal.facts
    ]


def _spelled(names: Sequence[str]) -> re.Pattern[str]:
    """Any of these names as whole words, each a group of its own; of several in one place the first matches."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(f'({re.escape(name)})' for name in names)})(?!\w)", re.IGNORECASE)
