"""Expander descriptions: choice of facts, checks without a model, proofs, and expanded tasks.

A constant is described by an outline, a tree of quoted facts around it (`best_outline`). The resulting formula is connected and no constant
is adjacent to another; facts about names that the question hides or uses are excluded, so no entity is used twice. The descriptions of one
layer are accepted together or not at all. A quotation cannot prove the relation, so a teacher judges it, and its verdict is recorded as a
judgement.

With a graph, formulas are translated to its names and relations (ignoring case, accents and punctuation, except in figures, C++ and C#).
Descriptions that fit another entity are rejected, and so are questions with other answers or redundant constraints. Properties that the
graph cannot decide are listed under `unproven`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, TypeVar

from rl.retrieval.search import SearchIndex
from synth.corpora.outlines import Objection, Outline, ProposalDefect, QuotedFact, key_of, objection_to_words, outlines
from synth.corpora.passages import Passage, listed_with, sentences_of
from synth.formulas.projections import first_answers
from synth.formulas.proofs import is_shortcut, prove
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
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import first_hit
from synth.questions.text_comparison import NameKey, mentions, name_key, plain, unqualified
from synth.questions.wording import spoken
from warehouse.digests import digest
from warehouse.records import Task, Triple

LONGEST_DESCRIPTION = 400
SEARCHED = 20
"""Pages searched for another entity that fits a description."""
_SENTENCE = re.compile(r"^(?:the|an?) [\w-]+ (?:is|are|was|were|has|had)\b", re.IGNORECASE)
_NOUN_PHRASE = re.compile(r"(?:the|an?) ", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DescriptionVerdict:
    """Result of a validation; None if undetermined. `guess` is the teacher's guess without tools."""

    type_consistent: bool | None
    too_simple: bool | None
    guess: str = ""


@dataclass(frozen=True, slots=True)
class LeafExpansion:
    """A worded outline of a constant, and the teacher's verdicts on the description and its facts (None: undetermined)."""

    outline: Outline
    verdict: DescriptionVerdict
    stated: bool | None = None

    @property
    def name(self) -> str:
        return self.outline.answer

    @property
    def description(self) -> str:
        return self.outline.words


@dataclass(frozen=True, slots=True)
class Layer:
    """Constants of a task that are replaced together, and the descriptions found so far."""

    task: Task
    names: tuple[str, ...]
    found: tuple[LeafExpansion, ...] = ()

    def hidden(self, name: str) -> list[str]:
        """Names that the description of `name` must not contain: answers, intermediate and replaced entities, unknowns; without `name`."""
        own = [other for other in self.names if other != name]
        return list(dict.fromkeys([*_hidden_by(self.task), *own, *(text for leaf in self.found for text in leaf.outline.unknowns)]))

    def met(self, name: str) -> list[str]:
        """Names that the question already uses: hidden names, its constants and names in this layer's descriptions."""
        constants = [member for leaf in leaves_of(self.task) if leaf != name for member in leaf.split(UNION)]
        named = [text for leaf in self.found for text in leaf.outline.named]
        return list(dict.fromkeys([*self.hidden(name), *constants, *named]))


def leaves_of(task: Task) -> list[str]:
    """Constants of a formula, nearest to the target first."""
    constants = [node for layer in layers(task.formula) for node in nodes_of(layer) if is_constant(node)]
    return [node.removeprefix(CONSTANT) for node in dict.fromkeys(constants)]


def not_replaceable(task: Task, names: Sequence[str]) -> list[str]:
    """Those of `names` that cannot be replaced: merged constants and names that the question does not spell."""
    longest_first = sorted(names, key=len, reverse=True)
    found = _spelled(longest_first).finditer(task.question) if names else ()
    spelled = {longest_first[(match.lastindex or 1) - 1] for match in found}
    return [name for name in names if UNION in name or name not in spelled]


def best_outline(facts: Sequence[QuotedFact], layer: Layer, name: str, index: SearchIndex) -> Outline | Objection:
    """Outline that identifies `name` uniquely with the most documents, then the fewest facts, or the reason why there is none.

    Facts about names that the question hides or uses are excluded. Uniqueness is checked against the index only (`rival_of`).
    """
    hidden, used = layer.hidden(name), set(map(key_of, layer.met(name)))
    about = [each for each in facts if key_of(name) in each.ends]
    new = [each for each in facts if not any(_is_used(text, name, hidden, used) for text in each.names)]
    found = [replace(each, answer=name) for each in outlines(new) if key_of(each.answer) == key_of(name)]
    if not found:
        reason = f"{'only facts that may not be used are' if about else 'no fact is'} about {name!r}"
        return Objection(ProposalDefect.ALREADY_USED if about else ProposalDefect.NOT_ABOUT_CONSTANT, reason)
    rival: str | None = None
    for each in sorted(found, key=lambda each: (-len(each.documents), len(each.facts))):
        rival = rival_of(each, index)
        if rival is None:
            return each
    return Objection(ProposalDefect.NOT_UNIQUE, f"{rival!r} fits these facts as well as {name!r}: state other facts")


