"""What can be shown of a question that was expanded over documents: proofs that can be had are run, the others are named.

Where there is a graph, the formula is put into its words: names and relations that differ in case, accents or punctuation alone are the
same. If the graph then gives exactly the answers of the question, all proofs of `synth.formulas.proofs` hold as for any question of the
graph; if it gives others, the question is refused. Where the graph does not know a relation or a fact, or there is none, what only it could
show stands under `unproven`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rl.retrieval.search import SearchIndex
from synth.corpora.proposals import LeafExpansion, Objection, ProposalDefect, merged_formula, merged_question
from synth.formulas.projections import first_answers
from synth.formulas.proofs import prove
from synth.formulas.triples import TARGET, constant, is_constant, members
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Retrieve, first_hit
from synth.questions.text_comparison import mentions, plain
from synth.questions.wording import spoken
from warehouse.records import Task, Triple

Proofs = dict[str, Any]


class KnownFacts:
    """A graph as those see it who write names and relations in their own way."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph

    def in_its_words(self, formula: Sequence[Triple]) -> tuple[Triple, ...] | None:
        """The formula with the graph's own names and relations; None where it does not know one of them."""
        triples = [(self._node(subject), self._relations.get(plain(spoken(name))), self._node(value)) for subject, name, value in formula]
        known = [(subject, name, value) for subject, name, value in triples if subject and name and value]
        return tuple(known) if len(known) == len(formula) else None

    def _node(self, node: str) -> str | None:
        if not is_constant(node):
            return node
        known = [self._names.get(plain(member)) for member in members(node)]
        return None if None in known else constant(*(name for name in known if name is not None))

    @cached_property
    def _names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for number in range(len(self.graph.entities)):
            names.setdefault(plain(self.graph.entities[number]), self.graph.entities[number])
        return names

    @cached_property
    def _relations(self) -> dict[str, str]:
        return {plain(spoken(relation)): relation for relation in self.graph.relations}


def proofs_of(task: Task, leaves: Sequence[LeafExpansion], index: SearchIndex, known: KnownFacts | None) -> Proofs | Objection:
    """What is shown of `task` with all its `leaves` expanded, or what speaks against it.

    `easy` holds where the first document that the question itself finds names an answer; under a graph, where it is a document of the
    answer. `unproven` names what was not shown.
    """
    formula, question = merged_formula(task, leaves), merged_question(task, leaves)
    consistent, simple = ([getattr(leaf.verdict, name) for leaf in leaves] for name in ("type_consistent", "too_simple"))
    judged = {"type_consistent": None if None in consistent else all(consistent), "too_simple": None if None in simple else any(simple)}
    by_graph = None if known is None else _by_graph(task, formula, question, known, first_hit(index))
    if isinstance(by_graph, Objection):
        return by_graph
    shown = {**(by_graph or _by_documents(task, formula, question, index)), **judged}
    return {**shown, "unproven": [name for name, value in shown.items() if value is None]}


def _by_graph(task: Task, formula: Sequence[Triple], question: str, known: KnownFacts, retrieve: Retrieve) -> Proofs | Objection | None:
    """All proofs, by the graph alone; None where it does not know enough to give the answers."""
    own = known.in_its_words(formula)
    if own is None:
        return None
    accepted = {plain(answer) for answer in task.answers}
    answers = first_answers(known.graph, own, len(accepted) + 1)
    if others := sorted(answer for answer in answers if plain(answer) not in accepted):
        return Objection(ProposalDefect.NOT_UNIQUE, f"the graph knows another answer: {others[0]!r}")
    if len(answers) < len(accepted):
        return None
    proofs = prove(known.graph, own, question, retrieve)
    if proofs.redundant:
        return Objection(ProposalDefect.REDUNDANT, f"the answers are the same without {own[proofs.redundant[0]]}")
    return proofs.record()


def _by_documents(task: Task, formula: Sequence[Triple], question: str, index: SearchIndex) -> Proofs:
    """What documents show; `unsupported` is what it was for the triples that were there before, and the new ones are grounded."""
    first = next(iter(index.search(question, 1)), None)
    return {
        "answers": None,
        "redundant": None,
        "shortcuts": [n for n, (s, _, o) in enumerate(formula) if TARGET in (s, o) and (is_constant(s) or is_constant(o))],
        "constant_edges": [],
        "unsupported": task.proofs.get("unsupported"),
        "easy": first is not None and any(mentions(f"{first.title} {first.text}", answer) for answer in task.answers),
    }
