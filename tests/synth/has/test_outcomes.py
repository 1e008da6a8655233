"""Choices labelled by what happens: a teacher goes on from each option in a real environment, and the verifier judges."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from eval.graders.choice import SHORT_ANSWERS
from rl.envs.config import EnvironmentPoolConfig
from rl.retrieval.indexes import build_indexes
from rl.retrieval.search import passage
from rl.rewards.reward import reward_trajectories
from rl.rollouts.agent_loop import RolloutRequest
from rl.supervised.config import TaughtRunsConfig
from synth.has.decisions import Option, Step, describe, option
from synth.has.outcomes import CONTINUES, OutcomesConfig, Player
from synth.has.records import HasConfig, HasExamples, build_has
from synth.teachers.play import play
from tests.rl.conftest import DOCUMENTS
from tests.rl.envs.test_tool_world import task_of
from tests.synth.runs import run_of, turn_of
from tests.synth.scripted import ScriptedTeacher, calling
from warehouse.records import ANSWER, Call, Failure, Outcome, Task, Trajectory, Turn

SEAT = Task("seat", "search", "Where is the seat of Amber Stone's employer?", ("Green Lake",))
AMBER, BLUE, QUIET, NOBODY = "Amber Stone", "Blue River", "Quiet Harbor", "Nobody"
TEXTS = {document.title: passage(document) for document in DOCUMENTS}
MIXTURE = {"named": 1.0}


@dataclass
class Named:
    """Proposes the same alternatives everywhere."""

    options: Sequence[Option]

    def prepare(self, steps: Sequence[Step], count: int) -> list[Failure]:
        return []

    def propose(self, step: Step, count: int, excluded: Collection[str], rng: random.Random) -> list[Option]:
        return [found for found in self.options if found.action not in excluded][:count]

    def taken(self, step: Step) -> Option | None:
        return describe(step.turn)


@dataclass
class Stage:
    """A player whose words are scripted, and the runs that it was asked for and made."""

    teacher: ScriptedTeacher
    asked: list[RolloutRequest] = field(default_factory=list)
    runs: list[Trajectory] = field(default_factory=list)

    @property
    def player(self) -> Player:
        return Player(self.teacher.name, self._play)

    def _play(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        self.asked += requests
        played = play(requests, self.teacher, EnvironmentPoolConfig(), build_indexes(DOCUMENTS), TaughtRunsConfig(), 4)
        self.runs = reward_trajectories([request.task for request in requests], played, SHORT_ANSWERS).trajectories
        return self.runs


def reader(text: str) -> str:
    """Answers with the seat if the last result names it, else gives up."""
    return "Green Lake" if "seat in Green Lake" in text else "I cannot say"


def turn(index: int, tool: str, argument: str, brought: str | None = None) -> Turn:
    seen = TEXTS.get(argument, "") if brought is None else brought
    call = Call(tool, argument, None if tool == ANSWER else "ok", seen)
    return turn_of(index, tool, argument, seen, calls=(call,), tool_outcome=call.outcome)


def stored(*turns: Turn, task: Task = SEAT, outcome: Outcome = Outcome.FAILURE) -> Trajectory:
    return run_of("run", task.key, turns, outcome, seed=7)


def searching(*queries: str) -> list[Option]:
    return [option("", ("search", query)) for query in queries]


def labelled(run: Trajectory, alternatives: Sequence[Option], stage: Stage, task: Task = SEAT, **changed: Any) -> HasExamples:
    outcomes = OutcomesConfig(player="teacher", **changed)
    config = HasConfig(n_alternatives=len(alternatives), mixture=MIXTURE, outcomes=outcomes)
    return build_has(None, [run], {task.key: task}, config, 1, proposers={"named": Named(alternatives)}, player=stage.player)


def kinds(made: HasExamples) -> list[str]:
    return [failure.kind for failure in made.failures]


def test_the_better_alternative_is_chosen_and_its_continuation_is_what_follows() -> None:
    stage = Stage(ScriptedTeacher(reader))
    made = labelled(stored(turn(0, "search", QUIET), turn(1, ANSWER, NOBODY)), searching(BLUE), stage)
    assert made.failures == []
    for place, record in enumerate(made.records):
        assert record.correct and record.trajectory_id in {run.id for run in stage.runs}
        assert [step.is_choice for step in record.steps] == [number == place for number in range(2 + place)]
        assert record.steps[place].taken.calls == (("search", BLUE),) and record.steps[place].responses == [TEXTS[BLUE]]
        assert record.steps[-1].taken.calls == ((ANSWER, "Green Lake"),)
    assert [example.sources for example in made.examples] == [(record.trajectory_id,) for record in made.records]
    assert len(made.examples) == 2 and all(example.text.endswith("My decision is Correct") for example in made.examples)
    first = [run for run in stage.runs if run.provenance[CONTINUES]["turn"] == 0]
    outcomes = {(run.provenance[CONTINUES]["option"], run.sample): run.outcome for run in first}
    assert outcomes == {
        (f"search {query}", number): outcome
        for query, outcome in ((QUIET, Outcome.FAILURE), (BLUE, Outcome.SUCCESS))
        for number in range(2)
    }  # fmt: skip


def test_where_the_action_taken_is_best_the_record_is_the_runs_own() -> None:
    stage = Stage(ScriptedTeacher(reader))
    run = stored(turn(0, "search", AMBER), turn(1, "search", BLUE), turn(2, ANSWER, "Green Lake"), outcome=Outcome.SUCCESS)
    made = labelled(run, searching(QUIET), stage, turns=1)
    (record,) = made.records
    assert (record.trajectory_id, record.correct) == ("run", True)
    assert [step.is_choice for step in record.steps] == [False, True, True]
    assert record.steps[1].taken.calls == (("search", BLUE),) and record.steps[2].taken.calls == ((ANSWER, "Green Lake"),)
    assert kinds(made) == ["has_step_no_contrast"]
    last = [request for request in stage.asked if request.provenance[CONTINUES]["turn"] == 2]
    assert [request.provenance[CONTINUES]["taken"] for request in last].count(True) == 1, "an answer is tried once"


def test_the_steps_before_are_replayed_and_nobody_is_asked_about_them() -> None:
    stage = Stage(ScriptedTeacher(reader))
    run = stored(turn(0, "search", AMBER), replace(turn(1, "search", ""), calls=(), tool=None), turn(2, "search", QUIET))
    made = labelled(run, searching(BLUE), stage)
    (branch,) = (record for record in made.records if record.trajectory_id != "run" and record.steps[1].is_choice)
    assert [step.responses for step in branch.steps][:2] == [[TEXTS[AMBER]], [TEXTS[BLUE]]]
    request = next(asked for asked in stage.teacher.requests if len(asked.messages) == 6)
    expected = (calling("search", query=AMBER), TEXTS[AMBER], calling("search", query=BLUE), TEXTS[BLUE])
    assert all(message.content.startswith(said) for message, said in zip(request.messages[2:], expected, strict=True))
    assert {request.replay.seed for request in stage.asked if request.replay} == {7}
    assert all(request.horizon == request.provenance[CONTINUES]["replayed"] + 5 for request in stage.asked)


def test_an_invalid_continuation_is_no_failure() -> None:
    """One of two continuations of the action taken gets no reply: had it failed, the alternative that always succeeds would be better."""
    heard: list[str] = []

    def says(text: str) -> str | None:
        heard.append(text)
        return None if heard.count(text) == 1 and "seat in" in text else reader(text)

    run, spelt = stored(turn(0, "search", BLUE), outcome=Outcome.SUCCESS), "where Blue River has its seat"
    stage = Stage(ScriptedTeacher(says))
    made = labelled(run, searching(AMBER, spelt), stage)
    assert sorted(str(run.outcome) for run in stage.runs) == ["failure"] * 2 + ["invalid"] + ["success"] * 3
    assert {run.error for run in stage.runs} == {None, "timeout: no answer in time"}
    (record,) = made.records
    assert record.trajectory_id == "run" and record.steps[0].taken.calls == (("search", BLUE),), "a tie is decided for the action taken"
    assert len(record.steps[0].options) == 3


def test_without_a_verdict_there_is_no_label() -> None:
    made = labelled(stored(turn(0, "search", BLUE)), searching(AMBER), Stage(ScriptedTeacher(lambda text: None)))
    (failure,) = made.failures
    assert (failure.kind, failure.reason) == ("has_step_outcome_unknown", "timeout: no answer in time")
    assert failure.item == {"trajectory": "run", "turn": 0, "rates": [None, None]} and not made.examples


@pytest.mark.parametrize("broken", ["before", "taken", "unreadable"])
def test_a_state_that_cannot_be_replayed_gives_no_label(broken: str) -> None:
    turns = [turn(0, "search", AMBER), turn(1, "search", QUIET), turn(2, ANSWER, NOBODY)]
    if broken == "before":
        turns[0] = turn(0, "search", AMBER, "Amber Stone was employed by somebody else.")
    elif broken == "taken":
        turns[1] = turn(1, "search", QUIET, "It was open on that day.")
    else:
        turns[1] = replace(turns[1], calls=(), tool=None, action="I think so")
    made = labelled(stored(*turns), searching(BLUE), Stage(ScriptedTeacher(reader)))
    refused = {failure.item["turn"]: failure.reason for failure in made.failures if failure.kind == "has_step_not_replayed"}
    expected = {
        "before": dict.fromkeys(range(3), "replay: turn 0 returned other results than before"),
        "taken": dict.fromkeys((1, 2), "replay: turn 1 returned other results than before"),
        "unreadable": {1: "replay: the action has no call"},
    }
    assert refused == expected[broken]
    assert len(made.records) == 3 - len(refused)


def lend(member: str) -> tuple[str, str]:
    return "lend", json.dumps({"book": "B1", "member": member})


def test_in_a_tool_world_the_state_says_which_call_was_better() -> None:
    """One copy of B1 is left: the run looked at it, then lent it to somebody else."""
    task = task_of(verifier="state")
    look = ("look", json.dumps({"book": "B1"}))
    run = stored(
        turn(0, *look, json.dumps([{"title": "Dune", "copies": 1}])), turn(1, *lend("M3"), "done"), turn(2, ANSWER, "done"), task=task
    )
    stage = Stage(ScriptedTeacher(lambda text: "done"))
    made = labelled(run, [option("", lend("M2")), option("", look)], stage, task)
    chosen = [[step.taken.calls[0] for step in record.steps if step.is_choice] for record in made.records]
    assert chosen[1] == [lend("M2")] and len(made.records[1].steps[1].options) == 3
    assert kinds(made) == ["has_step_no_contrast"], "once it is lent, nothing reaches the goal"
    states = {run.provenance[CONTINUES]["turn"] for run in stage.runs if run.outcome is Outcome.SUCCESS}
    assert states == {0, 1}


def test_an_action_that_cannot_be_written_leaves_its_option_out_alone() -> None:
    stage = Stage(ScriptedTeacher(reader))
    unknown = option("", ("browse", "no object"))
    made = labelled(stored(turn(0, "search", QUIET)), [unknown, *searching(BLUE)], stage)
    (record,) = made.records
    assert [found.calls[0][0] for found in record.steps[0].options] == ["search", "search"]
    errors = {run.error for run in stage.runs if run.provenance[CONTINUES]["option"] == unknown.action}
    assert len(errors) == 1 and str(errors.pop()).startswith("replay: the arguments of browse are no object")
