"""Where the cold start comes from: imported runs, stored rollouts, a teacher that plays; what is not taken is a row with its reason."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eval.suites.tasks import enter_suite
from flows.cli import app
from flows.config import FlywheelConfig, load_config
from flows.context import RunContext, StageRun
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.reinforcement import pass_rates
from flows.stages.synthesis.batches import begin, work_off
from flows.stages.synthesis.sources import read_sources
from flows.stages.synthesis.stage import cold_start, synthesise
from flows.stages.training import finetune
from synth.teachers.teacher import Teacher
from synth.worlds.schema import ASKED
from tests.rl.toy import make_policy
from tests.synth.demonstrations.test_runs import TASKS, imported, run
from tests.synth.scripted import ScriptedTeacher
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Example, Lake, Outcome, Part, PartKind, Policy, RequestError, Run, Score, Task
from warehouse.digests import digest_files

SMALL = str(Path(__file__).parent.parent / "end_to_end" / "small.toml")
SETTINGS = (
    "corpus.train.entities=120", "corpus.held_out.entities=120", "synth.demonstration_questions.counts={1=4}",
    "synth.webshaper.counts={1=4}", "synth.fas.plan_slices=4", "synth.fas.reasoning={1=10}", "synth.documents=5",
    "evaluation.suites.held_out.counts={1=4}",
)  # fmt: skip
A_TEACHER = ("synth.teacher.kind=openai", "synth.teacher.model=m", "synth.teacher.base_url=http://127.0.0.1:9/v1")
OURS = Policy("t1-rl", None, "rl", "policies/t1-rl", "w", None)


@contextmanager
def home_of(root: Path, *settings: str) -> Iterator[RunContext]:
    """A home with a small world and nothing made of it yet."""
    with Lake(root) as lake:
        yield RunContext(Home(root), load_config(SMALL, [*SETTINGS, *settings]), lake)


def cold_started(context: RunContext, teacher: Teacher | None = None, turn: int = 1) -> list[Example]:
    """The examples that the cold start of a turn leaves in the lake."""

    def work(at_work: StageRun) -> dict[str, Any]:
        work_off(at_work, cold_start(*begin(context, turn, teacher)))
        return {}

    run_attempt(context.lake, f"t{turn}-synth", "synth", turn, {}, work)
    return [example for example in context.lake.examples(["trajectory"]) if example.wheel_turn == turn]


def rejected(context: RunContext) -> Counter[str]:
    """How many runs were not taken, by kind."""
    return Counter(failure.kind for failure in context.lake.failures("synth"))


class Knowing:
    """A teacher's words: it looks up the subject of a question of one hop, then says what the world says; of some attempts nonsense."""

    def __init__(self, config: FlywheelConfig, wrong: Sequence[int] = ()) -> None:
        facts = read_sources(config.corpus, config.seed).train.facts
        self.subjects = {f"{ASKED[fact.relation]} of {fact.subject}?": fact.subject for fact in facts}
        self.objects = {f"{ASKED[fact.relation]} of {fact.subject}?": fact.object for fact in facts}
        self.wrong, self.answered = wrong, 0

    def __call__(self, body: dict[str, Any]) -> str:
        question, *since = (message["content"] for message in body["messages"][1:])
        if not since:
            return f"<think>I look it up.</think><search>{self.subjects[question]}"
        self.answered += 1
        return f"<answer>{'Nobody' if self.answered in self.wrong else self.objects[question]}"


# Stored runs


