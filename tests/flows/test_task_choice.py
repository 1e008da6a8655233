"""A condition chooses the tasks of RL; a wrong choice is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config import FlywheelConfig, load_config
from flows.inputs import check_conditions, check_inputs, choose_tasks
from flows.lakes import reading
from flows.plan import completed_in
from tests.flows.homes import NOW, SMALL
from warehouse import Lake, Run, Task
from warehouse.errors import RequestError

ALONE = ('wheel.stages=["rl"]', "synth.webshaper.counts={}", "rl.rewards.parts={}")
OWN = {"source": "gsm8k", "verifier": "gsm8k"}
TASKS = (
    Task("own-1", "python", "How many apples are left over in the basket after the market?", ("3",), provenance=OWN),
    Task("made-1", "search", "Where does Amber Stone live?", ("Oslo",), hops=2),
    Task("far-1", "tool_world", "Book a flight.", (), hops=5),
    Task("suite-1", "python", "How old is the captain of the ship?", ("41",), split="held_out"),
    Task("gsm8k-1", "python", "How much is the fish?", ("2",), split="gsm8k", provenance={"suite": "gsm8k"}),
)


def home_of(root: Path, *tasks: Task) -> Path:
    with Lake(root) as lake:
        lake.add(tasks)
    return root


def check_choice(config: FlywheelConfig, home: Path) -> None:
    check_conditions(config)
    with reading(home) as lake:
        check_inputs(config, home, lake, completed_in(lake), whole=False)


def chosen(root: Path, *settings: str) -> list[str]:
    with Lake(root) as lake:
        return [task.key for task in choose_tasks(lake, load_config(SMALL, settings), 1)[0]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with tasks of its own, imported ones, and two suites."""
    return home_of(tmp_path_factory.mktemp("home"), *TASKS)


@pytest.mark.slow
def test_training_tasks_are_drawn_unless_a_condition_says_which(home: Path) -> None:
    assert chosen(home) == ["far-1", "made-1", "own-1"]
    assert chosen(home, "rl.tasks=split = 'train' AND (provenance->>'source') = 'gsm8k'  -- the imported ones") == ["own-1"]


WRONG = (
    ("rl.tasks=splitt = 'train'", "rl.tasks = .*splitt"),
    ("rl.tasks=TRUE); DELETE FROM tasks; SELECT (1", "more than a condition"),
    ("rl.tasks=split = 'nothing'", "no task that matches rl.tasks = \"split = 'nothing'\""),
    ("rl.tasks=TRUE", "2 tasks of gsm8k, held_out"),
    ("rl.horizon.mixture={python=1, game=1}", "names the environment 'game'.*python, search, tool_world"),
    ("rl.horizon.mixture={python=1, tool_world=1}", "5 hops or more, but rl.horizon.hops allows at most 4"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "reason"), WRONG)
def test_a_wrong_condition_is_refused_by_the_stage_and_before_the_run(setting: str, reason: str, home: Path) -> None:
    with pytest.raises(RequestError, match=reason):
        check_choice(load_config(SMALL, (*ALONE, setting)), home)
    with pytest.raises(RequestError, match=reason if "DELETE" not in setting else "not a valid condition|single SELECT"):
        chosen(home, setting)


@pytest.mark.slow
def test_tasks_that_synthesis_will_make_are_not_required_before_it(tmp_path: Path) -> None:
    home = home_of(tmp_path / "home")
    for config in (load_config(SMALL), load_config(SMALL, ['wheel.stages=["cpt"]', "synth.webshaper.counts={}"])):
        check_choice(config, home)
        check_choice(config, tmp_path / "none")
    for place in (home, tmp_path / "none"):
        with pytest.raises(RequestError, match="has no task that matches"):
            check_choice(load_config(SMALL, ALONE), place)
    with Lake(home) as lake:
        lake.add([Run("t1-synth", "synth", 1, {}, "d", 0, 1, "completed", NOW)])
    with pytest.raises(RequestError, match="has no task that matches"):
        check_choice(load_config(SMALL), home)


def test_tasks_of_a_later_suite_are_not_drawn(tmp_path: Path) -> None:
    same = Task("late-1", "python", TASKS[0].question, ("3",), split="late", provenance={"suite": "late"})
    home = home_of(tmp_path, *TASKS, same)
    with Lake(home) as lake:
        tasks, met = choose_tasks(lake, load_config(SMALL), 1)
    assert "own-1" not in {task.key for task in tasks}
    assert [(failure.stage, failure.item["task"], failure.item["suite"]) for failure in met] == [("decontamination", "own-1", "late")]
    with pytest.raises(RequestError, match=r"all 1 tasks that match rl.tasks .* own-1 "):
        chosen(home, "rl.tasks=key = 'own-1'")
