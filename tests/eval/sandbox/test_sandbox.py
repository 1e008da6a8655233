"""What a sandbox gives, where its limits are, and how it refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from eval.sandbox import sandbox
from eval.sandbox.kernel import REFUSED
from eval.sandbox.sandbox import Ending, Sandbox, SandboxConfig, SandboxFault, SandboxResult, isolation, python_program, require_isolation
from warehouse.errors import RequestError

needs_isolation = pytest.mark.skipif(not isolation().granted, reason=f"no sandbox here: {isolation().detail}")
SMALL = SandboxConfig(wall_seconds=120, memory_mib=128, disk_mib=4, libraries=False)
ENDLESS = SMALL.model_copy(update={"wall_seconds": 5_000})
"""Whatever ends a program that sleeps for an hour under these limits is not its own end, and no limit."""
SLEEP = "import time; time.sleep(3_600)"


def run(source: str, config: SandboxConfig = SMALL, **fields: Any) -> SandboxResult:
    return Sandbox(config).run(python_program(source, **fields))


_CONFINED_LAUNCHER = """
import os, sys
sys.path.append(sys.argv[1])
from eval.sandbox import kernel, launch
kernel.gain_no_privileges()
kernel.filter_calls(kernel.call_filter(os.uname().machine))
launch.main()
"""


@needs_isolation
def test_a_program_runs_and_its_output_comes_back() -> None:
    result = run("import sys; print(sys.stdin.read()); print('err', file=sys.stderr); sys.exit(3)", stdin=b"input")
    assert (result.ending, result.status, result.stdout, result.stderr) == (Ending.FINISHED, 3, b"input\n", b"err\n")
    assert not result.succeeded and 0 < result.seconds < SMALL.wall_seconds


@needs_isolation
def test_files_lie_in_the_folder_of_the_program_and_can_be_imported_and_changed() -> None:
    files = {"package/__init__.py": b"", "package/module.py": b"VALUE = 7", "data.bin": bytes(range(256))}
    source = "from package.module import VALUE; open('data.bin', 'ab').write(b'x'); print(VALUE, len(open('data.bin', 'rb').read()))"
    assert run(source, files=files).stdout == b"7 257\n"


@needs_isolation
def test_nothing_is_kept_between_runs() -> None:
    assert run("open('/tmp/kept', 'w').write('x'); open('kept', 'w').write('x')").succeeded
    assert run("import os; print(os.path.exists('/tmp/kept'), os.listdir('.'))").stdout == b"False []\n"


@needs_isolation
def test_names_that_leave_the_folder_are_refused() -> None:
    for name in ("../out", "/out", "a/../../out", "", ".", "a//b", "./a", "a/", "a\0b"):
        with pytest.raises(RequestError, match="file name"):
            run("pass", files={name: b""})


@needs_isolation
def test_variables_are_the_few_that_are_given() -> None:
    found = set(run("import os; print(*os.environ)", environment={"MINE": "1"}).stdout_text.split())
    given = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "MALLOC_ARENA_MAX"}
    assert found == given | {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MINE"}


@needs_isolation
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_a_readable_folder_below_a_writable_one_can_be_neither_changed_nor_moved(place: str) -> None:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        shown = Path(folder, "shown")
        shown.mkdir()
        (shown / "data").write_text("as it was")
        source = f"""
import os
open({place!r} + "/own", "w").write("x")
print(open({str(shown / "data")!r}).read(), os.path.getsize({place!r} + "/own"))
for attempt in (
    lambda: open({str(shown / "data")!r}, "w"), lambda: open({folder!r} + "/more", "w"), lambda: os.unlink({str(shown / "data")!r}),
    lambda: os.rename({str(shown)!r}, {folder!r} + "/moved"), lambda: os.rename({folder!r}, {place!r} + "/moved"),
    lambda: os.rename("/space" + {folder!r}.removeprefix("/dev"), "/space/home/moved"),
):
    try:
        attempt()
        print("it could")
    except OSError:
        pass
"""
        result = run(source, SMALL.model_copy(update={"readable": (str(shown),)}))
        assert (result.stdout, result.stderr) == (b"as it was 1\n", b"")
        assert (shown / "data").read_text() == "as it was" and not Path(place, "own").exists()


@needs_isolation
def test_standard_tools_of_python_work() -> None:
    source = """
