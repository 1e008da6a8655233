"""Repository repairs, judged as in SWE-bench: failing tests must pass, passing tests must keep passing.

Test files and pytest's configuration files are always the task's own, so a patch cannot change the tests. The patched code does run in the
process of its tests; docs/sandbox.md describes what that leaves open.

Patches are unified diffs of text files and apply strictly: every line kept or removed must be exactly where the diff says.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import secrets
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path, PurePosixPath
from typing import Any

from eval.sandbox.sandbox import MIB, Sandbox, SandboxConfig, SandboxResult, python_program
from warehouse.digests import digest_bytes
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.foreign import read_foreign
from warehouse.foreign_child import MOST_MEMBERS

LIMITS = SandboxConfig(wall_seconds=60, cpu_seconds=60, memory_mib=1024, disk_mib=256)
CONFIGURES_TESTS = frozenset(
    (
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
        "pytest.py",
    )
)
"""Files that decide how tests run, in any folder; a patch's version of them is ignored."""
MOST_SNAPSHOT_BYTES = 128 * MIB
_MAX_OUTCOME_BYTES = 16 * MIB
_RUNNER = """
import json, os, sys
job = json.load(sys.stdin)
sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "src")]
import pytest
def complaint(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    frames = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    lines = getattr(frames[0], "lines", []) if frames else []
    statement = [line for line in lines if not line.startswith("E") and line.strip(" ^~")]
    return ["\\n".join(statement)[:500], str(getattr(crash, "message", ""))[:500]]
class Outcomes:
    found, complaints = {}, {}
    def pytest_runtest_logreport(self, report):
        earlier = self.found.get(report.nodeid)
        if report.outcome != "passed":
            self.found[report.nodeid] = report.outcome
            if report.failed and len(self.complaints) < 20:
                self.complaints[report.nodeid] = complaint(report)
        elif report.when == "call" and earlier is None:
            self.found[report.nodeid] = "passed"
    def pytest_sessionfinish(self):
        with open(3, "w", closefd=False) as file:
            file.write("\\n" + json.dumps({"nonce": job["nonce"], "outcomes": self.found, "complaints": self.complaints}))
pytest.main(["-q", "--no-header", "--tb=short", "-o", "addopts=", "-p", "no:cacheprovider", *job["paths"]], plugins=[Outcomes()])
"""
"""Writes the outcomes to its channel before pytest prints the failures, which may exceed the output limit. A repository's own `addopts`
are left out, since they often name plugins that are not there."""


@dataclass(frozen=True, slots=True)
class RepositoryTask:
    """A snapshot with a bug, and the tests that show when it is fixed, by pytest ids (`folder/file.py::name`)."""

    files: Files
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    test_files: Files = field(default_factory=dict)
    """Files added before tests run, hidden from the policy."""

    def __post_init__(self) -> None:
        """Raise RequestError without a test that fails: any patch, also none, would resolve it."""
        if not self.fail_to_pass:
            raise RequestError("fail_to_pass of the repository task names no test, so nothing shows that the bug is fixed.")

    @property
    def tests(self) -> tuple[str, ...]:
        return self.fail_to_pass + self.pass_to_pass


@dataclass(frozen=True, slots=True)
class RepairVerdict:
    """Whether all tests passed; if not, those that did not, with the output or the reason that none ran.

    `share` is the partial credit: the share of `fail_to_pass` that passes if all of `pass_to_pass` do, else 0.
    """

    resolved: bool
    not_passed: tuple[str, ...] = ()
    detail: str = ""
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class TestRun:
    """Outcomes by test; `complaints` are the statement and the message of the first failures, as the tested code may forge them."""

    outcomes: Mapping[str, str]
    output: str
    result: SandboxResult
    complaints: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def not_passed(self, tests: Iterable[str]) -> tuple[str, ...]:
        return tuple(test for test in tests if self.outcomes.get(test) != "passed")


def read_task(root: Path, description: Mapping[str, Any]) -> RepositoryTask:
    """Read the task in a task's provenance: `snapshot` (a folder or archive below `root`), `fail_to_pass`, `pass_to_pass`, `test_files`,
    `changes` (a diff that is applied to the snapshot, such as a planted bug), and `hidden` (files of the snapshot that only tests see).

    Raises:
        RequestError: Something is missing, does not fit or leads out of `root`, or no test is named.
    """
    for key in ("snapshot", "fail_to_pass"):
        if key not in description:
            raise RequestError(f"the repository task has no {key} in its provenance.")
    files = description.get("test_files", {})
    if not isinstance(files, Mapping) or not all(isinstance(text, str) for text in files.values()):
        raise RequestError("test_files of the repository task is not an object of strings.")
    failing, passing, concealed = (_names(description, key) for key in ("fail_to_pass", "pass_to_pass", "hidden"))
    snapshot = named_snapshot(root, description)
    try:
        shown = apply_patch(snapshot, str(description.get("changes", "")))
    except PatchError as error:
        raise RequestError(f"the changes of the repository task do not fit {description['snapshot']}: {error}.") from error
    hidden = {name: shown.pop(name) for name in concealed if name in shown}
    return RepositoryTask(shown, failing, passing, {**hidden, **{str(name): text.encode() for name, text in files.items()}})


