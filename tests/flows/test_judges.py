"""A judge by configuration: refused where it has no model, where its model is no server and where it judges wrongly; then used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from eval.graders.choice import JUDGE, Verifiers, verifiers_of
from eval.judges import TURNS, Judge
from flows.config import load_config
from flows.context import RunContext, open_context
from flows.home import Home
from rl.rewards.config import RewardConfig
from rl.rewards.reward import RewardContext, RewardValue, find_functions, reward_trajectories
from tests.eval.test_judges import grading, judging, sensible, step, strict
from tests.flows.homes import SMALL
from tests.rl.rewards.test_rewards import attempt
from tests.rl.toy import trajectory
from tests.synth.scripted import ScriptedTeacher
from tests.synth.teachers.misbehaving_server import Answer, MisbehavingServer
from warehouse import Check, Completion, Outcome, Score, Task, Trajectory
from warehouse.errors import RequestError

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
        (["evaluation.verifier=judge"], "evaluation.verifier needs evaluation.judge"),
        (["rl.rewards.parts={turn_judge=0.2}"], "rl.rewards.parts.turn_judge needs evaluation.judge"),
        (["evaluation.verifier=judge", *ENGINE], "evaluation.judge.kind = engine .* evaluation.verifier"),
    ],
)
def test_a_judge_without_a_model_that_serves_is_refused_by_its_key(settings: list[str], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        load_config(SMALL, settings)


def test_a_judge_is_asked_once_for_all_of_its_tasks() -> None:
    asked: list[list[str]] = []

    class Kept(ScriptedTeacher):
        def complete(self, requests):  # type: ignore[no-untyped-def]
            asked.append([request.messages[-1].content for request in requests])
            return super().complete(requests)

    judge = Judge(Kept(lambda prompt: grading(strict)({"messages": [{"content": prompt}]})))
    tasks = [NAMED, LAKE, NAMED, NAMED]
    runs = [ran("a", NAMED, "the Green Lake"), ran("b", LAKE, "Green Lake"), ran("c", NAMED, "Red"), ran("d", NAMED, "It is Green Lake.")]
    rewarded = reward_trajectories(tasks, runs, Verifiers(verifiers_of("qa_em").default, {}, judge))
    judged = {score.trajectory_id: (score.verifier, score.value) for score in rewarded.scores}
    by_judge = {"a": ("judge:scripted", 1.0), "c": ("judge:scripted", 0.0), "d": ("judge:scripted", 1.0)}
    assert judged == {**by_judge, "b": ("qa_em", 1.0)}
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
        with pytest.raises(RequestError, match=r"cannot judge: .*falls short on specific wrong and vague wrong"):
            context.calibrate()
        with pytest.raises(RequestError, match="cannot judge"):
            context.verifiers("judge")
        assert context.verifiers().default.name == "qa_em", "who asks for no judge needs none"
        assert context.lake.query("SELECT count(*) AS n FROM checks WHERE NOT accepted").to_pylist() == [{"n": 13}]


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