def test_imported_runs_become_examples_and_the_others_rows(tmp_path: Path) -> None:
    runs = [imported("a", ("lookup", "q")), imported("b", ("visit", "u"), task_key="y"), run("c", "z")]
    mapping = 'sft.imported.tools={lookup={name="search"}}'
    with home_of(tmp_path, 'sft.from=["imported"]', mapping) as context:
        context.lake.add([*TASKS.values(), *runs])
        (example,) = cold_started(context)
        assert (example.sources, example.wheel_turn) == (("a", "x"), 1)
        (failure,) = context.lake.failures("synth")
    tools, question, *acts = example.parts
    assert [tool["function"]["name"] for tool in json.loads(tools.text)] == ["search"]
    assert question == Part(PartKind.QUESTION, "Where is x?")
    assert [(part.kind, part.tool) for part in acts if part.learnt] == [
        (PartKind.THOUGHT, ""), (PartKind.CALL, "search"), (PartKind.THOUGHT, ""), (PartKind.ANSWER, ""),
    ]  # fmt: skip
    assert (failure.kind, failure.item) == ("cold_start_unknown_tool", {"trajectory": "b", "task": "y"})


@pytest.mark.slow
def test_stored_rollouts_that_meet_the_condition_become_examples_our_own_as_they_were_sampled(tmp_path: Path) -> None:
    runs = [run("a", policy=OURS.id), run("b", "y", outcome=Outcome.FAILURE), run("c", "z"), run("d", "x", stage="eval"), run("e", "y", 2)]
    with home_of(tmp_path, 'sft.from=["rollouts"]') as context:
        context.lake.add([*TASKS.values(), *runs, OURS])
        examples = {example.sources[0]: example for example in cold_started(context)}
        assert rejected(context) == {"cold_start_not_a_success": 1}
    assert examples.keys() == {"a", "c", "e"}
    assert {part.kind for part in examples["a"].parts} == {PartKind.TOKENS}
    assert [part.kind for part in examples["c"].parts][:2] == [PartKind.TOOLS, PartKind.QUESTION]


def test_a_run_counts_as_the_latest_verdict_has_it(tmp_path: Path) -> None:
    """Of runs that nobody had judged, and of those that a mended verifier judges otherwise, the successes are taken once it has spoken."""
    runs = [imported(name, ("lookup", "q"), task_key=key) for name, key in (("a", "x"), ("b", "y"), ("c", "z"))]
    runs = [replace(runs[0], outcome=None, reward=None), replace(runs[1], outcome=Outcome.FAILURE), runs[2]]
    with home_of(tmp_path, 'sft.from=["imported"]', 'sft.imported.tools={lookup={name="search"}}') as context:
        context.lake.add([*TASKS.values(), *runs])
        context.lake.add(
            Score(name, "qa_em", "9", float(name != "c"), Outcome.FAILURE if name == "c" else Outcome.SUCCESS) for name in "abc"
        )
        assert {example.sources[0] for example in cold_started(context)} == {"a", "b"}
        assert rejected(context) == {"cold_start_not_a_success": 1}


def test_the_policys_own_successes_are_those_of_the_latest_verdict(tmp_path: Path) -> None:
    own = [run("a", policy=OURS.id, outcome=Outcome.FAILURE), run("b", "y", policy=OURS.id), run("c", "z", policy=OURS.id)]
    with home_of(tmp_path, 'later.sft.from=["own"]') as context:
        context.lake.add([*TASKS.values(), *(replace(one, stage="rl", step=1) for one in own), OURS])
        context.lake.add([Score("a", "qa_em", "9", 1.0, Outcome.SUCCESS), Score("b", "qa_em", "9", 0.0, Outcome.FAILURE)])
        assert {example.sources[0] for example in cold_started(context, turn=2)} == {"a", "c"}
        assert pass_rates(context, 2, None) == {"x": 1.0, "y": 0.0, "z": 1.0}


def test_a_condition_of_ones_own_chooses_the_rollouts(tmp_path: Path) -> None:
    with home_of(tmp_path, 'sft.from=["rollouts"]', "sft.rollouts.where=policy = 't1-rl' AND n_turns < 3") as context:
        context.lake.add([*TASKS.values(), run("a", policy=OURS.id), run("b", "y", 5, policy=OURS.id), run("c", "z"), OURS])
        assert [example.sources[0] for example in cold_started(context)] == [cold.sources[0] for cold in context.lake.examples()]
        (example,) = context.lake.examples()
    assert example.parts[1].ids == (5, 6)


