"""What can be shown of a question that was made or expanded over documents: proofs that can be had are run, the others are named.

Where there is a graph, formulas are put into its words: names and relations that differ in case, accents or punctuation alone are the
same, but for figures and the signs of C++ and C#. Each description is asked as the sub-question that it is: if the graph knows another
thing that it fits, the layer is refused. Then the whole question: if the graph gives exactly its answers, all proofs of
`synth.formulas.proofs` hold as for any question of the graph; if it gives others, or a constraint is not needed, the question is refused.
Where the graph does not know a name, a relation or a fact, or there is none, what only it could show stands under `unproven`, and the view
`unproven` counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from rl.retrieval.search import SearchIndex
from synth.corpora.proposals import LeafExpansion, Objection, ProposalDefect, definition_of, merged_formula, merged_question
from synth.formulas.projections import first_answers
from synth.formulas.proofs import is_shortcut, prove
from synth.formulas.triples import TARGET, constant, is_constant, members
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import first_hit
from synth.questions.text_comparison import NameKey, mentions, name_key, plain
from synth.questions.wording import spoken
from warehouse.records import Task, Triple

Proofs = dict[str, Any]
K = TypeVar("K", bound=Hashable)


class KnownFacts:
    """A graph as those see it who write names and relations in their own way."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph

    def in_its_words(self, formula: Sequence[Triple]) -> tuple[Triple, ...] | None:
        """The formula with the graph's own names and relations; None where it does not know one of them."""
        triples = [(self._node(subject), self._relation(relation), self._node(value)) for subject, relation, value in formula]
        known = [(subject, relation, value) for subject, relation, value in triples if subject and relation and value]
        return tuple(known) if len(known) == len(formula) else None

    def answers(self, formula: Sequence[Triple], enough: int) -> list[str]:
        """What the graph answers to a formula in its words, in alphabetical order; any `enough` where there are more."""
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
    """Texts by their words; those that have none, or share them with another, are left out."""
    found: dict[K, str] = {}
    shared = set[K]()
    for text in texts:
        words = words_of(text)
        if found.setdefault(words, text) != text:
            shared.add(words)
    return {words: text for words, text in found.items() if words and words not in shared}


def proofs_of(task: Task, leaves: Sequence[LeafExpansion], index: SearchIndex, known: KnownFacts | None) -> Proofs | Objection:
    """What is shown of `task` with all its `leaves` expanded, or what speaks against it.

    `easy` holds where the first document that the question itself finds names an answer; under a graph, where it is a document of the
    answer. `defined` holds where each description has its name as only answer. What the teacher judged, and no proof shows, is
    `type_consistent`, `too_simple` and `stated`. `unproven` names what is None.
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
    """What is shown of a question that was made of documents alone, whose every triple is quoted, or what speaks against it."""
    bare = replace(task, formula=(), proofs={"unsupported": []})
    by_graph = None if known is None else _by_graph(bare, task.formula, task.question, known, index)
    return by_graph if isinstance(by_graph, Objection) else by_graph or _by_documents(bare, task.formula, task.question, index)


def _defined(leaves: Sequence[LeafExpansion], known: KnownFacts) -> bool | Objection | None:
    """Whether each description has its name as only answer in the graph; None where it does not know enough of one."""
    unknown = False
    for leaf in leaves:
        own = known.in_its_words(definition_of(leaf, TARGET))
        answers = [] if own is None else known.answers(own, 2)
        if others := [answer for answer in answers if name_key(answer) != name_key(leaf.name)]:
            return Objection(ProposalDefect.NOT_UNIQUE, f"{leaf.proposal.description!r} is {others[0]!r} as well, by the graph")
        unknown |= not answers
    return None if unknown else True


def _by_graph(task: Task, formula: Sequence[Triple], question: str, known: KnownFacts, index: SearchIndex) -> Proofs | Objection | None:
    """All proofs, by the graph alone; None where it does not know enough to give the answers."""
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
    """What documents show; `unsupported` is what it was for the triples that were there before, and the new ones are grounded."""
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
