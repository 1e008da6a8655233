"""Harbor tasks as tasks of the environment `harbor`: a folder with `task.toml`, or a folder of such folders.

A task whose container needs more than a base image and copied files is quarantined with what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.graders.harbor import Unsupported, below, read_folder
from eval.graders.repository import read_snapshot, write_snapshot
from warehouse.errors import RequestError
from warehouse.importers.runs import ImportedRuns
from warehouse.importers.tasks import TaskFormat, column_of
from warehouse.json_text import why_not_storable
from warehouse.records import Failure, Task
from warehouse.settings import read_toml

_NAME = "task.toml"


def task_folders(path: Path) -> list[Path]:
    """Folders of Harbor tasks at `path` or directly below it."""
    return [path] if (path / _NAME).is_file() else sorted(file.parent for file in path.glob(f"*/{_NAME}")) if path.is_dir() else []


def read_harbor(folders: list[Path], form: TaskFormat, snapshots: Path) -> ImportedRuns:
    """Read one task per folder, and store its files below `snapshots`."""
    tasks: list[Task] = []
    failures: list[Failure] = []
    for number, folder in enumerate(folders, start=1):
        try:
            tasks.append(_task(folder, number, form, snapshots))
        except (RequestError, ValueError) as error:
            failures.append(Failure("import", "unsupported", f"{folder.name}: {error}", {"file": folder.name, "line": number}))
    return ImportedRuns(len(folders), tuple(tasks), tuple(failures))


def _task(folder: Path, number: int, form: TaskFormat, snapshots: Path) -> Task:
    files = read_snapshot(folder)
    if missing := _missing(read_toml(folder / _NAME)):
        raise Unsupported(f"it asks for {missing}, which the sandbox does not have")
    question = files.get("instruction.md", b"").decode().strip()
    if not question:
        raise Unsupported("it has no instruction.md")
    found = read_folder(files)
    kept = {f"image/{name}": content for name, content in found.pop("image").items()}
    kept |= {f"{part}/{name}": content for part in ("tests", "solution") for name, content in below(part, files).items()}
    given = {**found, "snapshot": write_snapshot(snapshots, folder.name, kept)}
    given |= {"source": form.source, "verifier": form.verifier, "place": {"file": folder.name, "line": number}}
    given |= {"rollout": dict(form.rollout)} if form.rollout else {}
    if fault := why_not_storable([folder.name, question, given]):
        raise Unsupported(fault)
    return Task(f"{form.source}-{folder.name}", form.environment, question, (), provenance=given)


def _missing(settings: Mapping[str, Any]) -> str | None:
    """What a task's settings ask for besides one container, or None."""
    asked = {
        "several steps": settings.get("steps"),
        "a GPU": column_of(settings, "environment.gpus"),
        "MCP servers": column_of(settings, "environment.mcp_servers"),
        "a separate container for its tests": column_of(settings, "verifier.environment")
        or column_of(settings, "verifier.environment_mode") == "separate",
    }
    return next((name for name, value in asked.items() if value), None)