@pytest.mark.parametrize("source", ["imported", "rollouts"])
def test_a_condition_that_is_no_sql_is_one_sentence_with_its_key(tmp_path: Path, source: str) -> None:
    with home_of(tmp_path, f'sft.from=["{source}"]', f"sft.{source}.where=stages = 'x'") as context:
        with pytest.raises(RequestError, match=rf"^sft\.{source}\.where is no condition on the table trajectories: .*stages") as refused:
            cold_started(context)
        assert len(str(refused.value).splitlines()) == 1


@pytest.mark.slow
def test_runs_of_questions_that_a_suite_asks_are_not_taken(tmp_path: Path) -> None:
    asked = replace(TASKS["x"], key="h", split="held_out")
    theirs, ours = imported("a", ("lookup", "q")), run("b", policy=OURS.id, stage="import")
    evaluated = run("c", "h", policy=OURS.id, stage="import", suite="held_out")
    with home_of(tmp_path, 'sft.from=["imported"]') as context:
        context.lake.add([*TASKS.values(), asked, OURS, theirs, ours, evaluated, imported("d", ("lookup", "q"), task_key="y")])
        assert [example.sources[0] for example in cold_started(context)] == ["d"]
        failures = context.lake.failures("synth")
    assert {failure.item["trajectory"]: failure.kind for failure in failures} == dict.fromkeys("abc", "cold_start_held_out")


def test_runs_of_an_imported_suite_that_no_configuration_names_are_not_taken(tmp_path: Path) -> None:
    entered, reworded = enter_suite(TASKS["x"], "mine"), replace(TASKS["x"], key="again")
    theirs = [run("a", entered.key, policy="teacher"), run("b", "again", policy="teacher"), run("c", "y", policy="teacher")]
    with home_of(tmp_path, 'sft.from=["rollouts"]') as context:
        context.lake.add([*TASKS.values(), entered, reworded, *theirs])
        assert [example.sources[0] for example in cold_started(context)] == ["c"]
        failures = context.lake.failures("synth")
    assert {failure.item["trajectory"]: failure.kind for failure in failures} == dict.fromkeys("ab", "cold_start_held_out")


@pytest.mark.slow
def test_a_run_that_reads_out_a_question_of_a_suite_is_not_taken(tmp_path: Path) -> None:
    question = "Which river flows past the house in which the mayor of Green Lake was born?"
    with home_of(tmp_path, 'sft.from=["imported"]') as context:
        context.lake.add([*TASKS.values(), Task("h", "search", question, ("Blue River",), split="held_out")])
        context.lake.add([imported("a", ("lookup", question)), imported("b", ("lookup", "q"), task_key="y")])
        assert [example.sources[0] for example in cold_started(context)] == ["b"]
        (removed,) = context.lake.failures("decontamination")
    assert removed.item["suite"] == "held_out"


@pytest.mark.slow
def test_sources_follow_one_another_and_a_later_turn_has_examples_of_its_own(tmp_path: Path) -> None:
    runs = [imported("a", ("lookup", "q")), run("b", "y")]
    with home_of(tmp_path, 'sft.from=["imported", "rollouts"]', 'later.sft.from=["imported"]') as context:
        context.lake.add([*TASKS.values(), *runs])
        first, second = cold_started(context), cold_started(context, turn=2)
    assert {example.sources[0] for example in first} == {"a", "b"}
    assert [example.sources[0] for example in second] == ["a"]
    assert {example.id for example in first}.isdisjoint(example.id for example in second)


def test_the_oracle_alone_needs_no_runs(tmp_path: Path) -> None:
    with home_of(tmp_path, 'sft.from=["oracle"]') as context:
        assert [example.id.partition("-")[0] for example in cold_started(context)] == ["demonstration"] * 4


# A teacher


