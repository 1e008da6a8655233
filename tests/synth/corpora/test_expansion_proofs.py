"""Proofs of questions over documents: by a graph where it knows enough, otherwise by documents; what is not shown is named."""

from __future__ import annotations

from typing import Any

import pytest

from rl.retrieval.search import SearchIndex
from synth.corpora.outlines import Objection, Outline, ProposalDefect
from synth.corpora.proposals import (
    DescriptionVerdict,
    KnownFacts,
    LeafExpansion,
    merged_formula,
    merged_question,
    proofs_of,
    proofs_of_seed,
)
from synth.formulas.proofs import prove
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import first_hit
from tests.synth.corpora.harbour import COUNTY, DEEP, DOCUMENTS, FACT, FACTS, GOOD, TASK, outline
from warehouse import Fact, Task

INDEX = SearchIndex(DOCUMENTS)
SURE = DescriptionVerdict(True, False)


def known(*more: Fact) -> KnownFacts:
    return KnownFacts(KnowledgeGraph([*FACTS, *more], DOCUMENTS))


def leaf(described: Outline) -> LeafExpansion:
    return LeafExpansion(described, SURE, True)


def shown(described: Outline, graph: KnownFacts | None, task: Task = TASK) -> dict[str, Any]:
    proofs = proofs_of(task, [leaf(described)], INDEX, graph)
    assert isinstance(proofs, dict), proofs
    return proofs


def test_a_graph_that_knows_all_proves_all_as_it_does_for_its_own_questions() -> None:
    proofs, graph = shown(DEEP, known()), known().graph
    own = prove(graph, merged_formula(TASK, [leaf(DEEP)]), merged_question(TASK, [leaf(DEEP)]), first_hit(INDEX))
    assert {name: proofs[name] for name in own.record()} == own.record()
    assert proofs["unproven"] == [] and proofs["defined"] is True and proofs["answers"] == ["Green Lake"]


def test_names_and_relations_in_other_words_are_the_graphs() -> None:
    fact = {**FACT, "subject": "amber  STONE", "relation": "Employer", "object": "Blue-River"}
    assert shown(outline("Blue River", GOOD.words, fact), known())["unproven"] == []
    assert known().in_its_words((("C@blue river | WHITE SAIL", "seat", "?"),)) == (("C@Blue River | White Sail", "seat", "?"),)


@pytest.mark.parametrize("change", [{"relation": "patron"}, {"subject": "Nobody Known"}, {"subject": "Grey Cove"}])
def test_what_a_graph_does_not_know_is_unproven(change: dict[str, str]) -> None:
    proofs = shown(outline("Blue River", GOOD.words, {**FACT, **change}), known())
    assert proofs["unproven"] == ["answers", "redundant", "unsupported", "defined"]
    assert (proofs["answers"], proofs["redundant"], proofs["shortcuts"], proofs["easy"]) == (None, None, [], False)


def test_the_graph_refuses_what_it_knows_better() -> None:
    also = Fact("Amber Stone", "employer", "White Sail", ("d6",), "test")
    refused = proofs_of(TASK, [leaf(GOOD)], INDEX, known(also))
    assert isinstance(refused, Objection) and refused.kind == ProposalDefect.NOT_UNIQUE and "'White Sail' as well" in refused.reason


def test_the_graph_refuses_a_question_of_two_that_differ_in_signs_or_in_case_alone() -> None:
    for answers, other in ((("C++",), "C#"), (("Green Lake",), "green lake")):
        facts = [Fact("Blue River", "language", name, ("d2",), "test") for name in (*answers, other)]
        task = Task("k", "search", "language of Blue River?", answers, (("C@Blue River", "language", "?"),))
        refused = proofs_of_seed(task, INDEX, known(*facts))
        assert isinstance(refused, Objection) and refused.kind == ProposalDefect.NOT_UNIQUE and repr(other) in refused.reason


def test_a_constraint_that_is_not_needed_is_refused() -> None:
    both = outline("Blue River", "the workplace of Amber Stone in the county of Red Hill", FACT, COUNTY)
    refused = proofs_of(TASK, [leaf(both)], INDEX, known())
    assert isinstance(refused, Objection) and refused.kind == ProposalDefect.REDUNDANT and "county" in refused.reason
