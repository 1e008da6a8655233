"""What the Expander proposes for a constant: the checks that need no model, the proofs, and the resulting tasks.

A proposal describes a constant without naming it and lists the facts behind the description. It is accepted if every fact is grounded in
its document, the description names what it must and nothing that it must not, and the formula stays well formed: connected, no constant
next to a constant, no entity used twice. The proposals of one layer are accepted together or not at all.

A fact is grounded if its quotation stands word for word in the passage and names both ends (the passage's title may stand for the subject).
Whether the relation is right no quotation can show; a teacher is asked, and its verdict is recorded as such.

With a graph, formulas are translated to its names and relations (ignoring case, accents and punctuation, except in figures, C++ and C#). A
description that fits another entity is rejected; so is a question with other answers or a redundant constraint. What the graph cannot show
is listed under `unproven`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from rl.retrieval.search import SearchIndex
from synth.corpora.grounding import GROUNDING_REASONS, GroundingDefect, StatedFact, ground
from synth.formulas.projections import first_answers
from synth.formulas.proofs import is_shortcut, prove
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
    members,
    nodes_of,
    validate,
)
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import first_hit
from synth.questions.text_comparison import NameKey, mentions, name_key, numbers, plain
from synth.questions.wording import spoken
from warehouse.digests import digest
from warehouse.records import Document, Task, Triple

MOST_FACTS = 8
"""Most facts, and most unknowns, per proposal."""
LONGEST_DESCRIPTION = 400


class ProposedFact(StatedFact):
    """A fact, its quotation and the id of the quoted document."""

    document: str


class Proposal(BaseModel):
    """A description of a constant and the facts behind it; `unknowns` are intermediate entities that it does not name."""

    description: str = Field(min_length=1, max_length=LONGEST_DESCRIPTION)
    facts: list[ProposedFact] = Field(min_length=1, max_length=MOST_FACTS)
    unknowns: list[str] = Field(default=[], max_length=MOST_FACTS)


class ProposalDefect(StrEnum):
    """Why a proposal or a whole layer is rejected; ungrounded facts have a `GroundingDefect`."""

    NO_PROPOSAL = "no_proposal"
    NO_CONSTANT = "no_constant"
    NOT_ABOUT_CONSTANT = "not_about_constant"
    DOCUMENT_UNKNOWN = "document_unknown"
    LEAKED = "leaked"
    NOT_NAMED = "not_named"
    NOT_ASKED = "not_asked"
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
    """Kind and reason of a failure."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class DescriptionVerdict:
    """Result of a validation; None where no reply could be read. `guess` is what the teacher named without tools."""

    type_consistent: bool | None
    too_simple: bool | None
    guess: str = ""


@dataclass(frozen=True, slots=True)
class LeafExpansion:
    """A constant, its description, and the teacher's verdicts on the description and on its facts (None: unclear)."""

    name: str
    proposal: Proposal
    verdict: DescriptionVerdict
    stated: bool | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """The constants of a task that are replaced together, and the descriptions found so far."""

    task: Task
    names: tuple[str, ...]
    found: tuple[LeafExpansion, ...] = ()

    def hidden(self, name: str) -> list[str]:
        """What the description of `name` must not name, besides `name`: answers, intermediate entities, everything replaced or unknown so
        far.
        """
        own = [other for other in self.names if other != name]
        return list(dict.fromkeys([*_hidden_by(self.task), *own, *(text for leaf in self.found for text in leaf.proposal.unknowns)]))

    def met(self, name: str) -> list[str]:
        """What the question already uses: everything hidden, its constants, and names in this layer's descriptions."""
        constants = [member for leaf in leaves_of(self.task) if leaf != name for member in leaf.split(UNION)]
        named = [text for leaf in self.found for text in _named(leaf.proposal, leaf.name)]
        return list(dict.fromkeys([*self.hidden(name), *constants, *named]))


def leaves_of(task: Task) -> list[str]:
    """The texts of a formula's constants, nearest to the target first."""
    constants = [node for layer in layers(task.formula) for node in nodes_of(layer) if is_constant(node)]
    return [node.removeprefix(CONSTANT) for node in dict.fromkeys(constants)]


