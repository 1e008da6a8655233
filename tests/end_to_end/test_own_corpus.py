"""docs/own_corpus.md: its profile and its commands as written, on notes of a user and a server that errs as models do.

What the page says is what runs: the address of the server is the one line that is replaced, and sizes and the server's patience are those
of `SMALLER` for commands that name the profile.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.ferries import answer_in, write_exam, write_notes, writing_model
from tests.synth.teachers.faulty_server import FaultyServer
from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(3600)]

PAGE = Path(__file__).parents[2] / "docs" / "own_corpus.md"
ADDRESS = "export TEACHER="
WITH_PROFILE = "--profile notes.toml"
SMALLER = (
    "synth.fas.plan_slices=20",
    "rl.steps=2",
    "rl.tasks_per_step=4",
    "sft.epochs=1",
    "synth.teacher.timeout_seconds=4",
    "synth.teacher.first_pause_seconds=0.01",
)
FAULTS = {
    "late": "SELECT count(*) AS n FROM failures WHERE kind = 'retried_timeout'",
    "cut": "SELECT count(*) AS n FROM failures WHERE kind = 'cut' AND length(item->>'text') > 0",
    "keys": "SELECT count(*) AS n FROM failures WHERE regexp_matches(item::VARCHAR, '\"the_(question|plan|style|contradicted|tool)')",
    "refusal": "SELECT count(*) AS n FROM failures WHERE contains(item->>'text', 'I can''t help with that request')",
    "chatty": "SELECT count(*) AS n FROM completions WHERE starts_with(text, 'Sure! Here is what you asked for') AND ending = 'stop'",
    "fenced": "SELECT count(*) AS n FROM completions WHERE starts_with(text, '```json') AND ending = 'stop'",
    "repetition": """SELECT count(*) AS n FROM completions
        WHERE list_unique(string_split(text, chr(10))) * 6 = len(string_split(text, chr(10)))""",
}
"""How the lake shows that a fault was met: retried, recorded as a failure, or read in spite of it."""


def commands_of(page: str) -> list[str]:
    """The commands of a page's blocks without a language, one a line."""
    return [line for block in blocks_of(page, "") for line in block.splitlines() if line.strip()]


def profile_of(page: str) -> str:
    """The page's one block of TOML."""
    (block,) = blocks_of(page, "toml")
    return block


def blocks_of(page: str, language: str) -> list[str]:
    """The blocks of code in that language."""
    return [text for named, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if named == language]


def run_page(page: str, folder: Path, url: str) -> dict[str, str]:
    """Run every command of the page in `folder`; what each printed."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": places, "TEACHER": url}
    printed: dict[str, str] = {}
    for command in commands_of(page):
        if command.startswith(ADDRESS):
            continue
        smaller = "".join(f" --set {setting}" for setting in SMALLER) if WITH_PROFILE in command else ""
        done = subprocess.run(["bash", "-c", command + smaller], cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
        if "cannot be fetched" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1][:300])
        assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"
        printed[command] = done.stdout
    return printed


def ask(lake: Lake, query: str) -> list[dict[str, Any]]:
    return lake.query(query).to_pylist()


def test_the_page_leads_from_a_folder_of_markdown_to_a_policy(tmp_path: Path) -> None:
    page = PAGE.read_text()
    notes, exam = write_notes(tmp_path / "notes"), write_exam(tmp_path / "exam")
    (tmp_path / "notes.toml").write_text(profile_of(page))
    with FaultyServer(answer=writing_model, share=0.3, late_seconds=6.0) as server:
        printed = run_page(page, tmp_path, server.url)
    assert FAULTS.keys() <= server.met.keys(), "each fault was met"
    home = tmp_path / "runs" / "notes"
    with Lake(home, read_only=True) as lake:
        tasks, met = lake.tasks(), {fault: ask(lake, query)[0]["n"] for fault, query in FAULTS.items()}
        kinds = {row["kind"]: row["n"] for row in ask(lake, "SELECT kind, count(*) AS n FROM examples GROUP BY kind")}
        evaluated = ask(lake, "SELECT stage, tasks, invalid FROM evaluations WHERE suite = 'exam' AND hops IS NULL")
        runs, policies = lake.runs(), {policy.stage: policy.id for policy in lake.policies()}
        shown = ask(lake, "SELECT outcome, count(*) AS n FROM trajectories WHERE stage = 'demonstration' GROUP BY outcome")
        learnt = ask(lake, "SELECT count(*) AS n FROM trajectories WHERE stage = 'rl' AND policy = 't1-rl'")
    assert all(met.values()), met
    _check_tasks(notes, {task.question: task.answers for task in tasks if task.split == "train"}, at_least=10)
    _check_tasks(exam, {task.question: task.answers for task in tasks if task.split == "exam"}, at_least=3)
    assert min(kinds[kind] for kind in ("fas_plan", "fas_reason", "document", "trajectory")) > 0
    assert {row["outcome"] for row in shown} >= {"success"} and learnt[0]["n"] == 2 * 4 * 4
    assert {run.state for run in runs} == {"completed"} and policies.keys() == {"init", "cpt", "sft", "rl"}
    assert {row["stage"] for row in evaluated} == policies.keys() and not any(row["invalid"] for row in evaluated)
    assert (home / "policies" / policies["rl"] / "config.json").is_file() and (home / "report.html").is_file()
    assert any("only_answer" in text and "kept" in text for text in printed.values()), "what survived each check is printed"


def _check_tasks(pages: Path, asked: dict[str, tuple[str, ...]], at_least: int) -> None:
    """That there are so many questions, and that each has the answer that the pages give."""
    text = "\n".join(page.read_text() for page in sorted(pages.rglob("*.md")))
    assert len(asked) >= at_least, Counter(asked)
    assert all(answers == (answer_in(question, text),) for question, answers in asked.items())


def test_the_commands_of_the_page_are_those_that_run() -> None:
    page = PAGE.read_text()
    commands = commands_of(page)
    assert [command for command in commands if command.startswith(ADDRESS)] == commands[:1], "one line names the teacher, the first"
    assert sum(WITH_PROFILE in command for command in commands) == 2 and all("$TEACHER" in c for c in commands if WITH_PROFILE in c)
    assert [command.split()[:3] for command in commands if command.startswith("flywheel run")] == [["flywheel", "run", "--home"]]
    assert shutil.which("bash") is not None