@pytest.mark.long
@pytest.mark.slow
def test_a_teacher_behind_a_server_plays_and_its_successes_are_learnt_from(tmp_path: Path) -> None:
    settings = ['sft.from=["teacher"]', "sft.teacher.attempts=2", "synth.teacher.concurrency=1", 'wheel.stages=["sft"]']
    told = Knowing(load_config(SMALL, [*SETTINGS, *A_TEACHER]), wrong=(1, 2, 4))
    with (
        MisbehavingServer(answer=told) as server,
        home_of(tmp_path, *settings, *A_TEACHER[:2], f"synth.teacher.base_url={server.url}") as context,
    ):
        run_attempt(context.lake, "t1-synth", "synth", 1, {}, lambda at_work: synthesise(context, at_work, 1))
        played = context.lake.trajectories("stage = 'demonstration'")
        examples = context.lake.examples(["trajectory"])
        asked = {task.key: task for task in context.lake.tasks(split="demonstration")}
        scores = context.lake.query("SELECT verdict, count(*) AS n FROM scores GROUP BY ALL ORDER BY ALL").to_pylist()
        dropped = {kind: count for kind, count in rejected(context).items() if kind.startswith("cold_start")}
    successes = {each.id: each for each in played if each.outcome is Outcome.SUCCESS}
    taught = {each.task_key for each in successes.values()}
    assert (len(asked), len(played), len(successes)) == (4, 8, 5)
    assert {each.policy for each in played} == {"openai:m"}
    assert scores == [{"verdict": "failure", "n": 3}, {"verdict": "success", "n": 5}]
    assert dropped == {"cold_start_not_a_success": 3, "cold_start_enough_of_its_task": 5 - len(taught)}
    assert {example.sources[1] for example in examples} == taught
    for example in examples:
        _, question, *acts = example.parts
        key = example.sources[1]
        assert example.sources[0] in successes
        assert question.text == asked[key].question
        assert acts[1] == Part(PartKind.CALL, told.subjects[question.text], True, "search")
        assert acts[-1] == Part(PartKind.ANSWER, asked[key].answers[0], True)
        assert not any(part.ids for part in example.parts)


@pytest.mark.slow
def test_no_question_is_played_in_two_batches(tmp_path: Path) -> None:
    settings = ['sft.from=["teacher"]', "sft.teacher.attempts=1", "synth.batch=40", "synth.demonstration_questions.counts={1=120}"]
    with home_of(tmp_path, *settings, *A_TEACHER) as context:
        cold_started(context, ScriptedTeacher(lambda question: "<answer>Nobody"))
        played = context.lake.trajectories("stage = 'demonstration'")
        assert (len(played), len({each.task_key for each in played})) == (120, 120)
        assert len(context.lake.tasks(split="demonstration")) == 120


@pytest.mark.slow
def test_a_teacher_that_fails_leaves_invalid_runs_and_no_example(tmp_path: Path) -> None:
    with home_of(tmp_path, 'sft.from=["teacher"]', "sft.teacher.attempts=2", *A_TEACHER) as context:
        assert cold_started(context, ScriptedTeacher(lambda question: None)) == []
        assert rejected(context) == {"cold_start_invalid": 8}
        assert {each.error for each in context.lake.trajectories()} == {"timeout: no answer in time"}


# The configuration


@pytest.mark.parametrize("settings", [['sft.from=["teacher"]'], ['later.sft.from=["own", "teacher"]']], ids=["first", "later"])
def test_a_teacher_that_is_not_there_is_refused(settings: list[str]) -> None:
    with pytest.raises(RequestError, match=r"sft\.from names a teacher, and there is none that plays: set synth\.teacher\.kind"):
        load_config(SMALL, settings)
    assert load_config(SMALL, [*settings, *A_TEACHER])


def test_the_oracle_of_a_graph_is_no_teacher_that_plays() -> None:
    with pytest.raises(RequestError, match="there is none that plays"):
        load_config(SMALL, ['sft.from=["teacher"]', "synth.teacher.kind=oracle"])


@pytest.mark.parametrize("sources", ["[]", '["nobody"]', "oracle"])
def test_sources_that_there_are_not_are_refused_under_their_key(sources: str) -> None:
    with pytest.raises(RequestError, match=r"sft\.from"):
        load_config(SMALL, [f"sft.from={sources}"])


