"""What a newcomer reaches by the pages alone: a graph and a corpus of their own brought in, a tool of their own, and answers by the policy.

One small wheel serves all of it, and is killed on the way. Its command is put together from the lines that
docs/extending.md and docs/tools.md give, with this test's folders in the place of theirs, so a page that is wrong fails here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks import evidence
from rl.policies.policy import load_policy
from tests.chaos.comparison import faults_of
from tests.end_to_end.towns import MAYORS, RIVERS, TOWNS, write_corpus
from tests.flows.homes import flywheel as answered
from tests.flows.test_step_metrics import faults, metrics_of
from tests.killing import kill_at
from tests.rl.policies.logprob_check import max_logprob_difference
from warehouse import DocumentSplit, Lake
from warehouse.connections import how_to_attach

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
PROFILE = Path(__file__).parent / "newcomer.toml"
FLYWHEEL = Path(sys.executable).parent / "flywheel"
TOOL = '''
from pathlib import Path

from rl.tools import ToolMiss, tool

PAGES = {page.stem.lower(): page.read_text().split("\\n", 1)[1].strip() for page in (Path(__file__).parent / "corpus").rglob("*.md")}


@tool(probe={"query": "Oakford"})
def search(query: str) -> str:
    """Open the page of a town.

    Args:
        query: what the town is called.
    """
    if query.strip().lower() not in PAGES:
        raise ToolMiss("there is no such page")
    return PAGES[query.strip().lower()]
'''


def documented(page: str, word: str) -> list[str]:
    """The arguments of the command in a page of docs/ that holds `word`."""
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("flywheel run") and word in line]
    assert len(lines) == 1, f"{page} shows one `flywheel run` with {word}"
    return shlex.split(lines[0])[1:]


def settings(arguments: list[str], places: dict[str, Path]) -> list[str]:
    """The `--set` of a documented command, its folders and files replaced by those that are there."""
    chosen = [arguments[place + 1].split("=", 1) for place, argument in enumerate(arguments) if argument == "--set"]
    return [word for key, value in chosen for word in ("--set", f"{key}={places.get(key, value)}")]


def flywheel(*arguments: str) -> str:
    """What a command says on the way, in a process of its own."""
    done = subprocess.run([str(FLYWHEEL), *arguments], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def ask(home: Path, query: str) -> list[dict[str, Any]]:
    """The answer of `flywheel sql`."""
    found: list[dict[str, Any]] = json.loads(answered("sql", query, "--home", home, "--format", "json"))
    return found


def weights(home: Path) -> dict[str, str]:
    """The digests of the policies that are there."""
    with Lake(home, read_only=True) as lake:
        return {policy.id: policy.weights_digest for policy in lake.policies()}


@dataclass(frozen=True, slots=True)
class Finished:
    """A home whose wheel has made its turn, with what was there when it was killed: tasks and weights, in digests."""

    home: Path
    command: tuple[str, ...]
    tasks: dict[str, str]
    weights: dict[str, str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A wheel of one turn over one's own corpus, whose RL tasks are played with one's own tool and whose suite with the search."""
    folder = tmp_path_factory.mktemp("mine")
    write_corpus(folder / "corpus")
    (folder / "my_tools.py").write_text(TOOL)
    (folder / "my_tools.toml").write_text('[tools.search]\nfunction = "my_tools.py:search"\n')
    places = {"corpus.path": folder / "corpus", "rollout.environments.kinds.tools.options.file": folder / "my_tools.toml"}
    chosen = [*settings(documented("extending.md", "corpus.kind=files"), places), *settings(documented("tools.md", "options.file"), places)]
    home = folder / "home"
    command = ["run", "--profile", str(PROFILE), "--home", str(home), *chosen]
    kill_at("t1-cpt  step", [str(FLYWHEEL), *command])  # in each stage: test_wheel.py
    with Lake(home, read_only=True) as lake:
        tasks = {task.key: task.digest for task in lake.tasks()}
    there = Finished(home, tuple(command), tasks, weights(home))
    flywheel(*command)
    return there


@pytest.fixture
def home(finished: Finished) -> Path:
    return finished.home


def test_what_was_there_when_it_was_killed_is_there_as_it_was_and_the_rest_came_after(finished: Finished) -> None:
    assert finished.weights.keys() == {"t0-init"} and finished.tasks
    now = weights(finished.home)
    assert now.keys() == {"t0-init", "t1-cpt", "t1-sft", "t1-rl"} and now.items() > finished.weights.items()
    with Lake(finished.home, read_only=True) as lake:
        assert faults_of(lake) == [] and {task.key: task.digest for task in lake.tasks()} == finished.tasks
        steps = lake.query("SELECT step, count(*) AS n FROM trajectories WHERE stage = 'rl' GROUP BY step ORDER BY step").to_pylist()
        learned = now["t1-rl"] != now["t1-sft"]  # two steps without a solved task have no gradient
        assert [policy.id for policy in lake.policies("promoted")] == ["t1-rl"] * learned
    assert steps == [{"step": 1, "n": 48}, {"step": 2, "n": 48}]


def test_what_was_sampled_is_what_was_trained_on(home: Path) -> None:
    with Lake(home, read_only=True) as lake:
        sampled = lake.trajectories("stage = 'rl' AND step = 1")
    model, _ = load_policy(home / "policies" / "t1-sft")
    assert sum(len(turn.action_ids) for trajectory in sampled for turn in trajectory.turns) > 100
    assert max_logprob_difference(model, sampled) < 1e-3


