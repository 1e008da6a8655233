"""Reasoning by a teacher in two passes: what the second is shown, its bounds, and who says that its answer is the accepted one."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from eval.judges import Judge
from rl.renderers.tags import tagged_text
from synth.fas.reasoning import AnswerJudge, Assignment, Draft, FasConfig, ReasoningBounds, build_fas, read_second, reason_by_teacher
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Retrieve
from tests.synth.scripted import ScriptedTeacher
from warehouse import Failure, PartKind, Task
from warehouse.errors import RequestError

ASSIGNMENT = Assignment(Task("k", "search", "Who made Alpha?", ("Dan Lee",)), ("Alpha: director Dan Lee",), ("d1",))
STEPS = "Alpha was made by its director, Dan Lee, as is stated."
SHORT = ReasoningBounds(min_words=1)


def reasoned(second: str | None, first: str | None = "Eve, I guess.", verdict: str | None = None, bounds: ReasoningBounds = SHORT):  # type: ignore[no-untyped-def]
    """What comes of the one assignment; `verdict` is what a judge says, where there is one."""

    def says(asked: str) -> str | None:
        if "You grade one answer" in asked:
            return verdict if verdict in (None, "who knows") else json.dumps({"verdict": verdict, "reason": "it says so"})
        return second if "What is known" in asked else first

    teacher = ScriptedTeacher(says)
    answers = AnswerJudge(Judge(teacher) if verdict else None)
    return (*reason_by_teacher(teacher, [ASSIGNMENT], bounds, answers), answers.checks, teacher)


def test_the_second_pass_is_shown_the_knowledge_and_the_attempt() -> None:
    (example,), failures, checks, teacher = reasoned(f"{STEPS} <answer>dan lee</answer>")
    assert failures == []
    assert "What is known" not in teacher.asked[0] and "director" not in teacher.asked[0]
    assert "- Alpha: director Dan Lee" in teacher.asked[1] and "Eve, I guess." in teacher.asked[1]
    assert tagged_text(example.parts) == f"<question> Who made Alpha?</question><think> {STEPS}</think><answer> dan lee</answer>"
    assert example.sources == ("d1",)
    assert [(check.checker, check.accepted) for check in checks] == [("verifier", True)]
    assert checks[0].sample == example.id


@pytest.mark.parametrize(
    ("verdict", "kept", "reason", "said"),
    [
        ("right", True, None, [("verifier", False), ("teacher", True)]),
        ("wrong", False, "fas_reason_not_gold", [("verifier", False), ("teacher", False)]),
        ("who knows", False, "fas_reason_not_judged", [("verifier", False)]),
    ],
)
def test_where_words_differ_a_judge_decides(verdict: str | None, kept: bool, reason: str | None, said: list[tuple[str, bool]]) -> None:
    examples, failures, checks, _ = reasoned(f"{STEPS} <answer>Mr. Dan Lee, the director</answer>", verdict=verdict)
    assert bool(examples) is kept
    assert {failure.kind for failure in failures} == ({reason} if reason else set())
    assert [(check.checker, check.accepted) for check in checks] == said


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ("Nobody knows.", "no_answer"),
        ("<answer>Dan Lee</answer>", "no_reasoning"),
        ("So it is. <answer>Dan Lee</answer>", "too_short"),
        (f"{'so ' * 50}<answer>Dan Lee</answer>", "too_long"),
        ("Alpha was made by its director Lee, as is stated. <answer>Dan Lee</answer>", "not_reached"),
        (f"{STEPS} <answer>Dan Lee</answer>", None),
        (f"<think>{STEPS}</think> <answer>Eve</answer> or rather <answer>Dan Lee</answer>", None),
    ],
)
def test_bounds_on_length_and_a_last_answer(second: str, kind: str | None) -> None:
    draft = read_second(ASSIGNMENT, "first", second, ReasoningBounds(min_words=5, max_words=40))
    if kind is None:
        assert isinstance(draft, Draft) and draft.answer == "Dan Lee" and "think" not in draft.thought
    else:
        assert isinstance(draft, Failure) and draft.kind == f"fas_reason_{kind}"
        assert draft.item["a1"] == "first" and draft.item["a2"]


def test_a_graphs_questions_are_reasoned_on_over_the_documents_that_they_require(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    config = FasConfig(plan_slices=0, reasoning={2: 12}, reasoner="teacher")
    by_oracle, _ = build_fas(graph, FasConfig(plan_slices=0, reasoning={2: 12}), 1, retrieve)
    answers = {example.parts[0].text: example.parts[-1].text for example in by_oracle}
    wrong = list(answers)[:3]

    def says(asked: str) -> str:
        question = asked.split("Question: ")[1].split("\n")[0]
        said = "nobody" if question in wrong else answers[question]
        return f"{STEPS} So it is {said}. <answer>{said}</answer>"

    examples, failures = build_fas(graph, config, 1, retrieve, teacher=ScriptedTeacher(says))
    assert len(examples) == len(answers) - 3 and Counter(failure.kind for failure in failures) == {"fas_reason_not_gold": 3}
    for example in examples:
        asked, thought, answer = example.parts
        assert (asked.kind, thought.kind, answer.kind) == (PartKind.QUESTION, PartKind.THOUGHT, PartKind.ANSWER)
        assert answer.text == answers[asked.text] and len(example.sources) == 3
    with pytest.raises(RequestError, match="reasoner"):
        build_fas(graph, config, 1, retrieve)