def named_snapshot(root: Path, description: Mapping[str, Any]) -> dict[str, bytes]:
    """Read the snapshot that a task's provenance names, below `root`. Raise RequestError if it leads out of that, or as `read_snapshot`."""
    place = (root / str(description.get("snapshot"))).resolve()
    if not place.is_relative_to(root.resolve()):
        raise RequestError(f"the snapshot {description.get('snapshot')!r} is outside {root}.")
    return read_snapshot(place)


def read_snapshot(path: Path) -> dict[str, bytes]:
    """Read the regular files of a folder, tar or zip by relative name, without `.git`. Raise RequestError if it is missing or too large."""
    if path.is_dir():
        found = ((str(file.relative_to(path)), file.stat().st_size, file.read_bytes) for file in sorted(path.rglob("*")) if _is_plain(file))
        return _bounded(found, path)
    if not path.is_file():
        raise RequestError(f"there is no snapshot {path}: give a folder or an archive.")
    kind = "zip" if path.suffix in (".whl", ".zip") else "tar"
    members = (member.value for member in read_foreign(kind, path)[1])
    return _bounded(((str(PurePosixPath(name)), size, lambda content=content: content) for name, size, content in members), path)


def pack(files: Files) -> bytes:
    """Return a tar archive of files, the same for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def write_snapshot(root: Path, name: str, files: Files) -> str:
    """Store files as an archive below `root`, unless it is there. Return its name, which follows from `name` and the content."""
    packed = pack(files)
    path = root / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.')}-{digest_bytes(packed)[:12]}.tar.gz"
    if not path.is_file():
        with drafted(path) as draft:
            draft.write_bytes(gzip.compress(packed, mtime=0))
    return path.name


def run_tests(files: Files, paths: Iterable[str], config: SandboxConfig = LIMITS) -> TestRun:
    """Run pytest on `paths` of a repository, in a sandbox.

    Raises:
        RequestError: The machine grants no sandbox, or the files do not fit into it.
        SandboxFault: The sandbox failed.
    """
    nonce = secrets.token_hex(16)
    job = json.dumps({"paths": sorted(set(paths)), "nonce": nonce}).encode()
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with tempfile.TemporaryFile() as channel:
        program = python_program(_RUNNER, files=files, stdin=job, environment=environment, channel=channel.fileno())
        result = Sandbox(config).run(program)
        channel.seek(0)
        outcomes, complaints = _read_outcomes(channel.read(_MAX_OUTCOME_BYTES), nonce)
    output = result.stdout_text if outcomes else f"{result.stdout_text}\n{result.stderr_text}"
    return TestRun(outcomes, output.strip(), result, complaints)


def verify_patch(task: RepositoryTask, patch: str, config: SandboxConfig = LIMITS) -> RepairVerdict:
    """Test whether `patch` makes all tests of `task` pass. Raises as `run_tests`."""
    try:
        patched = apply_patch(task.files, patch)
    except PatchError as error:
        return RepairVerdict(False, task.tests, str(error))
    run = run_tests(_with_tests(task, patched), _files_of(task.tests), config)
    missed = run.not_passed(task.tests)
    failing = len(run.not_passed(task.fail_to_pass))
    share = 0.0 if run.not_passed(task.pass_to_pass) else 1 - failing / len(task.fail_to_pass)
    return RepairVerdict(not missed, missed, "" if not missed else run.output[-2000:], share)


def why_not_admitted(task: RepositoryTask, gold: str, config: SandboxConfig = LIMITS) -> str | None:
    """Return why a task is not to be trained on: its reference patch does not solve it, or nothing does. Raises as `run_tests`."""
    if not gold.strip():
        return "it has no reference patch"
    if verify_patch(task, "", config).resolved:
        return "its tests pass without any change"
    solved = verify_patch(task, gold, config)
    if solved.resolved:
        return None
    why = " ".join(solved.detail.split())[-400:] or "no test ran"
    missed = solved.not_passed
    return f"with its reference patch {len(missed)} of {len(task.tests)} tests do not pass, such as {missed[0]}: {why}"


def _read_outcomes(written: bytes, nonce: str) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    last = written.rpartition(b"\n")[2].decode(errors="replace")
    try:
        report = json.loads(last) if nonce in last else {"outcomes": {}, "complaints": {}}
        return dict(report["outcomes"]), {str(test): (str(told[0]), str(told[1])) for test, told in report["complaints"].items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):  # the patched code may write there too
        return {}, {}


def _names(description: Mapping[str, Any], key: str) -> tuple[str, ...]:
    named = description.get(key, [])
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) and name and not name.startswith("-") for name in named):
        raise RequestError(f"{key} of the repository task has an entry that is not the name of a test or file.")
    return tuple(named)


def _with_tests(task: RepositoryTask, patched: Files) -> dict[str, bytes]:
    """Return the patched files with the task's own tests and test configuration."""
    fixed = _files_of(task.tests)
    kept = {name: content for name, content in patched.items() if not _decides(name, fixed)}
    original = {name: content for name, content in task.files.items() if _decides(name, fixed)}
    return {**kept, **original, **task.test_files}


