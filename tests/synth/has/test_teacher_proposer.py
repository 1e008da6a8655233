"""Decisions by a teacher: one writer for all options of a step, one request an option, and no style that gives the taken action away."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from rl.renderers.tags import tagged_text
from synth.has.decisions import Decision, describe, option, steps_of, style_leak
from synth.has.proposers import TeacherProposer, WriterConfig
from synth.has.records import HasConfig, HasExamples, build_has
from tests.synth.runs import run_of, turn_of
from tests.synth.scripted import ScriptedTeacher
from warehouse.records import PartKind, Task, Trajectory

NAMES = [f"{first} {last}" for first in ("Amber", "Blue", "Green", "Red", "White") for last in ("Stone", "River", "Lake", "Hill", "Field")]
THOUGHTS = ("I think that {} would help", "Perhaps {} is what we need here", "It might be best to go for {} now", "Let us try {}")
TASK = Task("k", "search", "Where does the star of Amber Stone live?", ("Green Lake",))


def terse(number: int, *calls: tuple[str, str]) -> Trajectory:
    """A run in the terse style of a small policy."""
    last = len(calls) - 1
    turns = (turn_of(place, tool, said, "" if place == last else f"of {said}", said) for place, (tool, said) in enumerate(calls))
    return run_of(f"t{number}", TASK.key, turns, prompt_ids=())


RUN = terse(0, ("search", "Amber Stone"), ("search", "Blue River"), ("answer", "Green Lake"))


def many(count: int) -> list[Trajectory]:
    """Runs of three steps each, whose names are drawn from all."""
    chance = random.Random(3)
    return [terse(n, *((tool, chance.choice(NAMES)) for tool in ("search", "search", "answer"))) for n in range(count)]


def written(think: str, tool: str, argument: object) -> str:
    return json.dumps({"think": think, "tool": tool, "arguments": argument})


writer_chance = random.Random()
"""What the writer draws its words by: two requests of one text have replies of their own, as they have by their seeds."""


@pytest.fixture(autouse=True)
def _begin_anew() -> None:
    writer_chance.seed(7)


def taken_in(asked: str) -> tuple[str, str] | None:
    """The call that a request wants rewritten; None where it wants another action."""
    found = re.search(r"now calls (\w+) with: (.*)\n", asked)
    return None if found is None else (found[1], found[2])


def writer(asked: str) -> str:
    """A model with a style of its own, in which it writes whatever it is asked for."""
    chance = writer_chance
    tool, name = taken_in(asked) or ("search" if chance.random() < 2 / 3 else "answer", chance.choice(NAMES))
    return written(chance.choice(THOUGHTS).format(name), tool, name)


def decided(
    runs: Sequence[Trajectory], says: Callable[[str], str | None], spare: int = 2, tools: Sequence[str] = (), **more: int
) -> HasExamples:
    config = HasConfig(mixture={"teacher": 1.0}, **more)  # type: ignore[arg-type]
    proposer = TeacherProposer(ScriptedTeacher(says), WriterConfig(spare_requests=spare), tools)
    return build_has(None, runs, {TASK.key: TASK}, config, 1, proposers={"teacher": proposer})


def as_it_was(decision: Decision) -> Decision:
    """The decision with the taken action in its own words."""
    options = list(decision.options)
    options[decision.chosen] = describe(decision.step.turn)
    return replace(decision, options=tuple(options))


@pytest.mark.slow
def test_style_does_not_give_the_taken_action_away() -> None:
    made = decided(many(200), writer, n_alternatives=3)
    assert {failure.kind for failure in made.failures} <= {"proposal_repeated", "has_step_too_few_alternatives"}
    found = style_leak(made.records)
    assert found is not None and found.choices > 570
    assert found.chance == pytest.approx(1 / 4, abs=0.01)
    assert found.excess < 0.08
    terse = style_leak([replace(record, steps=tuple(map(as_it_was, record.steps))) for record in made.records])
    assert terse is not None and terse.found > 0.9, "the classifier finds what was not written anew"


def test_each_option_is_a_request_of_its_own_and_shows_what_is_there() -> None:
    teacher = ScriptedTeacher(writer)
    proposer = TeacherProposer(teacher, tools=("answer",))
    (step, *_) = steps_of(RUN, TASK.question)
    assert proposer.prepare([step], 3) == []
    first, *others = teacher.asked
    assert taken_in(first) == ("search", "Amber Stone") and len(others) == 3
    for number, asked in enumerate(others, start=1):
        assert len(re.findall(r"^- ", asked, re.M)) == number and taken_in(asked) is None
        assert "- " + proposer.taken(step).text in asked  # type: ignore[union-attr]
    taken = proposer.taken(step)
    assert taken is not None and taken.text != describe(step.turn).text and taken.calls == (("search", "Amber Stone"),)
    assert len(proposer.propose(step, 9, (), random.Random(0))) == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (written("so", "search", "White Hill"), None),
        ("Sure!\n```json\n" + written("so", "search", "White Hill") + "\n```\nAnything else?", None),
        ("I'm sorry, but I can't help with that.", "proposal_unreadable"),
        (written("...", "search", "White Hill"), "proposal_unreadable"),
        (written("so", "search", "..."), "proposal_unreadable"),
        (written("so", "browse", "White Hill"), "proposal_unknown_tool"),
        (written("so", "search", {"id": "White Hill"}), "proposal_wrong_arguments"),
        (written("as before", "search", "amber stone!"), "proposal_repeated"),
        (None, "timeout"),
    ],
)
def test_what_a_teacher_may_write_for_an_alternative(reply: str | None, kind: str | None) -> None:
    made = decided([RUN], lambda asked: writer(asked) if taken_in(asked) else reply, spare=0, tools=("answer",), n_alternatives=1)
    kinds = Counter(failure.kind for failure in made.failures)
    if kind is None:
        assert kinds == {} and all(len(step.options) == 2 for step in made.records[0].steps)
    else:
        assert kinds[kind] == (1 if kind == "proposal_repeated" else 3)
        assert kinds["has_step_too_few_alternatives"] == kinds[kind]


@pytest.mark.parametrize(
    "reply",
    [
        written("so", "answer", "Amber Stone"),
        written("so", "search", "Amber"),
        "no",
        written("so", "search", "Amber Stone is a good choice for a search, given the question that was asked"),
    ],
)
def test_a_taken_action_that_became_another_is_asked_for_again_and_then_left_out(reply: str) -> None:
    made = decided(
        [terse(0, ("search", "Amber Stone"), ("search", "Blue River"))],
        lambda asked: reply if taken_in(asked) == ("search", "Amber Stone") else writer(asked),
        n_alternatives=1,
    )
    kinds = Counter(failure.kind for failure in made.failures)
    assert kinds["proposal_unreadable" if reply == "no" else "proposal_taken_changed"] == 4
    assert kinds["has_step_too_few_alternatives"] == 1
    assert [step.is_choice for step in made.records[0].steps] == [False, True]


def test_a_step_with_too_few_alternatives_is_left_out_and_not_its_trajectory() -> None:
    def says(asked: str) -> str:
        return writer(asked) if taken_in(asked) or "-> of Blue" in asked or "nothing yet" in asked else "Hm."

    made = decided([RUN], says)
    (left_out,) = [failure for failure in made.failures if failure.kind.startswith("has_")]
    assert left_out.kind == "has_step_too_few_alternatives"
    assert left_out.item == {"trajectory": "t0", "turn": 1, "alternatives": 0, "wanted": 2}
    (example,) = made.examples
    text = tagged_text(example.parts)
    assert text.count("I will choose option") == 2
    assert "<think> Blue River</think><search> Blue River</search><information> of Blue River</information>" in text
    kept = [part for part in example.parts if part.kind is PartKind.CALL and part.text == "Blue River"]
    assert [part.learnt for part in kept] == [False]
    listed = decided([RUN], says).records[0]
    assert [step.is_choice for step in listed.steps] == [True, False, True]


@pytest.mark.slow
def test_the_writer_of_the_taken_action_is_one_of_its_alternatives() -> None:
    """With half of the alternatives by another, the taken action is in the teacher's words half of the time."""

    class Terse:
        def prepare(self, steps, count):  # type: ignore[no-untyped-def]
            return []

        def propose(self, step, count, excluded, rng):  # type: ignore[no-untyped-def]
            calls = [(rng.choice(("search", "search", "answer")), name) for name in rng.sample(NAMES, len(NAMES))]
            return [o for o in (option(name, (tool, name)) for tool, name in calls) if o.action not in excluded][:count]

        def taken(self, step):  # type: ignore[no-untyped-def]
            return describe(step.turn)

    config = HasConfig(mixture={"teacher": 0.5, "terse": 0.5}, n_alternatives=2)
    proposers = {"teacher": TeacherProposer(ScriptedTeacher(writer)), "terse": Terse()}
    made = build_has(None, many(200), {TASK.key: TASK}, config, 1, proposers=proposers)
    steps = [step for record in made.records for step in record.steps if step.is_choice]
    anew = sum(step.taken.text != describe(step.step.turn).text for step in steps) / len(steps)
    assert 0.43 < anew < 0.57
    found = style_leak(made.records)
    assert found is not None and found.excess < 0.08
