"""Child processes import nothing from the current folder, and end with their parent even when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from ray.job_config import JobConfig

from flows.runtime import SAFE_PATH, carriers
from rl.ray_runtime import job_config
from tests.killing import token_of

HOSTILE = ("uvicorn", "ray", "json", "prefect", "eval", "flows", "rl", "warehouse", "sympy", "math_verify", "torch", "random", "pip")
BEGIN = "from flows.runtime import import_safely\nimport_safely()\n"
PREFECT = """
import subprocess
from prefect.server.api import server
begin = subprocess.Popen
def help_alone(args, env):
    return begin([*args[: args.index("uvicorn") + 1], "--help"], env=env, stdout=subprocess.DEVNULL)
server.subprocess.Popen = help_alone
assert server.SubprocessASGIServer(port=1)._run_uvicorn_command().wait() == 0
"""
MATHEMATICS = """
from eval.graders.mathematics import compare
assert compare("1/2", "0.5")
"""
CLUSTER = """
from flows import doctor as software
software._PATIENCE_SECONDS = 60
print(software._cluster_fault("127.0.0.1:1"))
"""
SPAWNED = """
import multiprocessing, os
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
MODULE = """
import subprocess, sys
assert subprocess.run([sys.executable, "-m", "uvicorn", "--version"], stdout=subprocess.DEVNULL).returncode == 0
assert subprocess.run([sys.executable, "-c", "import flows.home, warehouse"]).returncode == 0
"""
REAPER = """
from flows import runtime
runtime.start_reaper()
runtime._reapers[0].stdin.close()
runtime._reapers[0].wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which every module that is imported leaves a trace, and does harm."""
    place = tmp_path / "downloads"
    place.mkdir()
    for name in HOSTILE:
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'a').write({name!r} + ' ')\nraise SystemExit(66)\n")
    return place


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run `script`, which lies elsewhere as a console script does, in the folder."""
    path = folder.parent / "script.py"
    path.write_text(script)
    plain = {name: value for name, value in os.environ.items() if name != SAFE_PATH}
    return subprocess.run([sys.executable, str(path)], cwd=folder, env=plain, capture_output=True, text=True, timeout=550)


@pytest.mark.slow
@pytest.mark.parametrize(
    "child",
    [MODULE + REAPER + PREFECT, pytest.param(CLUSTER, marks=pytest.mark.long), MATHEMATICS + SPAWNED],
    ids=["module-reaper-server", "cluster", "mathematics-spawned"],
)
def test_child_processes_import_nothing_from_the_current_folder(folder: Path, child: str) -> None:
    done = run(folder, BEGIN + child)
    assert not (folder.parent / "trace").exists(), (folder.parent / "trace").read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_command_line_imports_nothing_that_lies_in_the_current_folder(folder: Path) -> None:
    done = run(folder, "import sys\nfrom flows.cli import main\nsys.argv[1:] = ['sql', 'SELECT 1', '--home', 'none']\nmain()\n")
    assert done.returncode == 2 and "has no lake" in done.stderr
    assert not (folder.parent / "trace").exists()


@pytest.mark.slow
def test_a_users_command_may_import_modules_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "notify.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text(f"open({str(tmp_path / 'told')!r}, 'w')\n")
    command = f"(sys.executable, {str(tmp_path / 'notify.py')!r})"
    done = run(tmp_path, f"{BEGIN}import sys\nfrom flows.operations.events import run_command\nrun_command({command}, {{}}, 30)\n")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told").exists()


def test_workers_search_the_current_folder_only_where_this_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    config = job_config()
    config._py_driver_sys_path.extend([str(tmp_path / "mine"), str(tmp_path)])  # as Ray does
    assert isinstance(config, JobConfig)
    assert list(config._get_proto_job_config().py_driver_sys_path) == [str(tmp_path / "mine")]


CODE = """
import subprocess, sys, tempfile
from flows.runtime import start_reaper
start_reaper()
made = "import tempfile, time; print(tempfile.mkdtemp(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", made], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""
WITH_RAY = """
import sys
from flows.runtime import start_reaper
start_reaper()
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_sigkill_of_a_parent_ends_its_children_and_removes_their_files() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        folder = next(Path(line) for line in said if not line.isdigit())
        child = int((said - {str(folder)}).pop())
        assert folder.parent.name.startswith(f"flywheel-files-{parent.pid}-")
        assert folder.is_dir()
        assert token_of(parent.pid) in (Path(f"/proc/{child}/environ").read_text())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while (Path(f"/proc/{child}").exists() or folder.parent.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
    assert not folder.parent.exists()
    assert stranger.poll() is None
    assert token_of(stranger.pid) is None
    stranger.kill()
    stranger.wait()


@pytest.mark.long
@pytest.mark.slow
def test_agents_of_ray_end_with_their_run() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert any("up" in line for line in parent.stdout), "it ended before Ray was up"
        deadline = time.monotonic() + 240
        while len(agents := titled("ray::", parent.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        token = token_of(parent.pid)
        assert token is not None
        assert len(agents) >= 2
        written_over = [agent.pid for agent in agents if b"\0\0" in Path(f"/proc/{agent.pid}/environ").read_bytes()]
        assert written_over == [], "the token may stand anywhere in the environment"
        assert {agent.pid for agent in agents} <= set(carriers(token))
        (raylet,) = {agent.ppid() for agent in agents}
        os.kill(raylet, signal.SIGKILL)
        os.kill(parent.pid, signal.SIGKILL)
    assert psutil.wait_procs(agents, timeout=120)[1] == []


def titled(title: str, parent: int) -> list[psutil.Process]:
    """The processes below `parent` whose title begins so."""
    return [child for child in psutil.Process(parent).children(recursive=True) if "".join(child.cmdline()[:1]).startswith(title)]
