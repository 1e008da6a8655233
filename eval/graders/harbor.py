"""Harbor tasks (the form of Terminal-Bench 2), run in the sandbox instead of a container.

A task is an image (files by absolute path, a working folder, variables), hidden tests and a reference solution. Its state is a working
copy: a tar archive that a command in the sandbox unpacks, changes and packs again, so that each command has its own limits and nothing runs
between commands. No archive that a command wrote is unpacked outside the sandbox.

`tests/test.sh` judges a working copy and writes `/logs/verifier/reward.txt` or `reward.json`. Code of the policy that the tests run could
write that file too, as it could in a container.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from eval.graders.repository import Files, named_snapshot, pack
from eval.sandbox.sandbox import MIB, Sandbox, SandboxConfig, python_program
from warehouse.errors import RequestError

LIMITS = SandboxConfig(
    wall_seconds=120, cpu_seconds=120, memory_mib=1024, disk_mib=256, max_files=20_000, processes=64, readable=("/bin", "/usr/bin")
)
_HIDDEN = ("tests", "solution", "logs")
_READ_ONLY = frozenset(
    ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "root", "run", "sbin", "space", "sys", "tmp", "usr", "var")
)
_IGNORED = frozenset(("ARG", "CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"))
"""Instructions that change no file."""
_RUNNER = """
import json, os, shutil, signal, subprocess, sys, tarfile, io
job = json.loads(sys.stdin.buffer.readline())
def unpack(size):
    if size:
        with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read(size))) as archive:
            archive.extractall(".", filter="fully_trusted")
unpack(job["state"])
for name in job["fresh"]:
    os.path.isdir(name) and not os.path.islink(name) and shutil.rmtree(name)
    os.path.lexists(name) and os.unlink(name)
unpack(job["added"])
for folder in job["folders"]:
    os.makedirs("." + folder, exist_ok=True)
os.makedirs("/tmp/bin")
for name in ("python", "python3"):
    os.symlink(sys.executable, "/tmp/bin/" + name)
for name, text in job["programs"].items():
    with open("/tmp/bin/" + name, "w") as file:
        file.write(text)
    os.chmod("/tmp/bin/" + name, 0o755)
