"""Import and export by the command line: a home is made, twice is once, conflicts are told, wrong requests are one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flows.config import load_config
from flows.context import open_context
from flows.data.imports import TaskImport, import_file, import_tasks
from flows.home import Home
from flows.pipeline import run_attempt
from flows.stages.synthesis.stage import synthesise
from warehouse import Lake, Policy, Task
from warehouse.errors import RequestError
from warehouse.exporters.dataset import export_table

SMALL = str(Path(__file__).parent.parent / "end_to_end" / "small.toml")
WORLD = (
    "corpus.train.entities=120", "corpus.held_out.entities=120", "synth.demonstration_questions.counts={1=4}",
    "synth.webshaper.counts={1=4}", "synth.fas.plan_slices=4", "synth.fas.reasoning={1=10}", "synth.documents=5",
    "evaluation.suites.held_out.counts={1=4}", "evaluation.gate={}",
)  # fmt: skip
FLYWHEEL = str(Path(sys.executable).parent / "flywheel")
ROW = {"id": "a", "question": "Who?", "answer": "Ann", "formalization": [["V@X", "r", "?"]], "urls": []}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (ROW, {**ROW, "id": "b", "formalization": []}, {**ROW, "id": "c"})))
    return file


def flywheel(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FLYWHEEL, *map(str, arguments)], capture_output=True, text=True, timeout=550)


@pytest.mark.slow
def test_rows_come_in_and_go_out_as_they_were(rows: Path, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out.jsonl"
    done = flywheel("import", "webshaper", rows, "--home", home, "--json")
    told = json.loads(done.stdout)
    assert told.pop("first_reason") == "line 2: the formula has no triple"
    assert told == {"rows": 3, "quarantined": 1, "reasons": {"empty": 1}, "tasks": {"read": 2, "new": 2}}
    assert flywheel("export", "webshaper", "--home", home, "--to", out).returncode == 0
    lines = rows.read_text().splitlines()
    assert out.read_text().splitlines() == [lines[0], lines[2]]
    assert flywheel("import", "webshaper", tmp_path / "none.jsonl", "--home", home).returncode == 2


@pytest.mark.slow
def test_a_file_of_which_nothing_comes_in_is_status_1_and_its_rows_are_kept(tmp_path: Path) -> None:
    (tmp_path / "wrapped.json").write_text(json.dumps({"data": [{"question": "Who?", "answer": "Ann"}]}, indent=2))
    done = flywheel("import", "openai", tmp_path / "wrapped.json", "--home", tmp_path / "home")
    assert done.returncode == 1 and done.stdout.startswith("1 rows: nothing imported; 1 quarantined"), done
    with Lake(tmp_path / "home") as lake:
        assert [failure.kind for failure in lake.failures()] == ["openai_row"]


@pytest.mark.slow
def test_importing_twice_changes_nothing(rows: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    import_file("webshaper", rows, home)
    with Lake(home) as lake:
        before = (lake.tasks(), lake.failures())
    assert import_file("webshaper", rows, home)["tasks"] == {"read": 2, "new": 0}
    with Lake(home) as lake:
        assert (lake.tasks(), lake.failures()) == before


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_of_tasks_comes_back_as_it_went_out(suffix: str, tmp_path: Path) -> None:
    answers = {"a": ("Ann", 'Ann "the" Lee, Jr'), "b": ("[1, 2]",), "c": ('["x"]', "line\nbreak")}
    tasks = [Task(key, "search", f"Who, {key}?\n", told, (("C@X", "r", "?"),), hops=2) for key, told in answers.items()]
    with Lake(tmp_path / "home") as lake:
        lake.add(tasks)
        export_table(lake, "tasks", tmp_path / f"tasks.{suffix}")
    import_tasks(tmp_path / f"tasks.{suffix}", TaskImport("search", "qa_em"), tmp_path / "other")
    with Lake(tmp_path / "other") as lake:
        assert [(task.question, task.answers, task.formula, task.hops) for task in lake.tasks()] == [
            (task.question, task.answers, task.formula, task.hops) for task in tasks
        ]


@pytest.mark.slow
def test_a_nul_in_a_name_sets_its_record_aside_and_the_views_of_the_home_go_on(tmp_path: Path) -> None:
    """DuckLake cannot look for one: every join of the views by the name of a task or a policy would fail."""
    said = {"messages": [{"role": "user", "content": "Who \x00?"}, {"role": "assistant", "content": "Ann"}], "reward": 1}
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps({**said, "model": model}) + "\n" for model in ("one", "two\x00")))
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"id": key, "question": key[0], "answers": ["x"]}) + "\n" for key in ("a", "b\x00"))
    )
    figures = import_file("openai", tmp_path / "runs.jsonl", tmp_path / "home")
    assert (figures["reasons"], figures["trajectories"]["new"], figures["scores"]["new"]) == ({"nul_in_name": 1}, 1, 1)
    assert import_tasks(tmp_path / "tasks.jsonl", TaskImport("search", "qa_em"), tmp_path / "home")["reasons"] == {"nul_in_name": 1}
    with Lake(tmp_path / "home") as lake:
        (run,) = lake.trajectories()
        lake.add(
            [
                *(replace(run, id=f"p-{task.key}", task_key=task.key, policy="p") for task in lake.tasks()),
                Policy("p", None, "rl", "p", "d", 1),
            ]
        )
        assert [lake.query(f"FROM {view}").num_rows for view in ("pass_rate", "reward_summary")] == [3, 3]
        assert [task.question for task in lake.tasks()] == ["Who \x00?", "a"]


@pytest.mark.slow
def test_an_id_with_other_content_is_a_conflict_and_the_first_stays(rows: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    import_file("webshaper", rows, home)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({**ROW, "urls": ["https://example.org"]}) + "\n" + json.dumps({**ROW, "id": "c"}) + "\n")
    figures = import_file("webshaper", other, home)
    assert (figures["reasons"], figures["tasks"]) == ({"conflict": 1}, {"read": 1, "new": 0})
    with Lake(home) as lake:
        assert next(task for task in lake.tasks() if task.key == "webshaper-a").provenance["urls"] == []


@pytest.mark.long
@pytest.mark.slow
def test_a_wheel_turns_where_something_was_imported_and_more_may_come_then(rows: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    import_file("webshaper", rows, home.root)
    home.claim(load_config(SMALL, WORLD))
    with open_context(home.root) as context:
        run_attempt(context.lake, "t1-synth", "synth", 1, {}, lambda run: synthesise(context, run, 1))
        made = {task.key for task in context.lake.tasks("train")}
        assert {run.state for run in context.lake.runs()} == {"completed"}
    more = rows.with_name("more.jsonl")
    more.write_text(json.dumps({**ROW, "id": "d"}) + "\n")
    assert import_file("webshaper", more, home.root)["tasks"] == {"read": 1, "new": 1}
    with Lake(home.root) as lake:
        kept = {task.key for task in lake.tasks()}
    assert len(made) == 4 and kept > made | {"webshaper-a", "webshaper-c", "webshaper-d"}


def test_a_folder_of_something_else_is_left_alone(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no run's home"):
        import_file("webshaper", rows, tmp_path)
    with pytest.raises(RequestError, match="no format 'parchment'"):
        import_file("parchment", rows, tmp_path / "home")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
