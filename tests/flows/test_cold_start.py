"""Examples of the cold start: imported runs, stored rollouts, a teacher that plays; what is not taken is a row with its reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from flows.config import FlywheelConfig, load_config
from flows.context import RunContext, StageRun
from flows.inputs import training_counts
from flows.pipeline import run_attempt
from flows.stages.synthesis.batches import begin, work_off
from flows.stages.synthesis.sources import read_sources
from flows.stages.synthesis.stage import cold_start, parts, synthesise
from flows.stages.training import encode, finetune
from rl.renderers.base import Truncation
from rl.renderers.tags import TagDialect
from rl.rollouts.config import RolloutConfig
from synth.teachers.play import REMINDER
from synth.teachers.teacher import Teacher
from synth.worlds.schema import ASKED
from tests.flows.homes import SMALL, home_at
from tests.rl.conftest import create_tiny_policy
from tests.rl.toy import make_policy
from tests.synth.demonstrations.test_runs import TASKS, imported, run
from tests.synth.scripted import ScriptedTeacher, calling
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Example, Outcome, Part, PartKind, Policy, Run, Score, Task
from warehouse.digests import digest_files
from warehouse.errors import RequestError

SETTINGS = (
    "corpus.train.entities=120", "corpus.held_out.entities=120", "synth.demonstration_questions.counts={1=4}",
    "synth.webshaper.counts={1=4}", "synth.fas.plan_slices=4", "synth.fas.reasoning={1=10}", "synth.documents=5",
    "evaluation.suites.held_out.counts={1=4}",
)  # fmt: skip
A_TEACHER = ("synth.teacher.kind=openai", "synth.teacher.model=m", "synth.teacher.base_url=http://127.0.0.1:9/v1")
OURS = Policy("t1-rl", None, "rl", "policies/t1-rl", "w", None)


def home_of(root: Path, *settings: str) -> AbstractContextManager[RunContext]:
    """A home with a small world and nothing made of it yet."""
    return home_at(root, *SETTINGS, *settings)


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
        question, *since = (message["content"].removesuffix(REMINDER) for message in body["messages"][1::2])
        if not since:
            return calling("search", "I look it up.\n", query=self.subjects[question])
        self.answered += 1
        return "Nobody" if self.answered in self.wrong else self.objects[question]


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_latest_verdict_decides_which_runs_are_taken(tmp_path: Path) -> None:
    runs = [imported(name, ("lookup", "q"), task_key=key) for name, key in (("a", "x"), ("b", "y"), ("c", "z"))]
    runs = [replace(runs[0], outcome=None, reward=None), replace(runs[1], outcome=Outcome.FAILURE), runs[2]]
    with home_of(tmp_path, 'sft.from=["imported"]', 'sft.imported.tools={lookup={name="search"}}') as context:
        context.lake.add([*TASKS.values(), *runs])
        context.lake.add(Score(name, "qa_em", "9", 1.0, Outcome.SUCCESS) for name in "ab")
        context.lake.add([Score("c", "qa_em", "9", 0.0, Outcome.FAILURE)])
        assert {example.sources[0] for example in cold_started(context)} == {"a", "b"}
        assert rejected(context) == {"cold_start_not_a_success": 1}


@pytest.mark.slow
def test_runs_that_ask_or_read_out_what_a_suite_asks_are_not_taken(tmp_path: Path) -> None:
    asked = replace(TASKS["x"], key="h", split="held_out")
    long = replace(asked, key="l", question="Which river flows past the house in which the mayor of Green Lake was born?")
    theirs, ours = imported("a", ("lookup", "q")), run("b", policy=OURS.id, stage="import")
    evaluated = run("c", "h", policy=OURS.id, stage="import", suite="held_out")
    taken, reads = imported("d", ("lookup", "q"), task_key="y"), imported("e", ("lookup", long.question), task_key="z")
    with home_of(tmp_path, 'sft.from=["imported"]') as context:
        context.lake.add([*TASKS.values(), asked, long, OURS, theirs, ours, evaluated, taken, reads])
        assert [example.sources[0] for example in cold_started(context)] == ["d"]
        failures, (removed,) = context.lake.failures("synth"), context.lake.failures("decontamination")
    assert {failure.item["trajectory"]: failure.kind for failure in failures} == dict.fromkeys("abc", "cold_start_held_out")
    assert removed.item["suite"] == "held_out"


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
        assert acts[1] == Part(PartKind.CALL, json.dumps({"query": told.subjects[question.text]}), True, "search")
        assert acts[-1] == Part(PartKind.ANSWER, asked[key].answers[0], True)
        assert not any(part.ids for part in example.parts)


@pytest.mark.slow
def test_with_documents_alone_a_teacher_plays_the_training_questions(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "boat.md").write_text("# Night Boat\n\nNight Boat is a film by Dana Moss.\n")
    pages = ["corpus.kind=pages", f"corpus.path={tmp_path / 'pages'}", "corpus.train={}", "corpus.held_out={}"]
    none = ["synth.webshaper.counts={}", "synth.demonstration_questions.counts={}", 'sft.from=["teacher"]', "sft.teacher.attempts=1"]
    task = Task("seed", "search", "Who made Night Boat?", ("Dana Moss",))
    teacher = ScriptedTeacher(lambda _: "Dana Moss" if teacher.requests[-1].messages[3:] else calling("search", query="Night Boat"))
    with home_of(tmp_path / "home", *pages, *none, *A_TEACHER) as context:
        context.lake.add([task])
        (example,) = cold_started(context, teacher)
        (played,) = context.lake.trajectories("stage = 'demonstration'")
        assert context.lake.tasks() == [task]
    assert example.sources == (played.id, "seed") and played.outcome is Outcome.SUCCESS
    assert [part.text for part in example.parts if part.kind is PartKind.CALL] == ['{"query": "Night Boat"}']


@pytest.mark.slow
def test_a_teacher_that_fails_leaves_invalid_runs_and_no_example(tmp_path: Path) -> None:
    with home_of(tmp_path, 'sft.from=["teacher"]', "sft.teacher.attempts=2", *A_TEACHER) as context:
        assert cold_started(context, ScriptedTeacher(lambda question: None)) == []
        assert rejected(context) == {"cold_start_invalid": 8}
        assert {each.error for each in context.lake.trajectories()} == {"timeout: no answer in time"}


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
    assert figures["policy"] == "t1-sft"


def test_results_are_truncated_as_in_rollouts_and_inexpressible_examples_are_failures(tmp_path: Path) -> None:
    policy = create_tiny_policy(tmp_path / "policy", seed=0)
    config = RolloutConfig.model_validate({"limits": {"max_observation_tokens": 20, "truncate": "left"}})
    asked, call = Part(PartKind.QUESTION, "Who?"), Part(PartKind.CALL, "Amber", True, "search")
    long = Example("long", "trajectory", (asked, call, Part(PartKind.RESULT, "Amber Stone " * 40 + "Blue River.")), ())
    unknown = Example("unknown", "has", (asked, Part(PartKind.CALL, "x", True, "browse")), ())
    (encoded,), (failure,) = encode(config, policy, [long, unknown])
    dialect = TagDialect(AutoTokenizer.from_pretrained(policy))
    observation = dialect.observation_ids(long.parts[-1].text, Truncation(20, "left"))
    assert encoded.token_ids[-len(observation) :] == observation
    assert dialect.decode(observation).startswith("<information> ...")
    assert (failure.kind, failure.item) == ("not_expressible", {"example": "unknown", "kind": "has"})


@pytest.mark.slow
def test_imported_runs_become_decisions_of_an_ordinary_run_with_their_own_tools(tmp_path: Path) -> None:
    own = [{"type": "function", "function": {"name": "lookup", "description": "Look.", "parameters": {"type": "object", "properties": {}}}}]
    runs = [imported("a", ("lookup", "q")), imported("b", ("lookup", "u"), task_key="y"), imported("c", ("visit", "v"), task_key="z")]
    runs = [replace(runs[0], provenance={"tools": own}), *runs[1:]]
    with home_of(tmp_path, 'cpt.from=["has"]', 'wheel.stages=["cpt"]', "synth.has_count=9", "synth.has.n_alternatives=1") as context:
        with pytest.raises(RequestError, match="would train on nothing"):
            training_counts(context.config, tmp_path, context.lake, set(), 1)
        context.lake.add([*TASKS.values(), *runs])
        assert training_counts(context.config, tmp_path, context.lake, set(), 1) == {"cpt": {"has": None}}

        def work(at_work: StageRun) -> dict[str, Any]:
            found = (batch for batch in parts(*begin(context, 1), "all") if batch.part.startswith("decisions"))
            work_off(at_work, found)
            return {}

        run_attempt(context.lake, "t1-synth", "synth", 1, {}, work)
        made = {example.sources[0]: example for example in context.lake.examples(["has"])}
    assert made.keys() == {"a", "b", "c"}
    shown = {name: json.loads(example.parts[0].text) for name, example in made.items()}
    assert shown["a"] == own, "the run's record says what it was offered"
    assert [[tool["function"]["name"] for tool in shown[name]] for name in "bc"] == [["lookup"], ["visit"]], "else what it called"
