"""The files of an environment in a folder, for a command that works on files: written before it runs, and handed back as changes."""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path

from rl.envs.base import EnvironmentFault, FileExchange, ToolOutcome
from rl.rollouts.calls import EnvironmentHandle

_MOST_FILES = 10_000
_MOST_BYTES = 32 * 2**20
"""Maximum size of all changed texts together."""
_IGNORED = {".git", "__pycache__"}
"""Folders that a command makes for itself."""


async def write_files(environment: EnvironmentHandle, folder: Path) -> Mapping[str, bytes]:
    """Write the environment's files into an empty folder and return them by name. Raises EnvironmentFault."""
    given = (await environment.step(FileExchange())).info["files"]
    files = {name: b64decode(content) for name, content in given.items()}
    await asyncio.to_thread(_write, folder, files)
    return files


async def hand_back(environment: EnvironmentHandle, folder: Path, files: Mapping[str, bytes]) -> None:
    """Give the environment what has changed in the folder. Raises EnvironmentFault if it is too much, or not taken."""
    changes = await asyncio.to_thread(_changes, folder, files)
    step = await environment.step(FileExchange(arguments=json.dumps(changes)))
    if step.tool_outcome is ToolOutcome.ERROR:
        raise EnvironmentFault(f"the harness's files cannot be judged: {step.observation}")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise EnvironmentFault(f"the file {name!r:.100} would be outside the harness's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _changes(folder: Path, files: Mapping[str, bytes]) -> dict[str, str | None]:
    """Texts of new and changed files by name, None for removed ones. Links and files that are not UTF-8 are left as they were."""
    changes, left, size = dict[str, str | None](), dict(files), 0
    for number, path in enumerate(_regular(folder)):
        name, bytes_there = path.relative_to(folder).as_posix(), path.stat().st_size
        before = left.pop(name, None)
        if number >= _MOST_FILES or size + bytes_there > _MOST_BYTES:
            raise EnvironmentFault(f"the harness left more than {_MOST_FILES} files or {_MOST_BYTES // 2**20} MiB")
        content = path.read_bytes()
        if content != before:
            size += bytes_there
            try:
                changes[name] = content.decode()
            except UnicodeDecodeError:
                continue
    return changes | {name: None for name in left if not os.path.lexists(folder / name)}


def _regular(folder: Path) -> Iterator[Path]:
    """Regular files below the folder, without following links."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _IGNORED)
        yield from (path for name in sorted(names) if (path := Path(root, name)).is_file() and not path.is_symlink())
