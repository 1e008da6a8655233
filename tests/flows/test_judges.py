"""A judge by configuration: refused where it has no model, where its model is no server and where it judges wrongly; then used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eval.graders.choice import ABSENT_JUDGE, JUDGE, Verifiers, verifiers_of
from eval.judges import TURNS, Judge
from flows.cli import app
from flows.config import FlywheelConfig, load_config
from flows.context import RunContext, open_context
from flows.data.imports import TaskImport, import_tasks
from flows.home import Home
from flows.preflight import preflight
from flows.suites.config import find_suite
from flows.verification import reverify_home
from rl.rewards.config import RewardConfig
from rl.rewards.reward import RewardContext, RewardValue, find_functions, reward_trajectories
from tests.eval.test_judges import grading, judging, sensible, step, strict
from tests.rl.rewards.test_rewards import attempt
from tests.rl.toy import trajectory
from tests.synth.scripted import ScriptedTeacher
from tests.synth.teachers.misbehaving_server import Answer, MisbehavingServer
from warehouse import Check, Completion, Lake, Outcome, Score, Task, Trajectory
from warehouse.errors import RequestError

SMALL = str(Path(__file__).parent.parent / "end_to_end" / "small.toml")
LAKE = Task("lake", "search", "Which lake?", ("Green Lake",))
NAMED = replace(LAKE, key="named", provenance={"verifier": JUDGE})
ENGINE = ("evaluation.judge.kind=engine", "evaluation.judge.path=/models/judge")


def answers(body: dict[str, object]) -> str:
    """A model that judges answers and steps by rules."""
    prompt = str(body["messages"])
    return judging(sensible)(body) if "You judge one step" in prompt else grading(strict)(body)


def server_settings(server: MisbehavingServer, *more: str) -> list[str]:
    judge = {"kind": "openai", "model": "small", "base_url": server.url, "first_pause_seconds": "0.01"}
    return [*(f"evaluation.judge.{key}={value}" for key, value in judge.items()), *more]


@contextmanager
def home_with(root: Path, answer: Answer, *settings: str) -> Iterator[tuple[RunContext, MisbehavingServer]]:
    with MisbehavingServer(answer=answer) as server:
        Home(root).claim(load_config(SMALL, server_settings(server, *settings)))
        with open_context(root) as context:
            yield context, server


def ran(name: str, task: Task, answer: str) -> Trajectory:
    made = attempt(1.0, *(step(0, "<search>Which lake</search>", "Green Lake is a lake."),)).trajectory
    last = replace(made.turns[0], index=1, tool="answer", arguments=answer, action=f"<answer>{answer}</answer>", calls=(), observation="")
    return replace(trajectory(task.key, 0, (made.turns[0], last), None), id=name, outcome=None)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["evaluation.verifier=judge"], "evaluation.judge is needed, for evaluation.verifier asks for one"),
        (["rl.rewards.verifier=judge"], "evaluation.judge is needed, for rl.rewards.verifier asks for one"),
        (["rl.rewards.parts={turn_judge=0.2}"], "evaluation.judge is needed, for rl.rewards.parts.turn_judge asks for one"),
        (["later.rl.rewards.verifier=judge"], "evaluation.judge is needed, for rl.rewards.verifier asks for one"),
        (["evaluation.verifier=judge", *ENGINE], "judges what is stored alone, and evaluation.verifier asks for it"),
        (["evaluation.verifier=judges"], "there is no verifier 'judges'; choose one of .*, judge"),
    ],
)
def test_a_judge_without_a_model_that_serves_is_refused_by_its_key(settings: list[str], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        load_config(SMALL, settings)


def test_a_part_of_weight_nothing_asks_nobody() -> None:
    assert load_config(SMALL, ["rl.rewards.parts={turn_judge=0}"]).asks_judge is None
    assert load_config(SMALL).asks_judge is None


def test_a_judge_whose_server_is_silent_is_found_before_anything_starts(tmp_path: Path) -> None:
    settings = [
        "evaluation.verifier=judge",
        *(f"evaluation.judge.{s}" for s in ("kind=openai", "model=m", "base_url=http://127.0.0.1:9/v1")),
    ]
    with pytest.raises(RequestError, match=r"evaluation\.judge\.base_url: nothing answers at http://127\.0\.0\.1:9/v1"):
        preflight(load_config(SMALL, settings), tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_tasks_that_name_a_judge_are_no_ones_where_none_is_open() -> None:
    verifiers = verifiers_of("qa_em")
    assert verifiers.of(NAMED) is ABSENT_JUDGE and verifiers.lack(NAMED) and not verifiers.lack(LAKE)
    (judged,), (score,), _ = reward_trajectories([NAMED], [ran("a", NAMED, "Green Lake")], verifiers)
    assert judged.outcome is Outcome.INVALID and "evaluation.judge" in str(score.error)


def test_a_judge_is_asked_once_for_all_that_are_its_own() -> None:
    asked: list[list[str]] = []

    class Kept(ScriptedTeacher):
        def complete(self, requests):  # type: ignore[no-untyped-def]
            asked.append([request.messages[-1].content for request in requests])
            return super().complete(requests)

    judge = Judge(Kept(lambda prompt: grading(strict)({"messages": [{"content": prompt}]})))
    tasks = [NAMED, LAKE, NAMED, NAMED]
    runs = [ran("a", NAMED, "the Green Lake"), ran("b", LAKE, "Green Lake"), ran("c", NAMED, "Red"), ran("d", NAMED, "It is Green Lake.")]
    rewarded = reward_trajectories(tasks, runs, Verifiers(verifiers_of("qa_em").default, {}, judge))
    assert [(score.trajectory_id, score.verifier, score.value) for score in rewarded.scores] == [
        ("a", "judge:scripted", 1.0),
        ("b", "qa_em", 1.0),
        ("c", "judge:scripted", 0.0),
        ("d", "judge:scripted", 1.0),
    ]
    assert [len(prompts) for prompts in asked] == [3]


@pytest.mark.slow
def test_a_home_whose_verifier_is_a_judge_calibrates_it_once(tmp_path: Path) -> None:
    with home_with(tmp_path, answers, "evaluation.verifier=judge") as (context, server):
        context.calibrate()
        assert len(server.bodies) == 20
        rewarded = reward_trajectories([LAKE], [ran("a", LAKE, "It is Green Lake.")], context.verifiers(tasks=[LAKE]))
        assert rewarded.trajectories[0].outcome is Outcome.SUCCESS and len(server.bodies) == 21
        assert len(context.lake.read(Check, "kind = 'calibration' AND accepted")) == 20
        assert len(context.lake.read(Completion)) == 21
    with open_context(tmp_path) as again:
        assert again.verifiers().default.name == "judge:openai:small", "what it said of the labelled pairs is in the lake"


@pytest.mark.slow
def test_a_judge_that_says_yes_to_all_judges_nothing(tmp_path: Path) -> None:
    with home_with(tmp_path, grading(lambda *_: True), "rl.rewards.verifier=judge") as (context, _):
        with pytest.raises(RequestError, match=r"may not judge: .*falls short on specific wrong and vague wrong"):
            context.calibrate()
        with pytest.raises(RequestError, match="may not judge"):
            context.verifiers("judge")
        assert context.verifiers().default.name == "qa_em", "who asks for no judge needs none"
        assert context.lake.query("SELECT count(*) AS n FROM checks WHERE NOT accepted").to_pylist() == [{"n": 13}]


@pytest.mark.slow
def test_tasks_and_suites_that_name_it_have_it_opened_and_others_not(tmp_path: Path) -> None:
    with home_with(tmp_path, answers) as (context, server):
        assert context.verifiers(tasks=[LAKE]).judge is None and not server.bodies
        assert context.verifiers(tasks=[LAKE, NAMED]).of(NAMED).name == "judge:openai:small"
    Home(tmp_path / "none").claim(load_config(SMALL))
    with open_context(tmp_path / "none") as without, pytest.raises(RequestError, match=r"set evaluation\.judge\.kind = openai"):
        without.verifiers(tasks=[NAMED])
    Home(tmp_path / "engine").claim(load_config(SMALL, ENGINE))
    with open_context(tmp_path / "engine") as engine, pytest.raises(RequestError, match="judges what is stored"):
        engine.verifiers(tasks=[NAMED])


def test_a_suite_may_name_it_and_is_refused_where_the_home_has_none(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"key": "k", "question": "Which lake?", "answers": ["Green Lake"]}\n')
    config: FlywheelConfig = load_config(SMALL)
    settings = ["name=mine", f"source.path={tmp_path / 'tasks.jsonl'}", "verifier=judge"]
    assert find_suite("tasks", config.evaluation, settings).own_verifier == {}
    home = tmp_path / "home"
    Home(home).claim(config)
    Lake(home).close()
    arguments = ["eval", "--home", str(home), "--policy", "p", "--suite", "tasks", *(text for s in settings for text in ("--set", s))]
    with pytest.raises(RequestError, match=r"set evaluation\.judge\.kind = openai"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_imported_tasks_may_name_it_where_the_home_has_one(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "Which lake?", "answers": ["Green Lake"]}\n{"question": "Which none?"}\n')
    Home(tmp_path / "none").claim(load_config(SMALL))
    with pytest.raises(RequestError, match="--verifier judge is for a home that has one"):
        import_tasks(rows, TaskImport("search", JUDGE), tmp_path / "none")
    with MisbehavingServer() as server:
        Home(tmp_path / "home").claim(load_config(SMALL, server_settings(server)))
    assert import_tasks(rows, TaskImport("search", JUDGE), tmp_path / "home")["tasks"] == {"read": 1, "new": 1}, "a judge needs an answer"
    with Lake(tmp_path / "home") as lake:
        assert lake.tasks()[0].provenance["verifier"] == JUDGE


@pytest.mark.slow
def test_stored_trajectories_are_judged_again_by_the_judge_that_their_tasks_name(tmp_path: Path) -> None:
    with MisbehavingServer(answer=answers) as server:
        Home(tmp_path).claim(load_config(SMALL, server_settings(server)))
        with Lake(tmp_path) as lake:
            lake.add([LAKE, NAMED, ran("a", LAKE, "Green Lake"), ran("b", NAMED, "That is Green Lake.")])
        assert reverify_home(tmp_path, "task_key = 'lake'", None, failed_only=False).judged == 1 and not server.bodies
        assert reverify_home(tmp_path, "TRUE", None, failed_only=False).success == 1
        with Lake(tmp_path, read_only=True) as lake:
            assert {score.trajectory_id: score.verifier for score in lake.scores()} == {"a": "qa_em", "b": "judge:openai:small"}


def turn_values(judge: Judge | None, *runs: Trajectory) -> list[RewardValue]:
    config = RewardConfig(parts={"outcome": 0, "turn_judge": 0.5})
    (part,) = find_functions(config).values()
    graded = [replace(attempt(1.0), task=LAKE, trajectory=run, score=Score(run.id, "t", "1", 1.0, Outcome.SUCCESS)) for run in runs]
    return part(graded, RewardContext(config, turn_judge=judge))


def test_the_share_of_useful_turns_is_the_process_reward_and_an_unknown_one_no_zero() -> None:
    def says(prompt: str) -> str | None:
        step = prompt.split("\nstep: ")[1].split("\n")[0]
        return None if "lost" in step else f'{{"verdict": "{"useless" if "search" in step else "useful"}", "reason": "r"}}'

    judge = Judge(ScriptedTeacher(says), TURNS, attempts=2)
    good, lost = ran("a", LAKE, "Green Lake"), ran("b", LAKE, "lost")
    known, unknown = turn_values(judge, good, lost)
    assert known == RewardValue(0.5, (0.0, 0.5))
    assert unknown.value is None and unknown.error == "turn 1 could not be judged: timeout: no answer in time"
    assert turn_values(None, good)[0].value is None


@pytest.mark.slow
def test_a_judge_of_turns_is_calibrated_on_steps_before_it_is_used(tmp_path: Path) -> None:
    with home_with(tmp_path / "good", answers, "rl.rewards.parts={turn_judge=0.2}") as (context, server):
        context.calibrate()
        assert len(server.bodies) == 21 and len(context.lake.read(Check, "kind = 'turn_calibration' AND accepted")) == 21
    lenient = judging(lambda case: True)
    with (
        home_with(tmp_path / "bad", lenient, "rl.rewards.parts={turn_judge=0.2}") as (context, _),
        pytest.raises(RequestError, match="may not"),
    ):
        context.calibrate()
