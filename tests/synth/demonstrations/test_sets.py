"""Questions that ask for a set: what shows their solution gives all of it, in the form that the verifier takes."""

from __future__ import annotations

import pytest

from eval.graders.choice import verifiers_of
from eval.graders.verifiers import AnswerVerifier, options_of
from synth.demonstrations.cold_start import DemonstrationConfig, build_demonstrations
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions
from warehouse.records import Document, Fact, PartKind, Task

ROWS = [
    ("Ann", "film", "Dawn"),
    ("Ann", "film", "Dusk"),
    ("Bob", "film", "Noon"),
    ("Dawn", "year", "1950"),
    ("Dusk", "year", "1951"),
    ("Noon", "year", "1952"),
    ("Noon", "star", "Cid; the Elder"),
    ("Noon", "star", "Dee"),
]


@pytest.fixture(scope="module")
def films() -> KnowledgeGraph:
    """Ann was in two films; one of Noon's two stars has a name with a separator in it."""
    facts = [Fact(subject, relation, value, (subject,)) for subject, relation, value in ROWS]
    return KnowledgeGraph(facts, [Document(name, name, f"{name}.", "test") for name in ("Ann", "Bob", "Dawn", "Dusk", "Noon")])


@pytest.fixture(scope="module")
def tasks(films: KnowledgeGraph) -> dict[tuple[str, ...], Task]:
    """Questions by their answers, the deepest of those with the same ones."""
    config = QuestionConfig(counts={1: 20, 2: 20}, set_answers=True)
    found, failures = build_questions(films, config, 1)
    assert {failure.kind for failure in failures} == {RejectionReason.SHORTFALL}
    return {task.answers: task for task in found}


def judged(task: Task, answer: str) -> bool:
    verifier = verifiers_of("qa_em").of(task)
    assert isinstance(verifier, AnswerVerifier)
    return verifier.grader.judge(answer, task.answers, options_of(task, verifier.grader))[1]


def test_every_clean_demonstration_answers_as_the_verifier_asks(films: KnowledgeGraph, tasks: dict[tuple[str, ...], Task]) -> None:
    asked = list(tasks.values())
    examples, failures = build_demonstrations(films, asked, DemonstrationConfig(), 1)
    assert failures == []
    assert sum(task.provenance.get("set", False) for task in asked) >= 3
    for task, example in zip(asked, examples, strict=True):
        assert example.parts[-1].kind is PartKind.ANSWER
        assert judged(task, example.parts[-1].text)
        assert len(task.answers) == 1 or not judged(task, task.answers[0])
