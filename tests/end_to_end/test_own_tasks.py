"""A home of imported tasks: two steps of RL over five environments in one run, and what judged each, in SQL."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eval.sandbox.sandbox import isolation
from flows.cli import app
from rl.envs.agentgym import SERVICES
from synth.worlds.tool_tasks import generate_tasks
from tests.eval.graders.small_repository import FILES, HIDDEN
from tests.eval.graders.small_repository import TASK as REPAIR
from tests.real_data import DATA, needs
from tests.rl.envs.test_agentgym import Counting
from tests.rl.http_server import served
from warehouse import Lake

SMALL = str(Path(__file__).parent / "small.toml")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.end_to_end,
    pytest.mark.long,
    needs("math_gsm8k", "code_humaneval"),
    pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}"),
]
PLACES = (("Lunden", "Ann Berg"), ("Norby", "Ole Dahl"), ("Vesten", "Ida Holm"), ("Ostmark", "Per Lund"))
VERIFIERS = {
    "python": {"gsm8k", "code"},
    "search": {"qa_em"},
    "tool_world": {"state"},
    "repository": {"environment"},
    "agentgym": {"environment"},
}


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beginning(path: Path, count: int, to: Path) -> Path:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        to.write_text("".join(islice(lines, count)))
    return to


def flywheel(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def service() -> Iterator[str]:
    with served(Counting(SERVICES["textcraft"], True).application) as url:
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Tasks and documents of six sources in one lake, and a suite of GSM8K's own test problems."""
    home = tmp_path / "home"
    gsm8k = beginning(DATA / "math_gsm8k" / "train.jsonl", 20, tmp_path / "gsm8k.jsonl")
    held_out = beginning(DATA / "math_gsm8k" / "test.jsonl", 4, tmp_path / "test.jsonl")
    rows = [{"id": n, "question": f"Who is the mayor of {place}?", "answers": [mayor]} for n, (place, mayor) in enumerate(PLACES)]
    pages = [{"id": place, "title": place, "text": f"{place} is a town. Its mayor is {mayor}."} for place, mayor in PLACES]
    worlds = [{"id": t.key, "question": t.question, "answers": t.answers, "metadata": t.provenance} for t in generate_tasks(4, seed=3)]
    hidden = {name: content.decode() for name, content in HIDDEN.items()}
    repair = {"snapshot": "shop", "fail_to_pass": REPAIR.fail_to_pass, "pass_to_pass": REPAIR.pass_to_pass, "test_files": hidden}
    for name, content in FILES.items():
        (tmp_path / "snapshots" / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "snapshots" / "shop" / name).write_bytes(content)
    code = beginning(DATA / "code_humaneval" / "HumanEval.jsonl.gz", 20, tmp_path / "code.jsonl")
    for path, environment, verifier in (
        (gsm8k, "python", "gsm8k"),
        (code, "python", "code"),
        (written(tmp_path / "mayors.jsonl", rows), "search", "qa_em"),
        (written(tmp_path / "worlds.jsonl", worlds), "tool_world", "state"),
        (written(tmp_path / "repair.jsonl", [{"question": "The total is wrong.", "info": repair}]), "repository", "environment"),
        (written(tmp_path / "gym.jsonl", [{"id": 5, "question": "Count up.", "info": {"item": 5}}]), "agentgym", "environment"),
    ):
        flywheel("import", "tasks", path, "--environment", environment, "--verifier", verifier, "--home", home)
    flywheel("import", "documents", written(tmp_path / "towns.jsonl", pages), "--home", home)
    flywheel("import", "tasks", held_out, "--split", "gsm8k", "--environment", "python", "--verifier", "gsm8k", "--home", home)
    return home


def test_two_steps_over_a_mixture_of_environments_that_others_made(home: Path, service: str) -> None:
    kinds = {
        "repository": {"options": {"folder": str(home.parent / "snapshots")}},
        "agentgym": {"options": {"url": service, "service": "textcraft"}},
    }
    settings = {
        "wheel.stages": ["rl"], "synth.webshaper.counts": {}, "synth.fas.plan_slices": 5, "synth.fas.reasoning": {1: 20},
        "evaluation.suites": {"gsm8k": {"counts": {}}}, "evaluation.gate": {}, "evaluation.horizon": 1,
        "policy.max_position_embeddings": 2048, "rollout.limits.max_context_tokens": 1600, "rollout.environments.kinds": kinds,
        "rl.tasks": "split = 'train' AND (provenance->>'source') <> 'nobody'", "rl.rewards.parts": {}, "rl.filters.variance": False,
        "rl.filters.refills": 0, "rl.steps": 2, "rl.tasks_per_step": 8, "rl.samples_per_task": 2, "rl.horizon.gate": None,
        "rl.horizon.hops": [12], "rl.horizon.mixture": dict.fromkeys(VERIFIERS, 1.0) | {"python": 3.0}, "corpus.train.entities": 120,
        "corpus.held_out.entities": 120,
    }  # fmt: skip
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "flows.cli", "run", "--profile", SMALL, "--home", str(home), *overrides]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr[-3000:]
    with Lake(home, read_only=True) as lake:
        rows = lake.query(
            """
            SELECT k.environment, list(DISTINCT s.verifier) AS verifiers, count(*) AS n, count(t.reward) AS rewarded,
                count(s.value) AS scored, count(*) FILTER (o.outcome = 'invalid') AS invalid, any_value(t.error) AS error,
                list(DISTINCT t.step) AS steps
            FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id JOIN tasks k ON k.key = t.task_key
                JOIN scores s ON s.trajectory_id = t.id
            WHERE t.stage = 'rl' GROUP BY k.environment ORDER BY k.environment
            """
        ).to_pylist()
        found = {row["environment"]: row for row in rows}
        assert {name: set(row["verifiers"]) for name, row in found.items()} == VERIFIERS
        assert [row["error"] for row in rows if row["invalid"]] == []
        assert all(row["n"] == row["rewarded"] == row["scored"] for row in rows)
        assert {step for row in rows for step in row["steps"]} == {1, 2}
        assert sum(row["n"] for row in rows) == 2 * 8 * 2
        assert lake.query("SELECT DISTINCT tasks, hops FROM evaluations WHERE suite = 'gsm8k'").to_pylist()
        assert len(lake.documents(source="towns")) == len(PLACES)
        assert {run.state for run in lake.runs()} == {"completed"}
