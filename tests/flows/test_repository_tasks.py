"""SWE-bench rows become tasks of the environment `repository` over local mirrors; what cannot be solved is quarantined with its reason."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eval.graders.repository import make_patch, read_task
from eval.sandbox.sandbox import isolation
from flows.data.imports import TaskImport, import_tasks
from flows.home import Home
from flows.verification import validate_home
from tests.eval.graders.small_repository import FILES, GOLD, HIDDEN, MENDED, TASK
from tests.flows.homes import flywheel, home_at, make
from warehouse import Lake
from warehouse.errors import RequestError
from warehouse.git_commits import read_commit

isolated = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")


def git(folder: Path, *arguments: str) -> str:
    own = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "PATH": "/usr/bin:/bin",
    }
    return subprocess.run(["git", *arguments], cwd=folder, env=own, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def commit(tmp_path: Path) -> str:
    """Base commit of the repository `ann/shop`, of which `mirrors` has a bare clone and a bundle; its solution is committed after it."""
    shop, mirrors = tmp_path / "shop", tmp_path / "mirrors"
    for name, content in FILES.items():
        (shop / name).parent.mkdir(parents=True, exist_ok=True)
        (shop / name).write_bytes(content)
    (shop / "link").symlink_to("/etc/passwd")
    git(shop, "init", "-q", "-b", "main")
    git(shop, "add", ".")
    git(shop, "commit", "-qm", "base")
    base = git(shop, "rev-parse", "HEAD")
    (shop / "shop/prices.py").write_text("SOLVED = True\n")
    git(shop, "commit", "-qam", "solution")
    mirrors.mkdir()
    git(tmp_path, "clone", "-q", "--bare", str(shop), str(mirrors / "ann__shop.git"))
    git(shop, "bundle", "create", "-q", str(mirrors / "lib.bundle"), "main")
    hostile = tmp_path / "called"
    git(mirrors / "ann__shop.git", "config", "core.fsmonitor", f"touch {hostile}")
    git(mirrors / "ann__shop.git", "config", "core.sshCommand", f"touch {hostile}")
    return base


def test_a_commit_is_read_without_history_from_a_bare_repository_or_a_bundle(commit: str, tmp_path: Path) -> None:
    for place in ("mirrors/ann__shop.git", "mirrors/lib.bundle", "shop"):
        assert read_commit(tmp_path / place, commit, 2**20, 10) == FILES
    assert not (tmp_path / "called").exists()
    for commitish, most, told in (("main", 10, "not the full id"), ("0" * 40, 10, "git ls-tree failed"), (commit, 2, "more than")):
        with pytest.raises(RequestError, match=told):
            read_commit(tmp_path / "mirrors/ann__shop.git", commitish, 2**20, most)


def row(commit: str, **changed: Any) -> dict[str, Any]:
    tests = make_patch(FILES, {**FILES, **HIDDEN})
    about = {
        "instance_id": "ann__shop-1",
        "repo": "ann/shop",
        "base_commit": commit,
        "problem_statement": "The first price is not counted.",
    }
    about |= {"patch": GOLD, "test_patch": tests, "FAIL_TO_PASS": json.dumps(TASK.fail_to_pass), "PASS_TO_PASS": list(TASK.pass_to_pass)}
    return {**about, **changed}


@isolated
@pytest.mark.slow
def test_rows_of_swe_bench_are_proven_and_refused_with_their_reason(commit: str, tmp_path: Path) -> None:
    wrong = make_patch(FILES, {**FILES, "README.md": b"Another shop."})
    faults = {
        "with its reference patch 2 of 3 tests do not pass": {"patch": wrong},
        "its tests pass without any change": {"FAIL_TO_PASS": list(TASK.pass_to_pass)},
        "only pytest can run here": {"FAIL_TO_PASS": ["test_total (tests.TestTotal)"]},
        "has no repository bob/shop2": {"repo": "bob/shop2"},
        "not OWNER/NAME": {"repo": "../shop"},
        "git ls-tree failed": {"base_commit": "0" * 40},
        "does not match what the patch expects": {"test_patch": GOLD.replace("prices[1:]", "prices[2:]")},
        "FAIL_TO_PASS is not a list of tests": {"FAIL_TO_PASS": "[]"},
        "no text in problem_statement": {"problem_statement": None},
    }
    rows = [row(commit), row(commit, instance_id="bundled-1", repo="ann/lib")]
    rows += [row(commit, instance_id=f"ann__shop-x{n}", **change) for n, change in enumerate(faults.values())]
    path, home = tmp_path / "rows.jsonl", tmp_path / "home"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    wanted = TaskImport("repository", "environment", source="swe", repositories=tmp_path / "mirrors")
    figures = import_tasks(path, wanted, home)
    assert (figures["rows"], figures["tasks"], figures["reasons"]) == (11, {"read": 2, "new": 2}, {"broken_row": 7, "not_proven": 2})
    assert import_tasks(path, wanted, home)["tasks"] == {"read": 2, "new": 0}
    with Lake(home, read_only=True) as lake:
        tasks = lake.tasks()
        reasons = {failure.item["line"]: failure.reason for failure in lake.failures()}
    assert [told in reasons[line] for line, told in enumerate(faults, start=3)] == [True] * len(faults)
    read = read_task(Home(home).repositories, tasks[0].provenance)
    assert (read.files, read.test_files, read.fail_to_pass) == (FILES, HIDDEN, TASK.fail_to_pass)
    found = validate_home(home, None, None)
    assert (found.proven, found.gold.tried) == (True, 2)
    shown = flywheel("sql", "SELECT key, provenance->>'repo' AS repo FROM tasks ORDER BY key", "--home", home, "--format", "json")
    assert json.loads(shown) == [{"key": "swe-ann__shop-1", "repo": "ann/shop"}, {"key": "swe-bundled-1", "repo": "ann/lib"}]


@isolated
@pytest.mark.slow
def test_planted_bugs_go_from_a_package_to_sql(tmp_path: Path) -> None:
    package, home = tmp_path / "shop", tmp_path / "home"
    for name, content in {**MENDED, **HIDDEN}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(content)
    with home_at(home, f"synth.bugs.packages={json.dumps([str(package)])}", "synth.bugs.count=2", "synth.bugs.tries=1") as context:
        assert make(context, "bugs")["failures"] == 1

    def rows(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(flywheel("sql", query, "--home", home, "--format", "json"))
        return found

    (task,) = rows("SELECT provenance->>'function' AS function, proofs->>'patch' AS patch FROM tasks WHERE environment = 'repository'")
    assert task["function"] == "mean" and "+    return total(prices) / len(prices)" in task["patch"]
    assert rows("SELECT kind, item->>'function' AS function FROM failures") == [{"kind": "nothing_passes", "function": "total"}]
    yields = rows("SELECT figure, value FROM synthesis_yields WHERE part = 'bugs'")
    assert {row["figure"]: row["value"] for row in yields} == {"made": 1, "dropped": 1, "tried": 2, "noticed": 1}
    with pytest.raises(RequestError, match="plants none"):
        flywheel("synth", "has", "--package", package, "--home", home)
    with pytest.raises(RequestError, match="nor an installed package"):
        flywheel("synth", "bugs", "--package", tmp_path / "absent", "--home", home)