def _is_used(text: str, name: str, hidden: Iterable[str], used: AbstractSet[NameKey]) -> bool:
    return key_of(text) != key_of(name) and (key_of(text) in used or any(mentions(text, unqualified(secret)) for secret in hidden))


def objection_to_description(outline: Outline, layer: Layer) -> Objection | None:
    """Check the text of a description, alone and within the question."""
    if not _NOUN_PHRASE.match(outline.words) or _SENTENCE.match(outline.words) or outline.words.endswith("?"):
        return Objection(ProposalDefect.NOT_ASKED, 'it must be a noun phrase that begins with "the", not a sentence')
    for secret in layer.hidden(outline.answer):
        if mentions(outline.words, secret):
            return Objection(ProposalDefect.LEAKED, f"it must not name {secret!r}")
    return objection_to_words(outline)


def rival_of(outline: Outline, index: SearchIndex) -> str | None:
    """Another entity that fits the facts about the answer or an unknown according to the documents; None if none is found.

    Facts from the name's own page fit another page that mentions all the same names; other facts fit a name listed next to it in every
    quotation. For an unknown, facts that lead to the answer are skipped: another unknown may lead to another answer. A named page has a
    rival in another page of its title that mentions all other names of the outline.
    """
    met = {end for each in outline.facts for end in each.ends}
    for name in outline.secrets:
        skipped = () if name == outline.answer else (key_of(outline.answer),)
        fitting = _fitting(name, outline.facts, skipped, index)
        if rival := next((text for key, text in fitting.items() if key not in met), None):
            return rival
    named = {key_of(text): text for text in outline.named}
    titled = {key_of(each.passage.title): each.passage for each in outline.facts if key_of(each.passage.title) in named}
    return next(filter(None, (_namesake(passage, named, index) for passage in titled.values())), None)


def _namesake(passage: Passage, named: Mapping[NameKey, str], index: SearchIndex) -> str | None:
    own = key_of(passage.title)
    others = [text for key, text in named.items() if key != own]
    pages = (page for page in index.search(unqualified(passage.title), SEARCHED) if page.id != passage.document)
    return next((page.title for page in pages if key_of(page.title) == own and all(mentions(page.text, text) for text in others)), None)


def _fitting(name: str, facts: Sequence[QuotedFact], skipped: Collection[NameKey], index: SearchIndex) -> dict[NameKey, str]:
    own, key = list[str](), key_of(name)
    listed = list[dict[NameKey, str]]()
    for each in facts:
        if key in each.ends and not any(end in skipped for end in each.ends):
            other = each.names[1 - each.ends.index(key)]
            if key_of(each.passage.title) == key:
                own.append(unqualified(other))
            else:
                listed.append({key_of(text): text for text in listed_with(name, _sentence(each))})
    shown = [*listed, *([_pages(own, index)] if own else [])]
    return reduce(lambda one, other: {end: one[end] for end in one if end in other}, shown) if shown else {}


def _sentence(each: QuotedFact) -> str:
    """Sentence that contains the quotation, since a short quotation may omit names listed with it."""
    return next((sentence for sentence in sentences_of(each.passage.text) if each.fact.quote in sentence), each.fact.quote)


def _pages(names: Sequence[str], index: SearchIndex) -> dict[NameKey, str]:
    hits = index.search(" ".join(names), SEARCHED)
    return {key_of(page.title): page.title for page in hits if all(mentions(f"{page.title} {page.text}", name) for name in names)}


def objection_to_merged(task: Task, leaves: Sequence[LeafExpansion]) -> Objection | None:
    """Check the question with all `leaves` expanded."""
    question = merged_question(task, leaves)
    told = [text for leaf in leaves for text in (leaf.name, *leaf.outline.unknowns) if mentions(question, text)]
    if told:
        return Objection(ProposalDefect.LEAKED, f"the question still names {told[0]!r}")
    problems = validate(merged_formula(task, leaves))
    return Objection(ProposalDefect.MALFORMED_FORMULA, problems[0].detail) if problems else None


def expanded_formula(outline: Outline, formula: Sequence[Triple]) -> tuple[Triple, ...]:
    """Formula with the outline's answer replaced by a variable that the outline's facts define."""
    taken = set(nodes_of(formula))
    fresh = (f"{VARIABLE}x{number}" for number in range(len(taken) + len(outline.unknowns) + 1))
    free = [node for node in fresh if node not in taken]
    variables = {key_of(text): node for text, node in zip(outline.secrets, free, strict=False)}
    old, new = constant(outline.answer), variables[key_of(outline.answer)]
    replaced = [tuple(new if part == old else part for part in triple) for triple in formula]
    return tuple((subject, relation, value) for subject, relation, value in dict.fromkeys((*replaced, *outline.triples(variables))))


