"""Formulas drawn: every triple once, below what it defines, with what is new marked; and places that overlap nowhere."""

from __future__ import annotations

from collections import Counter

from synth.formulas.drawing import NodeKind, formula_tree, placed, tree_lines
from synth.formulas.triples import layers
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import Retrieve
from warehouse.records import Triple

EXPANDED: tuple[Triple, ...] = (
    ("V@X1", "star", "?"),
    ("?", "birthplace", "C@Aveiro"),
    ("V@X1", "director", "C@Ann Lee"),
    ("V@X1", "year", "C@1990 | 1991"),
)


def test_a_formula_hangs_from_its_target_with_the_directions_of_its_triples() -> None:
    assert tree_lines(formula_tree(EXPANDED)) == [
        "╙── ?",
        "    ├── ←star— V@X1",
        "    │   ├── —director→ Ann Lee",
        "    │   └── —year→ 1990 | 1991",
        "    └── —birthplace→ Aveiro",
    ]


def test_every_triple_of_a_grown_question_is_drawn_in_its_layer(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    wanted = QuestionConfig(counts={2: 12, 3: 6}, structure="layerwise", intersections=0.5, allowed_shortcuts=0)
    tasks, _ = build_questions(graph, wanted, 5, retrieve)
    assert {task.layers for task in tasks} == {2, 3}
    for task in tasks:
        tree = formula_tree(task.formula)
        nodes, edges = placed(tree)
        depths = Counter(nodes[edge.far].layer for edge in edges)
        assert depths == {number: len(layer) for number, layer in enumerate(layers(task.formula), start=1)}
        assert sum(node.kind is NodeKind.CONSTANT for node in nodes) == task.constraints
        assert len({(node.x, node.y) for node in nodes}) == len(nodes)
        assert all(nodes[edge.near].x < nodes[edge.far].x for edge in edges), "layers lie from left to right"