import asyncio, multiprocessing, tempfile, threading, concurrent.futures as futures
async def one(): return 1
print(asyncio.run(one()))
with tempfile.TemporaryFile() as file: file.write(b'x')
with futures.ThreadPoolExecutor(2) as pool: print(sum(pool.map(int, '12')))
with multiprocessing.Pool(2) as pool: print(sum(pool.map(abs, [-1, -2])))
exit()
"""
    assert run(source).stdout == b"1\n3\n3\n"


@needs_isolation
def test_a_program_that_writes_too_much_is_ended_before_anybody_asks_for_its_result() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Sandbox(SMALL).start(python_program("while True: print('x' * 100)", channel=theirs.fileno())) as running:
        theirs.close()
        ours.settimeout(60)
        assert ours.recv(1) == b""
        assert running.result().ending is Ending.OUTPUT_LIMIT


@needs_isolation
def test_a_program_that_is_left_is_killed() -> None:
    marker = f"left-{os.getpid()}"
    with Sandbox(ENDLESS).start(python_program(SLEEP, environment={"MARKER": marker})):
        _wait_until(lambda: _processes_with(marker))
    _wait_until(lambda: not _processes_with(marker))


@needs_isolation
def test_a_launcher_that_is_killed_takes_everything_with_it() -> None:
    marker = f"marker-{os.getpid()}"
    program = python_program(SLEEP, environment={"MARKER": marker})
    with Sandbox(ENDLESS).start(program) as running:
        _wait_until(lambda: _processes_with(marker))
        running._launcher.send_signal(signal.SIGKILL)
        with pytest.raises(SandboxFault, match="without a reply"):
            running.result()
        _wait_until(lambda: not _processes_with(marker))


def _wait_until(true: Any) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _processes_with(marker: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


@needs_isolation
@pytest.mark.slow
async def test_many_run_at_once_and_a_cancelled_one_is_killed() -> None:
    one = Sandbox(SMALL)
    results = await asyncio.gather(*(one.run_async(python_program(f"print({n})")) for n in range(8)))
    assert [result.stdout for result in results] == [f"{n}\n".encode() for n in range(8)]
    marker = f"cancelled-{os.getpid()}"
    program = python_program(SLEEP, environment={"MARKER": marker})
    running = asyncio.ensure_future(Sandbox(ENDLESS).run_async(program))
    while not _processes_with(marker):
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    _wait_until(lambda: not _processes_with(marker))


def test_a_machine_without_namespaces_is_refused_and_never_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_LAUNCHER", (sandbox.INTERPRETER, "-I", "-S", "-c", _CONFINED_LAUNCHER, sandbox._ROOT))
    with pytest.raises(RequestError, match=r"cannot run the sandbox .*Operation not permitted"):
        run("print('ran')")
    sandbox._isolation_once.cache_clear()
    assert not isolation().granted
    assert isolation().advice
    with pytest.raises(RequestError, match="the environment"):
        require_isolation(SMALL, "the environment")
    require_isolation(SMALL.model_copy(update={"isolation": "none"}), "the environment")
    sandbox._isolation_once.cache_clear()


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_parser -r"),
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces"),
    ],
)
def test_what_refuses_a_sandbox_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, told: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    place = tmp_path / setting
    place.parent.mkdir()
    place.write_text(f"{value}\n")
    assert told in sandbox.advice(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "needs Linux 5.12" in sandbox.advice(tmp_path), "none of them binds root"


@pytest.mark.long
def test_a_summary_without_a_sandbox_says_that_it_was_not_tried() -> None:
    """A whole run of pytest under a filter of calls as containers have it."""
    confined = _CONFINED_LAUNCHER.replace("launch.main()", "import pytest\nsys.exit(pytest.main(sys.argv[2:]))")
    command = [
        sys.executable,
        "-c",
        confined,
        sandbox._ROOT,
        "-p",
        "no:cacheprovider",
        "-q",
        str(Path(__file__).with_name("test_escapes.py")),
    ]
    told = subprocess.run(command, capture_output=True, text=True, cwd=sandbox._ROOT, timeout=300).stdout
    assert "the sandbox was not tried" in told and "`flywheel doctor` says what to do about it" in told, told


@needs_isolation
def test_the_program_sees_the_mounts_that_are_its_own_and_no_others() -> None:
    source = "print(*(line.split()[4] for line in open('/proc/self/mountinfo')))"
    one = Sandbox(SMALL)
    view = one._view
    own = {"/", "/space", "/proc", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"}
    seen = one.run(python_program(source)).stdout_text.split()
    assert own <= set(seen)
    shown = [*view["readable"], *view["hidden"]]
    for folder, name in (("/tmp", "tmp"), ("/dev/shm", "shm")):
        if there := [PurePosixPath(path).relative_to(folder) for path in shown if path.startswith(f"{folder}/")]:
            own |= {folder, *(f"{each}/{path.parts[0]}" for path in there for each in (folder, f"/space/{name}"))}
            shown += [f"/space/{name}/{path}" for path in there]
    assert all(any(place == path or place.startswith(f"{path}/") for path in shown) for place in {*seen} - own)


def test_a_launcher_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_LAUNCHER", (sys.executable, "-c", "raise OSError('no more')"))
    with pytest.raises(SandboxFault, match="no more"):
        run("pass")


def test_the_numbers_of_calls_are_those_of_the_kernel() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.is_file():
        pytest.skip("the kernel's headers are not installed")
    numbers = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    assert {name: number for name, (number, _) in REFUSED.items()} == {name: int(numbers[f"__NR_{name}"]) for name in REFUSED}