def test_every_step_has_the_metrics_that_the_docs_promise(home: Path) -> None:
    steps = metrics_of(home)
    assert sorted(steps) == [1, 2] and faults(steps) == []


def test_no_page_that_suites_ask_about_is_in_the_text_of_training(home: Path) -> None:
    """A tool of one's own is not looked at: it shows what its owner lets it show."""
    with Lake(home, read_only=True) as lake:
        documents, text = lake.documents(), "\n".join(part.text for example in lake.examples() for part in example.parts)
    hidden, seen = ([d.text for d in documents if (d.split is DocumentSplit.HELD_OUT) == held_out] for held_out in (True, False))
    assert len(hidden) > 2 and sum(page in text for page in seen) > 10, "what may be shown is found in this way"
    assert not [page for page in hidden if page in text]


def test_a_finished_run_reports_that_there_is_nothing_to_do(finished: Finished) -> None:
    before = ask(finished.home, "SELECT count(*) AS n FROM trajectories")
    assert "nothing to do" in flywheel(*finished.command)
    assert ask(finished.home, "SELECT count(*) AS n FROM trajectories") == before


def test_the_users_graph_and_corpus_are_in_the_lake(home: Path) -> None:
    assert ask(home, "SELECT count(*) AS n FROM documents") == [{"n": len(TOWNS)}]
    assert ask(home, "SELECT count(*) AS n, count(*) FILTER (len(documents) = 1) AS stated FROM facts") == [{"n": 60, "stated": 60}]


def test_the_policy_answers_the_questions_that_it_learnt_by_heart(home: Path) -> None:
    """Those of training: so small a policy answers none of the suite's four."""
    sql = """SELECT DISTINCT k.question, t.answer, k.answers FROM trajectories t JOIN tasks k ON k.key = t.task_key
        WHERE t.policy = 't1-rl' AND t.stage = 'rl' AND t.outcome = 'success'"""
    solved = ask(home, sql)
    assert len(solved) >= 3
    assert all(row["answer"] in row["answers"] and row["answer"] in RIVERS + MAYORS + TOWNS for row in solved)


def test_a_user_tool_is_called_and_its_result_is_read(home: Path) -> None:
    sql = """SELECT c.observation, t.outcome AS came_to FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id
        JOIN tasks k ON k.key = t.task_key WHERE k.environment = 'tools' AND c.tool = 'search' AND c.outcome = 'ok'"""
    found = ask(home, sql)
    assert found and all(re.fullmatch(r"\w+: river \w+, mayor \w+ \w+\.", call["observation"]) for call in found)
    assert any(call["came_to"] == "success" for call in found)


def test_its_figures_are_kept_as_those_that_are_published(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    record = json.loads(evidence.keep("mine", {"commands": ["flywheel run"], "homes": [evidence.read_home(home)]}).read_text())
    (kept,) = record["homes"]
    assert set(record["versions"]) == {"python", *evidence.PACKAGES}
    tried = {(row["policy"], row["suite"]): row for row in kept["evaluations"] if row["hops"] is None}
    for key, row in tried.items():
        habits = [each for each in kept["habits"] if (each["policy"], each["suite"]) == key]
        assert sum(each["valid"] for each in habits) == row["valid"]
        assert sum(each["failures"] for each in habits) == row["valid"] - row["successes"]
    assert tried and sum(row["valid"] for row in kept["steps"]) > 0 and "t1-rl" in kept["seconds"]


def test_the_lake_is_reached_by_a_plain_client_in_one_file_and_in_a_page(home: Path, tmp_path: Path) -> None:
    assert answered("sql", "--how", "--home", home).strip() == how_to_attach(home).strip()
    assert Path(answered("report", "--home", home).strip()).read_text().lstrip().lower().startswith("<!doctype html>")
    answered("export", "duckdb", "--to", tmp_path / "lake.duckdb", "--home", home)
    (counted,) = ask(home, "SELECT count(*) AS n FROM trajectories")
    with duckdb.connect(str(tmp_path / "lake.duckdb"), read_only=True) as single:
        assert single.execute("SELECT count(*) FROM trajectories").fetchone() == (counted["n"],)


@pytest.mark.long
def test_the_champions_own_engines_propose_the_alternatives_of_the_next_turns_decisions(home: Path) -> None:
    """There is no other proposer in the profile's mixture, so each decision stands on what the engines of t1-rl wrote."""
    command = ["synth", "has", "--turn", "2", "--home", str(home)]
    if not ask(home, "SELECT id FROM policies WHERE promoted"):  # where all tasks were solved, or none, RL had no gradient
        refused = subprocess.run([str(FLYWHEEL), *command], capture_output=True, text=True, timeout=600)
        assert refused.returncode == 2 and "no policy promoted before iteration 2" in refused.stderr
        return
    flywheel(*command)
    with Lake(home, read_only=True) as lake:
        examples = [example for example in lake.examples(["has"]) if example.wheel_turn == 2]
        rewritten = {trajectory.id for trajectory in lake.trajectories("stage = 'rl'")}
        faults = lake.failures("synth")
    assert examples and {example.sources[0] for example in examples} <= rewritten
    assert "proposal_engine_fault" not in {failure.kind for failure in faults}
