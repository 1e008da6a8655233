"""Repository repair: an issue, a snapshot of files, tools to read and edit them, and tests that run in the sandbox.

Files exist only as a mapping in this process, never on disk, so no path can escape the repository. Only tests run code, in a sandbox. The
answer ends the trajectory: the changes become a diff, and the reward is 1 if the diff, applied to a fresh snapshot, passes all hidden tests
of the task, else 0, or with `partial_credit` the share of repaired tests.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

from pydantic import PositiveInt, TypeAdapter, ValidationError

from eval.graders.repository import LIMITS, RepositoryTask, make_patch, read_task, run_tests, verify_patch
from eval.sandbox.sandbox import MIB, SandboxConfig, SandboxFault, require_isolation
from rl.envs.base import EnvironmentFault, FileExchange, Observation, Resources, Step, ToolOutcome
from rl.envs.tool_use import ToolEnvironment
from rl.renderers.base import Action
from rl.tools import ToolError, ToolMiss, tool
from warehouse.records import ANSWER, Task
from warehouse.settings import Section

MAX_NAME_BYTES = 255
"""Linux's limit of a file name."""
MAX_PATH_BYTES = 2048
"""Half of Linux's limit of a path, since the sandbox prepends its own folder."""


class RepositoryOptions(Section):
    """Options of the environment `repository`."""

    folder: Path
    """Folder with the snapshots that tasks name."""
    max_lines: PositiveInt = 200
    """Maximum lines that a tool shows."""
    partial_credit: bool = False
    """Reward a repair that breaks nothing with the share of `fail_to_pass` that passes; only a whole repair is a success."""
    sandbox: SandboxConfig = LIMITS


class RepositoryEnvironment(ToolEnvironment):
    """Tools over the files of one repository."""

    def __init__(self, options: RepositoryOptions) -> None:
        named = (self.list_files, self.read_file, self.search_files, self.edit_file, self.write_file, self.run_tests)
        super().__init__({function.__name__: tool(function) for function in named})
        self._options = options
        self._task: RepositoryTask | None = None
        self._files: dict[str, bytes] = {}

    async def reset(self, task: Task, seed: int) -> Observation:
        """Read the snapshot; the first observation lists its files."""
        first = await super().reset(task, seed)
        self._task = await asyncio.to_thread(read_task, self._options.folder, task.provenance)
        self._files = dict(self._task.files)
        return replace(first, text=await self.list_files(), has_files=True)

    async def step(self, action: Action) -> Step:
        """Call a tool, exchange files with a harness, or on an answer end the trajectory and grade the diff."""
        if isinstance(action, FileExchange):
            return self._exchange(action.arguments)
        if action.tool != ANSWER or self._task is None:
            return await super().step(action)
        try:
            patch = make_patch(self._task.files, self._files)
            verdict = await asyncio.to_thread(verify_patch, self._task, patch, self._options.sandbox)
        except SandboxFault as fault:
            raise EnvironmentFault(str(fault)) from fault
        info = {"patch": patch, "not_passed": list(verdict.not_passed)}
        reward = verdict.share if self._options.partial_credit else float(verdict.resolved)
        return Step(done=True, reward=reward, info=info)

    def _exchange(self, changes: str) -> Step:
        if not changes:
            return Step(info={"files": {name: b64encode(content).decode() for name, content in self._files.items()}})
        try:
            changed = TypeAdapter(dict[str, str | None]).validate_json(changes)
            self._files = {name: content for name, content in self._files.items() if changed.get(name, "") is not None}
            for name, text in changed.items():
                if text is not None:
                    self._write(name, text)
        except (ToolError, ValidationError) as error:
            return Step(str(error), tool_outcome=ToolOutcome.ERROR)
        return Step()

    async def list_files(self, folder: str = "") -> str:
        """List the files of the repository.

        Args:
            folder: only those below this folder.
        """
        prefix = f"{folder.strip('/')}/" if folder.strip("/.") else ""
        names = sorted(name for name in self._files if name.startswith(prefix))
        if not names:
            raise ToolMiss(f"There are no files below {folder}.")
        return self._cut(names)

    async def read_file(self, path: str, first_line: int = 1) -> str:
        """Read a file, each line with its number.

        Args:
            path: the file's name as it is listed.
            first_line: where to begin.
        """
        lines = self._text(path).splitlines()
        return self._cut([f"{number}\t{line}" for number, line in enumerate(lines, start=1) if number >= first_line])

    async def search_files(self, text: str) -> str:
        """Find the lines that hold a text.

        Args:
            text: letters as they stand in the file.
        """
        found = [
            f"{name}:{number}: {line.strip()}"
            for name, content in sorted(self._files.items())
            for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1)
            if text in line
        ]
        if not found:
            raise ToolMiss(f"No line holds {text!r}.")
        return self._cut(found)

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file.

        Args:
            path: the file's name as it is listed.
            old: what stands there.
            new: what shall stand there.
        """
        content = self._text(path)
        count = content.count(old) if old else 0
        if count != 1:
            raise ToolError(f"{old!r:.80} occurs {count} times in {path}, not once")
        return self._write(path, content.replace(old, new))

    async def write_file(self, path: str, content: str) -> str:
        """Write a file, a new one or in the place of what was there.

        Args:
            path: a name within the repository.
            content: the whole text.
        """
        return self._write(path, content)

    async def run_tests(self, path: str) -> str:
        """Run the tests of a file or folder with pytest, as the repository is now.

        Args:
            path: a file or folder of tests.
        """
        if not any(name == path or name.startswith(f"{path.rstrip('/')}/") for name in self._files):
            raise ToolError(f"there is no {path}")
        try:
            run = await asyncio.to_thread(run_tests, self._files, [path], self._options.sandbox)
        except SandboxFault as fault:
            raise EnvironmentFault(str(fault)) from fault
        ending = f"the run was cut short: {run.result.ending.value}" if not run.outcomes and not run.result.succeeded else ""
        return self._cut([*run.output.splitlines()[-self._options.max_lines + 1 :], ending])

    def _text(self, path: str) -> str:
        if path not in self._files:
            raise ToolError(f"there is no file {path}")
        try:
            return self._files[path].decode()
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is not text") from error

    def _write(self, path: str, content: str) -> str:
        name = path.strip()
        if not name or name.startswith("/") or re.search(r"(^|/)\.{0,2}(/|$)|[\0\n]", name):
            raise ToolError(f"{path!r} is no name within the repository")
        if len(name.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in name.split("/")):
            raise ToolError(f"{path!r:.80} is too long: a name has {MAX_NAME_BYTES} bytes at most, and with its folders {MAX_PATH_BYTES}")
        if any(other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in self._files):
            raise ToolError(f"{path!r} is a file and a folder at once")
        if name in self._files:
            self._text(name)  # raises for binary files, which a diff cannot show
        files = {**self._files, name: content.encode(errors="replace")}
        if sum(map(len, files.values())) > self._options.sandbox.disk_mib * MIB // 2:
            raise ToolError("the repository would grow too large")
        self._files = files
        return f"{name} was written."

    def _cut(self, lines: list[str]) -> str:
        shown = [line for line in lines if line]
        kept, more = shown[: self._options.max_lines], len(shown) - self._options.max_lines
        return "\n".join([*kept, f"... and {more} lines more"] if more > 0 else kept)


def create(resources: Resources) -> RepositoryEnvironment:
    options = resources.read(RepositoryOptions)
    require_isolation(options.sandbox, "the environment 'repository'")
    return RepositoryEnvironment(options)