def not_replaceable(task: Task, names: Sequence[str]) -> list[str]:
    """Those of `names` that no description can replace: merged constants, or ones the question does not spell."""
    longest_first = sorted(names, key=len, reverse=True)
    found = _spelled(longest_first).finditer(task.question) if names else ()
    spelled = {longest_first[(match.lastindex or 1) - 1] for match in found}
    return [name for name in names if UNION in name or name not in spelled]


def grounded(proposal: Proposal, documents: Mapping[str, Document]) -> Proposal | Objection:
    """The proposal with its documents by id and their own words as quotations. A document may be named by its title."""
    facts = []
    for fact in proposal.facts:
        document = documents.get(fact.document) or _titled(fact.document, documents)
        if document is None:
            return Objection(
                ProposalDefect.DOCUMENT_UNKNOWN,
                f"no document has the id {fact.document!r}: search for documents, and quote them by their ids",
            )
        found = ground(fact, document.title, document.text)
        if isinstance(found, GroundingDefect):
            return Objection(found, f"{fact.claim} in {document.id!r}: {GROUNDING_REASONS[found]}")
        facts.append(found.model_copy(update={"document": document.id}))
    return proposal.model_copy(update={"facts": facts})


def _titled(title: str, documents: Mapping[str, Document]) -> Document | None:
    """The last document of this title."""
    key = name_key(title)
    found = [document for document in documents.values() if name_key(document.title) == key]
    return found[-1] if found else None


def objection_to(proposal: Proposal, layer: Layer, name: str) -> Objection | None:
    """The first provable problem with a grounded proposal for the constant `name` of a layer."""
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
        return Objection(ProposalDefect.NUMBER_NOT_STATED, f"the description contains {min(new)}, which no fact states")
    return None


def _objection_to_formula(proposal: Proposal, layer: Layer, name: str) -> Objection | None:
    if not any(name_key(name) in (name_key(fact.subject), name_key(fact.object)) for fact in proposal.facts):
        return Objection(ProposalDefect.NOT_ABOUT_CONSTANT, f"no fact is about {name!r}")
    met = set(map(name_key, layer.met(name)))
    if twice := [text for text in (*_named(proposal, name), *proposal.unknowns) if name_key(text) in met]:
        return Objection(ProposalDefect.MET_TWICE, f"the question already uses {twice[0]!r}")
    formula = expanded_formula(proposal, layer.task.formula, name)
    if any(is_constant(subject) and is_constant(value) for subject, _, value in formula):
        return Objection(ProposalDefect.CONSTANT_EDGE, "a fact joins two constants")
    problems = validate(formula)
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def objection_to_merged(task: Task, leaves: Sequence[LeafExpansion]) -> Objection | None:
    """What is wrong with the question once all `leaves` are expanded."""
    question = merged_question(task, leaves)
    told = [text for leaf in leaves for text in (leaf.name, *leaf.proposal.unknowns) if mentions(question, text)]
    if told:
        return Objection(ProposalDefect.LEAKED, f"the question still names {told[0]!r}")
    problems = validate(merged_formula(task, leaves))
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def expanded_formula(proposal: Proposal, formula: Sequence[Triple], name: str) -> tuple[Triple, ...]:
    """The formula with the constant `name` as a variable that the proposal's facts define."""
    taken = set(nodes_of(formula))
    fresh = (f"{VARIABLE}x{number}" for number in range(len(taken) + len(proposal.unknowns) + 1))
    free = [node for node in fresh if node not in taken]
    variables = {name_key(text): node for text, node in zip((name, *proposal.unknowns), free, strict=False)}
    old = constant(name)
    replaced = [tuple(variables[name_key(name)] if part == old else part for part in triple) for triple in formula]
    return tuple((subject, relation, value) for subject, relation, value in dict.fromkeys((*replaced, *_stated(proposal, variables))))


def definition_of(leaf: LeafExpansion, target: str) -> tuple[Triple, ...]:
    """The sub-question that a description asks: its facts, with `target` for the constant."""
    unknowns = {name_key(text): f"{VARIABLE}u{number}" for number, text in enumerate(leaf.proposal.unknowns)}
    return tuple(_stated(leaf.proposal, {**unknowns, name_key(leaf.name): target}))


