"""Repository tasks of others: SWE-bench rows with snapshots from local mirrors, and the proof that a task of a snapshot can be solved.

    instance_id, repo, base_commit, patch, test_patch, FAIL_TO_PASS, PASS_TO_PASS, problem_statement

A row becomes a task of the environment `repository`: the files at `base_commit` without history, the issue as question, the files that
`test_patch` writes as hidden tests, and `patch` as the reference that only proofs see. Rows whose tests are not named as pytest names them
are quarantined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.graders import harbor
from eval.graders.repository import MOST_SNAPSHOT_BYTES, PatchError, apply_patch, read_task, why_not_admitted, write_snapshot
from eval.sandbox.sandbox import require_isolation
from flows.config import FlywheelConfig
from flows.home import Home
from rl.envs.harbor import HarborOptions
from rl.envs.repository import RepositoryOptions
from warehouse.errors import RequestError
from warehouse.foreign import Row
from warehouse.foreign_child import MOST_MEMBERS
from warehouse.git_commits import read_commit
from warehouse.importers.runs import ImportedRuns, MalformedRow
from warehouse.importers.tables import table_rows
from warehouse.importers.tasks import TaskFormat, rollout_choice, tasks_of
from warehouse.json_text import read_json, why_not_storable
from warehouse.records import Task
from warehouse.settings import read_options

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def why_not_solvable(task: Task, config: FlywheelConfig | None, home: Path) -> str | None:
    """Return why a task of `OVER_SNAPSHOTS` is not admitted: it cannot be read, its reference solution fails, or nothing passes.

    Raises:
        RequestError: The machine grants no sandbox.
        SandboxFault: The sandbox failed.
    """
    given = {} if config is None else config.rollout.environments.kind(task.environment).options
    values, where = Home(home).over_snapshots(given), f"rollout.environments.kinds.{task.environment}"
    options: RepositoryOptions | HarborOptions
    if task.environment == "repository":
        options = read_options(RepositoryOptions, values, where)
    else:
        options = read_options(HarborOptions, values, where)
    require_isolation(options.sandbox, f"the environment {task.environment!r}")
    try:
        if isinstance(options, HarborOptions):
            return harbor.why_not_admitted(harbor.read_task(options.folder, task.provenance), options.sandbox)
        read = read_task(options.folder, task.provenance)
    except RequestError as error:
        return str(error)
    return why_not_admitted(read, str(task.proofs.get("patch", "")), options.sandbox)


def read_swe_bench(path: Path, form: TaskFormat, mirrors: Path, snapshots: Path) -> ImportedRuns:
    """Read SWE-bench rows, and store the snapshots of their commits below `snapshots`.

    Args:
        mirrors: folder of bare repositories or bundles, named `OWNER/NAME`, `OWNER__NAME` or `NAME`, with or without `.git` or `.bundle`.

    Raises:
        RequestError: the table or the folder cannot be read.
    """
    if not mirrors.is_dir():
        raise RequestError(f"--repositories: there is no folder {mirrors}; choose a folder of bare git repositories or bundles.")
    return tasks_of(list(table_rows(path, form.delimiting)), lambda row: _task(row, form, mirrors, snapshots), PatchError)


def _task(row: Row, form: TaskFormat, mirrors: Path, snapshots: Path) -> Task:
    names = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")
    identity, repo, commit, patch, test_patch, question = (_text(row.value, name) for name in names)
    tests = {key.lower(): _tests(row.value, key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    files = read_commit(_mirror(mirrors, repo), commit, MOST_SNAPSHOT_BYTES, MOST_MEMBERS)
    tested = apply_patch(files, test_patch)
    hidden = {name: content.decode() for name, content in tested.items() if files.get(name) != content}
    apply_patch(files, patch)  # raises if the reference does not fit the commit
    about = {"repo": repo, "base_commit": commit, "source": form.source, "verifier": form.verifier, **tests}
    place = {"file": row.path.name, "line": row.line}
    given = {**about, "place": place, "test_files": hidden, "snapshot": write_snapshot(snapshots, identity, files)}
    given |= {"rollout": chosen} if (chosen := rollout_choice(row.value, form)) else {}
    if fault := why_not_storable([identity, question, given, patch]):
        raise MalformedRow(fault)
    key = f"{form.source}-{identity.replace('/', '-')}"
    return Task(key, form.environment, question, (), provenance=given, proofs={"patch": patch})


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise MalformedRow(f"it has no text in {name}")
    return value


def _tests(row: Mapping[str, Any], name: str) -> list[str]:
    """Test names of a column, a list or the JSON text of one."""
    value = row.get(name)
    try:
        named = read_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise MalformedRow(f"{name} is not a list of tests") from error
    if not isinstance(named, list) or not all(isinstance(test, str) for test in named) or (not named and name == "FAIL_TO_PASS"):
        raise MalformedRow(f"{name} is not a list of tests")
    if strange := next((test for test in named if "::" not in test), None):
        raise MalformedRow(f"{name} names {strange!r:.80}, which is not a pytest id (path::name): only pytest can run here")
    return named


def _mirror(mirrors: Path, repo: str) -> Path:
    if not _REPOSITORY.fullmatch(repo):
        raise MalformedRow(f"repo is {repo!r:.80}, not OWNER/NAME")
    stems = (repo, repo.replace("/", "__"), repo.rpartition("/")[2])
    places = [mirrors / f"{stem}{ending}" for stem in stems for ending in (".git", "", ".bundle")]
    found = next((place for place in places if place.is_file() or (place / "objects").is_dir() or (place / ".git").is_dir()), None)
    if found is None:
        raise MalformedRow(f"{mirrors} has no repository {repo}: put a bare clone there as {stems[1]}.git")
    return found
