"""What the Expander proposes, and what can be shown of it.

A proposal describes a constant without naming it and gives the facts that the description rests on. It becomes part of a question when
every fact is grounded in its document, the description names what it must and nothing that it must not, and the formula stays a
question's: connected, without constants beside constants, nothing new beside the target. That the description has no second answer
would take a graph to prove; the task says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from rl.retrieval.search import SearchIndex
from synth.corpora.grounding import StatedFact, grounding_defect
from synth.corpora.tools import DescriptionVerdict
from synth.formulas.triples import (
    CONSTANT,
    TARGET,
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
    MALFORMED_FORMULA = "malformed_formula"
    TYPE_INCONSISTENT = "type_inconsistent"
    TOO_SIMPLE = "too_simple"


@dataclass(frozen=True, slots=True)
class Objection:
    """What speaks against a proposal, as the kind and the reason of a failure."""

    kind: str
    reason: str


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


def expanded_task(proposal: Proposal, task: Task, name: str, verdict: DescriptionVerdict, index: SearchIndex, teacher: str) -> Task:
    """The task with the description in the place of the constant; the answers stay, and what is proven of it is written down."""
    formula = expanded_formula(proposal, task.formula, name)
    question = re.sub(re.escape(name), lambda _: proposal.description, task.question, flags=re.IGNORECASE)
    documents = sorted({fact.document for fact in proposal.facts})
    steps = [*task.provenance.get("expansions", []), {"constant": name, "description": proposal.description, "documents": documents}]
    about = {"expanded_from": task.key, "expander": teacher, "expansions": steps}
    return replace(
        task,
        key=digest([task.key, "expanded", name, formula, question]),
        question=question,
        formula=formula,
        hops=task.hops + len(documents),
        constraints=count_constants(formula),
        layers=depth(formula),
        provenance={**task.provenance, **about},
        proofs=_proofs(question, formula, task, verdict, index),
    )


def _proofs(question: str, formula: Sequence[Triple], task: Task, verdict: DescriptionVerdict, index: SearchIndex) -> dict[str, Any]:
    """What was shown, by the names of `synth.formulas.proofs` where it is the same thing; what was not is None and under `unproven`.

    `easy` holds where the first document that the question itself finds names an answer. `unsupported` is what it was for the triples that
    were there before; the new ones are grounded in their documents.
    """
    first = next(iter(index.search(question, 1)), None)
    shown: dict[str, Any] = {
        "answers": None,
        "redundant": None,
        "shortcuts": [n for n, (s, _, o) in enumerate(formula) if TARGET in (s, o) and (is_constant(s) or is_constant(o))],
        "constant_edges": [],
        "unsupported": task.proofs.get("unsupported"),
        "easy": first is not None and any(mentions(f"{first.title} {first.text}", answer) for answer in task.answers),
        "type_consistent": verdict.type_consistent,
        "too_simple": verdict.too_simple,
    }
    return {**shown, "unproven": [key for key, value in shown.items() if value is None]}


def _named(proposal: Proposal, name: str) -> list[str]:
    """The names that the facts are about, beside the constant and the unknowns."""
    secret = {plain(text) for text in (name, *proposal.unknowns)}
    return [text for fact in proposal.facts for text in (fact.subject, fact.object) if plain(text) not in secret]


def _node(text: str, variables: Mapping[str, str]) -> str:
    return variables.get(plain(text)) or f"{CONSTANT}{text}"


def replaceable(task: Task) -> list[str]:
    """The names that an expansion may replace: constants of one member that the question names, those nearest the target first."""
    constants = [node for layer in layers(task.formula) for node in nodes_of(layer) if is_constant(node) and UNION not in node]
    return [name for name in dict.fromkeys(node.removeprefix(CONSTANT) for node in constants) if mentions(task.question, name)]