def test_the_resolved_configuration_says_from(tmp_path: Path) -> None:
    arguments = ["run", "--profile", SMALL, "--home", str(tmp_path / "home"), "--set", 'sft.from=["oracle"]', "--dry-run", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    sft = json.loads(result.stdout)["config"]["sft"]
    assert sft["from"] == ["oracle"]
    assert "sources" not in sft


def test_a_home_reads_back_what_it_was_claimed_with(tmp_path: Path) -> None:
    mapping = 'sft.imported={unjudged="keep", tools={lookup={name="search", arguments={q="query"}}}}'
    config = load_config(SMALL, ['sft.from=["imported"]', mapping, 'later.sft.from=["own"]'])
    home = Home(tmp_path / "home")
    home.claim(config)
    assert home.load() == config
    home.claim(config)
    assert (config.for_turn(1).sft.sources, config.for_turn(2).sft.sources) == (("imported",), ("own",))


# What a stage leaves out


@pytest.mark.engine
def test_examples_that_are_too_long_to_train_on_are_rows(tmp_path: Path) -> None:
    with home_of(tmp_path, "sft.max_example_tokens=20", "sft.rows_per_step=1", "sft.rows_per_pass=1", "sft.row_tokens=32") as context:
        folder = make_policy(context.home.policies / "t0-init")
        context.lake.add([Policy("t0-init", None, "init", "policies/t0-init", digest_files(folder), None, 0)])
        sampled = Part(PartKind.TOKENS, "", True, ids=tuple(range(30, 50)))
        fits = Example("fits", "trajectory", (sampled,), ("a",))
        long = replace(fits, id="long", parts=(sampled, Part(PartKind.TOKENS, "", ids=(50,))))
        context.lake.add([fits, long])
        at_work = StageRun(context.lake, Run("t1-sft", "sft", 1, {}, "", None, None, "running", datetime.now(UTC)))
        figures = finetune(context, at_work, 1, "t0-init")
        at_work.flush()
        (failure,) = context.lake.failures()
    assert (failure.stage, failure.kind, failure.item) == ("sft", "too_long", {"example": "long", "kind": "trajectory"})
    assert failure.reason == "it has 21 tokens, and max_example_tokens is 20"
    assert figures["policy"] == "t1-sft"


@pytest.mark.slow
def test_tasks_of_stored_runs_are_those_of_the_lake(tmp_path: Path) -> None:
    with home_of(tmp_path, 'sft.from=["imported"]') as context:
        context.lake.add(
            [
                Task("x", "search", "Where is x?", ("Green Lake",), split="import"),
                imported("a", ("lookup", "q")),
                imported("b", task_key="y"),
            ]
        )
        assert [example.sources for example in cold_started(context)] == [("a", "x")]
        assert rejected(context) == {"cold_start_unknown_task": 1}


@pytest.mark.parametrize(("page", "first", "later"), [("learning", ("imported", "own"), None), ("teachers", None, ("rollouts", "own"))])
def test_the_documented_settings_are_a_configuration(tmp_path: Path, page: str, first: Any, later: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    block, *_ = (
        block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "sft]" in block and f'"{(first or later)[0]}"' in block
    )
    (tmp_path / "mine.toml").write_text(block)
    config = load_config(str(tmp_path / "mine.toml"))
    assert config.sft.sources == (first or ("oracle", "own"))
    assert config.for_turn(2).sft.sources == (later or first)


def test_the_documented_settings_of_a_wheel_on_its_own_data_are_those_of_its_profile(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    (block,) = (block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "later.cpt" in block)
    (tmp_path / "mine.toml").write_text(block)
    own, documented = load_config("own_data").for_turn(2), load_config(str(tmp_path / "mine.toml")).for_turn(2)
    for stage in ("cpt", "sft"):
        one, two = getattr(own, stage), getattr(documented, stage)
        assert (one.sources, one.max_tokens, one.epochs) == (two.sources, two.max_tokens, two.epochs)
