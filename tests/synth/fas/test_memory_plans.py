"""The memory, and plans over its slices by a teacher: what it may write, and what the search and the judge find."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rl.renderers.tags import tagged_text
from synth.corpora.passages import NameFinder
from synth.fas.memory import Memory, Origin, Statement, statements_brought, statements_in
from synth.fas.memory_plans import MemoryPlans, SliceConfig, WrittenQuestion, build_memory_plans, read_questions
from synth.fas.plans import PlanJudge
from tests.synth.scripted import ScriptedTeacher
from warehouse.records import Call, Document, Failure, StopReason, Trajectory, Turn

STATEMENTS = (
    Statement("Alpha", "director", "director Dan", "dAlpha"),
    Statement("Alpha", "", "Alpha was shot in Green Lake in 1994.", "dAlpha", "1994", Origin.PASSAGE),
    Statement("Beta", "", "Beta stars Ann Lee.", "t1/0", None, Origin.RESULT),
)
DOCUMENTS = {title: Document(f"d{title}", title, f"{title} is a film.", "films") for title in ("Alpha", "Beta", "Gamma")}
TOOLS = [{"function": {"name": name, "description": f"{name} things"}} for name in ("search", "lookup")]
TOOLS[0]["function"]["parameters"] = {  # type: ignore[assignment]
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
    "additionalProperties": False,
}


def row(**changed: object) -> dict[str, object]:
    base: dict[str, object] = {"style": "factual", "question": "Who made Alpha?", "answer": "Dan", "requires": [1]}
    return base | changed


def plan(**changed: object) -> str:
    return json.dumps({"plan": ["who made it"], "tool": "search", "arguments": "Alpha", **changed})


def made(
    questions: str | None = json.dumps(row()),
    plans: str | None = plan(),
    verdict: str | None = "yes",
    found: Callable[[str], Document | None] | None = DOCUMENTS.get,
    statements: tuple[Statement, ...] = STATEMENTS[:2],
) -> tuple[MemoryPlans, PlanJudge, ScriptedTeacher]:
    """What comes of one slice with these replies to the three kinds of request."""

    def says(asked: str) -> str | None:
        return questions if "Known statements" in asked else verdict if "Judge a plan" in asked else plans

    teacher = ScriptedTeacher(says)
    judge = PlanJudge(teacher)
    return build_memory_plans(Memory(statements), teacher, judge, 1, SliceConfig(entities=1), 1, TOOLS, found), judge, teacher


def reasons(result: MemoryPlans) -> Counter[str]:
    return Counter(failure.kind.removeprefix("fas_plan_") for failure in result.failures)


def test_a_plan_that_search_and_judge_accept_is_kept() -> None:
    result, judge, teacher = made()
    (example,) = result.examples
    assert tagged_text(example.parts) == "<question> Who made Alpha?</question><think> plan: who made it</think><search> Alpha</search>"
    assert example.sources == ("dAlpha",) and result.failures == []
    assert {(check.checker, check.accepted) for check in judge.checks} == {("index", True), ("teacher", True)}
    assert [question.question for question in result.questions] == ["Who made Alpha?"]
    planning = next(asked for asked in teacher.asked if "Plan how" in asked)
    assert "Dan" not in planning and "director" not in planning, "whoever plans sees nothing of the knowledge"
    judging = next(asked for asked in teacher.asked if "Judge a plan" in asked)
    assert "- Alpha: director Dan" in judging and 'call search with "Alpha"' in judging


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"verdict": "no, logic"}, "teacher_logic"),
        ({"verdict": "who knows"}, "not_judged"),
        ({"plans": plan(arguments="Gamma")}, "other_knowledge"),
        ({"plans": plan(arguments="Delta")}, "no_document"),
        ({"plans": plan(arguments="films by Dan")}, "answer_given"),
        ({"plans": plan(tool="lookup")}, None),
        ({"plans": plan(arguments={"query": "Alpha"})}, None),
        ({"plans": plan(arguments={"author of Alpha": "Alpha"})}, "wrong_arguments"),
        ({"plans": plan(tool="browse")}, "unknown_tool"),
        ({"plans": plan(plan=[])}, "no_plan"),
        ({"plans": plan(plan=["...", "..."])}, "no_plan"),
        ({"plans": f"Sure!\n```json\n{plan()}\n```\nGood luck!"}, None),
        ({"found": None}, None),
    ],
)
def test_what_becomes_of_a_plan(changed: dict[str, str], reason: str | None) -> None:
    result, _, _ = made(**changed)  # type: ignore[arg-type]
    assert (reasons(result)[reason] > 0 and result.examples == []) if reason else len(result.examples) == 1


def test_a_bad_reply_is_asked_for_once_more_and_both_are_rows() -> None:
    replies = iter(["Let me think.", json.dumps(row()), "Hm.", plan(), "maybe", "Yes"])
    teacher = ScriptedTeacher(lambda _: next(replies))
    judge = PlanJudge(teacher)
    result = build_memory_plans(Memory(STATEMENTS[:2]), teacher, judge, 1, SliceConfig(entities=1), 1, TOOLS, DOCUMENTS.get)
    assert len(result.examples) == 1 and len(teacher.asked) == 6
    assert reasons(result) == {"unreadable": 1, "no_plan": 1}
    assert [failure.kind for failure in judge.failures] == ["verdict_unreadable"]


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (row(), None),
        (row(style="odd"), "unreadable"),
        (row(requires=[3]), "rests_on_nothing"),
        (row(question="Did dan make Alpha?"), "answer_leaked"),
        (row(question="Who is Danny?"), None),
        (row(answer="Eve"), "answer_not_stated"),
        (row(style="synthesis", answer="by Dan, at a lake"), None),
        ({"the_question": "Who?"}, "unreadable"),
    ],
)
def test_questions_that_a_teacher_may_write(written: object, kind: str | None) -> None:
    for text in (json.dumps(written), f"Here you are:\n```json\n{json.dumps(written, indent=2)}\n```\n"):
        (read,) = read_questions(text, STATEMENTS[:2])
        assert (read.kind.removeprefix("fas_plan_") if isinstance(read, Failure) else None) == kind
        assert isinstance(read, Failure | WrittenQuestion)


PAGES = [
    Document("d1", "Amber Stone", "Amber Stone is an engineer. She works for Blue River since 1994. " + "She likes tea. " * 30, "notes"),
    Document("d2", "Blue River (company)", "The company is based in Green Lake. It was founded in 1901 and sold in 1950.", "notes"),
    Document("d3", "Green Lake", "A town.", "notes"),
]
FINDER = NameFinder(document.title for document in PAGES)


def run(observation: str, outcome: str | None = "ok") -> Trajectory:
    turn = Turn(0, (), (), "", "search", "Amber", (), f"shown: {observation}", None, outcome, 0.0, 0)
    turn = replace(turn, calls=(Call("search", "Amber", outcome, observation),))
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return Trajectory("t1", "k", "p", "rl", 4, (), (turn,), StopReason.ANSWERED, None, None, 0, time, 1.0)


def test_passages_are_filed_under_their_title_and_every_name_in_them() -> None:
    memory = Memory(statements_in(PAGES, FINDER))
    first, *rest = memory.about("Amber Stone")
    assert first.text.startswith("Amber Stone is an engineer. She works for Blue River since 1994.") and len(first.text) <= 300
    assert (first.source, first.time, first.origin, first.relation) == ("d1", "1994", Origin.PASSAGE, "")
    assert rest and all(statement.source == "d1" for statement in rest)
    assert [statement.source for statement in memory.about("Blue River (company)")] == ["d1", "d2"]
    assert [statement.source for statement in memory.about("Green Lake")] == ["d2", "d3"]
    assert {statement.time for statement in memory.about("Green Lake")} == {None}, "two years, or none, are no time"


def test_tool_results_are_filed_under_known_names_and_under_what_looks_like_one() -> None:
    memory = Memory(statements_brought([run("Amber Stone met Ann of the White Hill in Green Lake, said Ann.")], FINDER))
    assert list(memory) == ["Amber Stone", "Green Lake", "Ann of the White Hill"]
    assert {statement.source for statement in memory.about("Green Lake")} == {"t1/0"}
    assert {statement.origin for statement in memory.about("Green Lake")} == {Origin.RESULT}


@pytest.mark.parametrize("outcome", ["timeout", "not_run", "unparsable"])
def test_what_a_tool_did_not_bring_is_not_remembered(outcome: str) -> None:
    assert not Memory(statements_brought([run("Amber Stone broke.", outcome)], FINDER))