def merged_formula(task: Task, leaves: Sequence[LeafExpansion]) -> tuple[Triple, ...]:
    """The formula with all `leaves` expanded; original triples come first."""
    formula = task.formula
    for leaf in leaves:
        formula = expanded_formula(leaf.proposal, formula, leaf.name)
    return formula


def merged_question(task: Task, leaves: Sequence[LeafExpansion]) -> str:
    """The question with each name replaced by its description (not recursively)."""
    longest_first = sorted(leaves, key=lambda leaf: len(leaf.name), reverse=True)
    spelled = _spelled([leaf.name for leaf in longest_first])
    return spelled.sub(lambda found: longest_first[(found.lastindex or 1) - 1].proposal.description, task.question)


def expanded_task(
    task: Task, leaves: Sequence[LeafExpansion], proofs: Mapping[str, Any], teacher: str, structure: str = "layerwise"
) -> Task:
    """The task with all `leaves` expanded; the answers stay, and its proofs are recorded."""
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
    return {
        "constant": leaf.name,
        "description": leaf.proposal.description,
        "documents": sorted({fact.document for fact in leaf.proposal.facts}),
        "unknowns": list(leaf.proposal.unknowns),
    }


def _hidden_by(task: Task) -> list[str]:
    replaced = [text for step in task.provenance.get("expansions", ()) for text in (step["constant"], *step.get("unknowns", ()))]
    shown = {name_key(member) for leaf in leaves_of(task) for member in members(leaf)}
    known = (*task.answers, *map(str, task.provenance.get("path", ())), *replaced)
    return [text for text in dict.fromkeys(known) if name_key(text) not in shown]


def _named(proposal: Proposal, name: str) -> list[str]:
    secret = {name_key(text) for text in (name, *proposal.unknowns)}
    return [text for fact in proposal.facts for text in (fact.subject, fact.object) if name_key(text) not in secret]


def _stated(proposal: Proposal, nodes: Mapping[NameKey, str]) -> list[Triple]:
    """The facts as triples: names in `nodes` as those nodes, all others as constants."""
    return [
        (
            nodes.get(name_key(fact.subject)) or f"{CONSTANT}{fact.subject}",
            fact.relation,
            nodes.get(name_key(fact.object)) or f"{CONSTANT}{fact.object}",
        )
        for fact in proposal.facts
    ]


def _spelled(names: Sequence[str]) -> re.Pattern[str]:
    """Matches any of `names` as whole words, each in a group of its own."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(f'({re.escape(name)})' for name in names)})(?!\w)", re.IGNORECASE)


Proofs = dict[str, Any]
K = TypeVar("K", bound=Hashable)


class KnownFacts:
    """A graph queried with names and relations in other spellings."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph

    def in_its_words(self, formula: Sequence[Triple]) -> tuple[Triple, ...] | None:
        """The formula in the graph's own names and relations; None if it does not know one of them."""
        triples = [(self._node(subject), self._relation(relation), self._node(value)) for subject, relation, value in formula]
        known = [(subject, relation, value) for subject, relation, value in triples if subject and relation and value]
        return tuple(known) if len(known) == len(formula) else None

    def answers(self, formula: Sequence[Triple], enough: int) -> list[str]:
        """The graph's answers, sorted; any `enough` of them if there are more."""
        return sorted(first_answers(self.graph, formula, enough))

    def _node(self, node: str) -> str | None:
        if not is_constant(node):
            return node
        known = [name for member in members(node) if (name := self._name(member)) is not None]
        return constant(*known) if len(known) == len(members(node)) else None

    def _name(self, text: str) -> str | None:
        return text if self.graph.entities.number(text) is not None else self._names.get(name_key(text))

    def _relation(self, text: str) -> str | None:
        return text if text in self.graph.relation_names else self._relations.get(plain(spoken(text)))

    @cached_property
    def _names(self) -> dict[NameKey, str]:
        return _by_words(filter(plain, self.graph.entities), name_key)

    @cached_property
    def _relations(self) -> dict[str, str]:
        return _by_words(self.graph.relation_names, lambda relation: plain(spoken(relation)))