def merged_formula(task: Task, leaves: Sequence[LeafExpansion]) -> tuple[Triple, ...]:
    formula = task.formula
    for leaf in leaves:
        formula = expanded_formula(leaf.outline, formula)
    return formula


def merged_question(task: Task, leaves: Sequence[LeafExpansion]) -> str:
    """Question with each name replaced by its description, not recursively."""
    longest_first = sorted(leaves, key=lambda leaf: len(leaf.name), reverse=True)
    spelled = _spelled([leaf.name for leaf in longest_first])
    return spelled.sub(lambda found: longest_first[(found.lastindex or 1) - 1].description, task.question)


def expanded_task(
    task: Task, leaves: Sequence[LeafExpansion], proofs: Mapping[str, Any], teacher: str, structure: str = "layerwise"
) -> Task:
    """Task with all `leaves` expanded, the same answers and new proofs."""
    formula, question = merged_formula(task, leaves), merged_question(task, leaves)
    documents = sorted({document for leaf in leaves for document in leaf.outline.documents})
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
        "description": leaf.description,
        "documents": leaf.outline.documents,
        "unknowns": list(leaf.outline.unknowns),
    }


def _hidden_by(task: Task) -> list[str]:
    replaced = [text for step in task.provenance.get("expansions", ()) for text in (step["constant"], *step.get("unknowns", ()))]
    shown = {name_key(member) for leaf in leaves_of(task) for member in members(leaf)}
    known = (*task.answers, *map(str, task.provenance.get("path", ())), *replaced)
    return [text for text in dict.fromkeys(known) if name_key(text) not in shown]


def _spelled(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(f'({re.escape(name)})' for name in names)})(?!\w)", re.IGNORECASE)


Proofs = dict[str, Any]
K = TypeVar("K", bound=Hashable)


class KnownFacts:
    """A graph that can be queried with other spellings of names and relations."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph

    def in_its_words(self, formula: Sequence[Triple]) -> tuple[Triple, ...] | None:
        """Formula in the graph's names and relations; None if the graph lacks one of them."""
        triples = [(self._node(subject), self._relation(relation), self._node(value)) for subject, relation, value in formula]
        known = [(subject, relation, value) for subject, relation, value in triples if subject and relation and value]
        return tuple(known) if len(known) == len(formula) else None

    def answers(self, formula: Sequence[Triple], enough: int) -> list[str]:
        """Sorted answers of the graph; an arbitrary `enough` of them if there are more."""
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
    """Map the key of each text to the text; empty and ambiguous keys are left out."""
    found: dict[K, str] = {}
    shared = set[K]()
    for text in texts:
        words = words_of(text)
        if found.setdefault(words, text) != text:
            shared.add(words)
    return {words: text for words, text in found.items() if words and words not in shared}


def proofs_of(task: Task, leaves: Sequence[LeafExpansion], index: SearchIndex, known: KnownFacts | None) -> Proofs | Objection:
    """Proofs of `task` with all `leaves` expanded, or the objection.

    `easy`: the question's first search hit names an answer (with a graph: is a document of the answer). `defined`: each description fits
    only its constant. `type_consistent`, `too_simple` and `stated` are judgements of the teacher. `unproven` lists properties that are
    None.
    """
    formula, question = merged_formula(task, leaves), merged_question(task, leaves)
    defined = None if known is None else _defined(leaves, known)
    if isinstance(defined, Objection):
        return defined
    by_graph = None if known is None or not task.formula else _by_graph(task, formula, question, known, index)
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
    """Proofs of a question written from documents, all of whose triples are quoted, or the objection."""
    bare = replace(task, formula=(), proofs={"unsupported": []})
    by_graph = None if known is None or not task.formula else _by_graph(bare, task.formula, task.question, known, index)
    return by_graph if isinstance(by_graph, Objection) else by_graph or _by_documents(bare, task.formula, task.question, index)


def _defined(leaves: Sequence[LeafExpansion], known: KnownFacts) -> bool | Objection | None:
    unknown = False
    for leaf in leaves:
        own = known.in_its_words(leaf.outline.formula)
        answers = [] if own is None else known.answers(own, 2)
        if others := [answer for answer in answers if name_key(answer) != name_key(leaf.name)]:
            return Objection(ProposalDefect.NOT_UNIQUE, f"{leaf.description!r} is {others[0]!r} as well, by the graph")
        unknown |= not answers
    return None if unknown else True


def _by_graph(task: Task, formula: Sequence[Triple], question: str, known: KnownFacts, index: SearchIndex) -> Proofs | Objection | None:
    """Proofs from the graph; None if it cannot derive all answers."""
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
    before = [number for number in proofs.unsupported if number < len(task.formula)]  # later triples are quoted from their documents
    return {**proofs.record(), "unsupported": before}


def _by_documents(task: Task, formula: Sequence[Triple], question: str, index: SearchIndex) -> Proofs:
    """Proofs from the documents. `unsupported` is inherited, since new triples are grounded."""
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