environment = {**os.environ, **job["variables"], "PATH": "/tmp/bin:" + os.environ["PATH"], "HOME": os.getcwd() + "/home"}
os.makedirs("home", exist_ok=True)
with open("/tmp/output", "wb+") as output:
    shell = subprocess.Popen(
        ["bash", "-c", job["command"]], cwd="." + job["workdir"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        env={**environment, "PWD": job["workdir"]}, start_new_session=True,
    )
    try:
        status = shell.wait(job["seconds"])
    except subprocess.TimeoutExpired:
        status = None
        os.killpg(shell.pid, signal.SIGKILL)
    size = output.tell() if output.seek(0, 2) else 0
    output.seek(0)
    text = output.read(job["shown"] // 2)
    if size > job["shown"]:
        text += b"\\n...\\n"
        output.seek(size - job["shown"] // 2)
    text += output.read(job["shown"] // 2)
def read(name):
    try:
        with open("logs/verifier/" + name, "rb") as file:
            return file.read(65536).decode(errors="replace")
    except OSError:
        return None
reply = {"status": status, "output": text.decode(errors="replace"), "txt": read("reward.txt"), "json": read("reward.json")}
for name in job["fresh"]:
    os.path.isdir(name) and not os.path.islink(name) and shutil.rmtree(name)
with open(3, "wb", closefd=False) as file:
    file.write(json.dumps(reply).encode() + b"\\n")
    with tarfile.open(fileobj=file, mode="w|") as archive:
        archive.add(".")
"""
_PYTEST = '#!/bin/sh\nexec python3 -m pytest -p no:cacheprovider "$@"\n'
_UVX = """#!/usr/bin/env python3
import os, sys
given = sys.argv[sys.argv.index("pytest") + 1:] if "pytest" in sys.argv else sys.exit("uvx: only pytest is installed here")
if "--ctrf" in given:
    place = given.index("--ctrf")
    del given[place:place + 2]
os.execvp("pytest", ["pytest", *given])
"""
"""Runs the installed pytest where a test script asks `uvx` to download one."""


class Unsupported(ValueError):
    """What a task needs that the sandbox does not have, as one sentence."""


@dataclass(frozen=True, slots=True)
class HarborTask:
    image: Files
    tests: Files
    solution: Files
    workdir: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ran:
    """A command's exit status (None if cut short), its output, and the working copy after it."""

    status: int | None
    output: str
    state: bytes
    rewards: tuple[str | None, str | None] = (None, None)


def read_folder(files: Files) -> dict[str, Any]:
    """Read a task's files into `workdir`, `variables` and `image`, the files of its container. Raises Unsupported."""
    if "tests/test.sh" not in files:
        raise Unsupported("it has no tests/test.sh")
    if any(name.startswith(("environment/docker-compose", "environment/compose.")) for name in files):
        raise Unsupported("its environment is made by docker compose, which the sandbox does not have")
    context = below("environment", files)
    if "Dockerfile" not in context:
        raise Unsupported("it has no environment/Dockerfile")
    image: dict[str, bytes] = {}
    workdir, bases = "/", 0
    variables: dict[str, str] = {}
    for name, rest in _instructions(context["Dockerfile"].decode(errors="replace")):
        if name == "FROM":
            bases += 1
        elif name == "WORKDIR":
            workdir = str(PurePosixPath(workdir, rest.strip()))
        elif name == "ENV":
            pairs = [part.partition("=") for part in shlex.split(rest)] if "=" in rest.split()[0] else [rest.partition(" ")]
            variables |= {key: value for key, _, value in pairs}
        elif name in ("COPY", "ADD"):
            image |= _copied(rest, context, workdir)
        elif name not in _IGNORED:
            raise Unsupported(f"its Dockerfile runs `{name} {' '.join(rest.split()):.80}`, and the sandbox has only a base image and COPY")
    if bases != 1:
        raise Unsupported(f"its Dockerfile has {bases} stages, and the sandbox has only one")
    for path in (workdir, *image):
        top = PurePosixPath("/", path).parts[1:2]
        if not top or top[0] in _READ_ONLY or top[0] in _HIDDEN or ".." in PurePosixPath(path).parts:
            raise Unsupported(f"it works in /{top[0] if top else ''}, which is read-only or taken here; /app and the like are free")
    return {"workdir": workdir, "variables": variables, "image": image}


def read_task(root: Path, description: Mapping[str, Any]) -> HarborTask:
    """Read the task in a task's provenance: `snapshot` (an archive below `root`), `workdir`, `variables`. Raises RequestError."""
    workdir, variables = description.get("workdir"), description.get("variables")
    if not isinstance(workdir, str) or not re.match("/[^/]", workdir) or not isinstance(variables, Mapping):
        raise RequestError("the Harbor task has no workdir below /, or no variables, in its provenance.")
    files = named_snapshot(root, description)
    image, tests, solution = (below(part, files) for part in ("image", "tests", "solution"))
    return HarborTask(image, tests, solution, workdir, {str(name): str(value) for name, value in variables.items()})


def below(folder: str, files: Files) -> dict[str, bytes]:
    """Files of a folder by their names in it."""
    return {name.removeprefix(f"{folder}/"): content for name, content in files.items() if name.startswith(f"{folder}/")}


def run_command(task: HarborTask, state: bytes | None, command: str, config: SandboxConfig = LIMITS, added: Files | None = None) -> Ran:
    """Run a shell command on a working copy, or on a new one without a `state`; `added` are files that only it sees.

    Raises:
        RequestError: The machine grants no sandbox.
        SandboxFault: The sandbox failed.
    """
    given, more = pack(task.image) if state is None else state, pack(added or {})
    tops = {f"/{PurePosixPath('/', name).parts[1]}" for name in (task.workdir, *task.image)} | {f"/{name}" for name in _HIDDEN}
    job = {
        "command": command,
        "state": len(given),
        "added": len(more),
        "fresh": list(_HIDDEN),
        "folders": sorted({*tops, task.workdir, "/logs/verifier"}),
        "workdir": task.workdir,
        "variables": dict(task.variables),
        "seconds": config.wall_seconds * 0.8,
        "shown": config.output_bytes // 4,
        "programs": {"pytest": _PYTEST, "uvx": _UVX},
    }
    with tempfile.TemporaryFile() as channel:
        stdin = json.dumps(job).encode() + b"\n" + given + more
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        program = python_program(_RUNNER, stdin=stdin, environment=environment, channel=channel.fileno())
        result = Sandbox(config.model_copy(update={"folders": tuple(sorted(tops))})).run(program)
        channel.seek(0)
        head, _, packed = channel.read(2 * config.disk_mib * MIB).partition(b"\n")
    try:
        reply = json.loads(head)
        return Ran(reply["status"], str(reply["output"]), packed, (reply["txt"], reply["json"]))
    except (ValueError, KeyError, TypeError, RecursionError):  # cut short, or a program wrote there too
        return Ran(None, f"the command ended early ({result.ending}): {result.stderr_text[-500:]}", given)


def verify_copy(task: HarborTask, state: bytes | None, config: SandboxConfig = LIMITS) -> tuple[float | None, str]:
    """Let the task's tests judge a working copy. Return the reward (None: none can be read) and the output. Raises as `run_command`."""
    added = {f"tests/{name}": content for name, content in task.tests.items()}
    ran = run_command(task, state, "bash /tests/test.sh", config, added)
    return _reward(*ran.rewards), ran.output


def why_not_admitted(task: HarborTask, config: SandboxConfig = LIMITS) -> str | None:
    """Return why a task is not to be trained on: its solution gets no full reward, or nothing does. Raises as `run_command`."""
    if "solve.sh" not in task.solution:
        return "it has no solution/solve.sh"
    reward, _ = verify_copy(task, None, config)
    if reward is not None and reward >= 1:
        return "its tests pass without any change"
    added = {f"solution/{name}": content for name, content in task.solution.items()}
    solved = run_command(task, None, "bash /solution/solve.sh", config, added)
    reward, output = verify_copy(task, solved.state, config)
    if reward is not None and reward >= 1:
        return None
    why = ", then ".join(" ".join(text.split())[-200:] for text in (solved.output, output) if text.strip())
    return f"its own solution gets {'no reward' if reward is None else f'the reward {reward:g}'}: {why}"


def _reward(txt: str | None, in_json: str | None) -> float | None:
    """The reward in either file: a number, or the entry `reward` or the only entry of an object."""
    try:
        value: Any = json.loads(in_json) if in_json is not None else float(txt or "")
        if isinstance(value, dict):
            value = value["reward"] if "reward" in value else next(iter(value.values())) if len(value) == 1 else None
        return float(value) if math.isfinite(float(value)) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\[ \t]*\n", " ", lines).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name:
            yield name.upper(), rest.strip()


def _copied(rest: str, context: Files, workdir: str) -> dict[str, bytes]:
    """Files of one COPY by their names in the image, without the leading slash."""
    listed = re.sub(r"--(?!from)[\w-]+(=\S*)?\s+", "", rest)
    places = json.loads(listed) if listed.startswith("[") else shlex.split(listed)
    if len(places) < 2 or any(place.startswith("--") or "://" in place or "$" in place for place in places):
        raise Unsupported(f"its Dockerfile copies `{rest:.80}`, which is not among the task's files")
    *sources, target = places
    placed = str(PurePosixPath(workdir, target)).lstrip("/")
    into = target.endswith(("/", ".")) or len(sources) > 1
    found: dict[str, bytes] = {}
    for source in (str(PurePosixPath(source.lstrip("/"))) for source in sources):
        inside = context if source == "." else below(source, context)
        named = [name for name in context if fnmatch(name, source) and name.count("/") == source.count("/")]
        single = {PurePosixPath(name).name if into or "*" in source else "": context[name] for name in named}
        if not inside and not single:
            raise Unsupported(f"its Dockerfile copies {source:.80}, which is not in environment/")
        found |= {f"{placed}/{name}".rstrip("/"): content for name, content in {**inside, **single}.items()}
    return found