def _decides(name: str, test_files: frozenset[str]) -> bool:
    return name in test_files or PurePosixPath(name).name in CONFIGURES_TESTS


def _files_of(tests: Iterable[str]) -> frozenset[str]:
    return frozenset(test.split("::")[0] for test in tests)


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and ".git" not in file.parts


def _bounded(found: Iterable[tuple[str, int, Any]], path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for name, size, read in found:
        total += size
        if total > MOST_SNAPSHOT_BYTES or len(files) == MOST_MEMBERS:
            raise RequestError(f"the snapshot {path} has more than {MOST_SNAPSHOT_BYTES // MIB} MiB, or {MOST_MEMBERS:,} files.")
        files[name] = read()
    return files


_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file\n"
_ABSENT = "/dev/null"

Files = Mapping[str, bytes]
"""File contents by relative name."""


class PatchError(ValueError):
    """A diff that cannot be read or does not apply."""


def make_patch(before: Files, after: Files) -> str:
    """Diff from `before` to `after`, sorted by name; empty if equal. Raises PatchError for a changed file that is not UTF-8."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return "".join(piece for name in changed for piece in _file_diff(name, before.get(name), after.get(name)))


def apply_patch(files: Files, patch: str) -> dict[str, bytes]:
    """Apply `patch` to `files`. Raises PatchError if it does not apply."""
    result = dict(files)
    for old_name, new_name, hunks in _sections(patch):
        old = _lines(result.get(old_name, b""), old_name) if old_name else []
        if old_name and old_name not in result:
            raise PatchError(f"the patch changes {old_name}, which does not exist")
        if old_name:
            del result[old_name]
        if new_name:
            result[new_name] = "".join(_patched(old, hunks, new_name)).encode()
    return result


def _file_diff(name: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    origin = _ABSENT if before is None else f"a/{name}"
    target = _ABSENT if after is None else f"b/{name}"
    old, new = _lines(before or b"", name), _lines(after or b"", name)
    if not old and not new:  # an added or removed empty file has no hunk
        yield f"--- {origin}\n+++ {target}\n"
    for line in unified_diff(old, new, origin, target):
        yield line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"


def _lines(content: bytes, name: str) -> list[str]:
    """Lines with their line feeds; no other character ends a line."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise PatchError(f"{name} is not text in UTF-8") from error
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _sections(patch: str) -> Iterator[tuple[str | None, str | None, list[list[str]]]]:
    """Yield (old name, new name, hunks) of each file; a hunk is a list of lines, header first. git's own lines are skipped."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", patch)
    position = 0
    while position < len(lines):
        if not (lines[position].startswith("--- ") and lines[position + 1 : position + 2] and lines[position + 1].startswith("+++ ")):
            position += 1
            continue
        names = _name(lines[position]), _name(lines[position + 1])
        hunks, position = _read_hunks(lines, position + 2)
        yield *names, hunks


def _name(line: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    if name == _ABSENT:
        return None
    name = name[2:] if name[:2] in ("a/", "b/") else name
    if name.startswith("/") or ".." in name.split("/") or not name:
        raise PatchError(f"the patch names {name!r}, which is outside the repository")
    return name


def _read_hunks(lines: Sequence[str], position: int) -> tuple[list[list[str]], int]:
    hunks: list[list[str]] = []
    while position < len(lines) and (header := _HUNK.match(lines[position])):
        old_left, new_left = int(header[2] or 1), int(header[4] or 1)
        hunk = [lines[position]]
        position += 1
        while position < len(lines) and (old_left > 0 or new_left > 0 or lines[position] == _NO_NEWLINE):
            line = lines[position]
            old_left -= line[0] in " -"
            new_left -= line[0] in " +"
            hunk.append(line)
            position += 1
        if old_left or new_left:
            raise PatchError(f"a hunk does not have the length in its header: {hunk[0].strip()}")
        hunks.append(hunk)
    return hunks, position


def _patched(old: Sequence[str], hunks: Sequence[Sequence[str]], name: str) -> Iterator[str]:
    at = 0
    for header, *body in hunks:
        match = _HUNK.match(header)
        assert match is not None
        start = max(int(match[1]) - 1, 0) if match[2] != "0" else int(match[1])
        if start < at:
            raise PatchError(f"hunks of {name} overlap")
        yield from old[at:start]
        at = start
        for sign, text in _without_markers(body):
            if sign in " -":
                if at >= len(old) or old[at] != text:
                    raise PatchError(f"line {at + 1} of {name} does not match what the patch expects")
                at += 1
            if sign in " +":
                yield text
    yield from old[at:]


def _without_markers(body: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (sign, line) of a hunk's body; a line before a "No newline" marker loses its line feed."""
    for index, line in enumerate(body):
        if line == _NO_NEWLINE:
            continue
        if line[0] not in " +-":
            raise PatchError(f"a hunk has the unexpected line {line[:20]!r}")
        cut = index + 1 < len(body) and body[index + 1] == _NO_NEWLINE
        yield line[0], line[1:].removesuffix("\n") if cut else line[1:]