def _by_words(texts: Iterable[str], words_of: Callable[[str], K]) -> dict[K, str]:
    """Texts by their words, without those that have none or share them with another."""
    found: dict[K, str] = {}
    shared = set[K]()
    for text in texts:
        words = words_of(text)
        if found.setdefault(words, text) != text:
            shared.add(words)
    return {words: text for words, text in found.items() if words and words not in shared}


def proofs_of(task: Task, leaves: Sequence[LeafExpansion], index: SearchIndex, known: KnownFacts | None) -> Proofs | Objection:
    """The proofs of `task` with all its `leaves` expanded, or the objection.

    `easy`: the question's first hit names an answer (with a graph: is a document of the answer). `defined`: each description fits only its
    name. `type_consistent`, `too_simple` and `stated` are the teacher's judgement. `unproven` lists those that are None.
    """
    formula, question = merged_formula(task, leaves), merged_question(task, leaves)
    defined = None if known is None else _defined(leaves, known)
    if isinstance(defined, Objection):
        return defined
    by_graph = None if known is None else _by_graph(task, formula, question, known, index)
    if isinstance(by_graph, Objection):
        return by_graph
    judged = {
        "type_consistent": _all([leaf.verdict.type_consistent for leaf in leaves]),
        "too_simple": _any([leaf.verdict.too_simple for leaf in leaves]),
        "stated": _all([leaf.stated for leaf in leaves]),
    }
    shown = {**(by_graph or _by_documents(task, formula, question, index)), "defined": defined, **judged}
    return {**shown, "unproven": [name for name, value in shown.items() if value is None]}


def proofs_of_seed(task: Task, index: SearchIndex, known: KnownFacts | None) -> Proofs | Objection:
    """The proofs of a question written from documents, all of whose triples are quoted, or the objection."""
    bare = replace(task, formula=(), proofs={"unsupported": []})
    by_graph = None if known is None else _by_graph(bare, task.formula, task.question, known, index)
    return by_graph if isinstance(by_graph, Objection) else by_graph or _by_documents(bare, task.formula, task.question, index)


def _defined(leaves: Sequence[LeafExpansion], known: KnownFacts) -> bool | Objection | None:
    unknown = False
    for leaf in leaves:
        own = known.in_its_words(definition_of(leaf, TARGET))
        answers = [] if own is None else known.answers(own, 2)
        if others := [answer for answer in answers if name_key(answer) != name_key(leaf.name)]:
            return Objection(ProposalDefect.NOT_UNIQUE, f"{leaf.proposal.description!r} is {others[0]!r} as well, by the graph")
        unknown |= not answers
    return None if unknown else True


def _by_graph(task: Task, formula: Sequence[Triple], question: str, known: KnownFacts, index: SearchIndex) -> Proofs | Objection | None:
    """All proofs by the graph; None where it does not know enough to give the answers."""
    own = known.in_its_words(formula)
    if own is None:
        return None
    accepted = {name_key(answer) for answer in task.answers}
    answers = known.answers(own, len(accepted) + 1)
    if others := [answer for answer in answers if name_key(answer) not in accepted] or answers[len(accepted) :]:
        return Objection(ProposalDefect.NOT_UNIQUE, f"the graph knows another answer: {others[0]!r}")
    if len(answers) < len(accepted):
        return None
    proofs = prove(known.graph, own, question, first_hit(index))
    if proofs.redundant:
        return Objection(ProposalDefect.REDUNDANT, f"the answers are the same without {own[proofs.redundant[0]]}")
    before = [number for number in proofs.unsupported if number < len(task.formula)]  # each later one is quoted from its document
    return {**proofs.record(), "unsupported": before}


def _by_documents(task: Task, formula: Sequence[Triple], question: str, index: SearchIndex) -> Proofs:
    """What documents show; `unsupported` is inherited, since new triples are grounded."""
    first = next(iter(index.search(question, 1)), None)
    return {
        "answers": None,
        "redundant": None,
        "shortcuts": [number for number, triple in enumerate(formula) if is_shortcut(triple)],
        "constant_edges": [],
        "unsupported": task.proofs.get("unsupported"),
        "easy": first is not None and any(mentions(f"{first.title} {first.text}", answer) for answer in task.answers),
    }


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return None if None in verdicts else all(verdicts)


def _any(verdicts: Sequence[bool | None]) -> bool | None:
    return None if None in verdicts else any(verdicts)
