"""Commands work for an account without a home directory, and hostile folders in its place are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

import pytest

from warehouse import account
from warehouse.account import ensure_home
from warehouse.errors import RequestError

PROGRAM = "from pathlib import Path; from warehouse import Lake; lake = Lake(Path('lake')); print(lake.tasks()); lake.close()"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(account.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


WITHOUT_FILES = ["/nonexistent/home", "/proc", "/dev/null", f"{__file__}/below", "relative", "~nosuch"]


@pytest.mark.parametrize("home", [None, "", *WITHOUT_FILES])
def test_a_home_that_does_not_work_is_replaced(home: str | None, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home or "")
    if home is None:
        monkeypatch.delenv("HOME")
    ensure_home()
    folder = Path(os.environ["HOME"])
    assert folder.parent == temporary and folder.stat().st_mode & 0o077 == 0
    ensure_home()
    assert Path(os.environ["HOME"]) == folder


@pytest.mark.parametrize("name", ["h\udcff", "back\\slash", "new\nline", "a b", "it's"])
def test_a_home_of_any_name_stays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / name))
    ensure_home()
    assert Path(os.environ["HOME"]) == tmp_path / name
    assert list((tmp_path / name).iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_folder_that_others_may_write_is_refused(kind: str, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    folder = temporary / f"flywheel-home-{os.getuid()}"
    if kind == "link":
        folder.symlink_to(temporary)
    elif kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.touch()
    with pytest.raises((RequestError, FileExistsError)):
        ensure_home()


@pytest.mark.slow
def test_a_lake_opens_without_a_home_and_under_any_name(tmp_path: Path) -> None:
    place = tmp_path / "it's a?b#c" / "100% [x] *"
    place.mkdir(parents=True)
    surroundings = {name: value for name, value in os.environ.items() if name not in ("HOME", "USER", "LOGNAME")}
    surroundings |= {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=place, env=surroundings, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc", pytest.param("unwritable", marks=pytest.mark.long), "without extensions"])
def test_a_lake_opens_without_a_usable_home(home: str, tmp_path: Path) -> None:
    place = tmp_path / home
    if home == "unwritable":
        if os.getuid() == 0:
            pytest.skip("root heeds no permissions")
        place.mkdir(mode=0o500)
    elif home == "without extensions":
        place.mkdir()
        (place / ".duckdb").touch()
    surroundings = {**os.environ, "HOME": str(place), "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=surroundings, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


AS_ANOTHER = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
AS_READER = [*AS_ANOTHER, "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
"""The user may read what root may, such as an interpreter in root's own home, and write only what is theirs."""
CAN_CHANGE = which("setpriv") is not None and subprocess.run([*AS_READER, "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not CAN_CHANGE, reason="this account cannot run a command as another user")
@pytest.mark.parametrize("home", [None, pytest.param("/root", marks=pytest.mark.long), pytest.param("own", marks=pytest.mark.long)])
def test_a_user_without_an_entry_has_a_lake(home: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 12345, 12345)
        surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": folder}
        surroundings |= {} if home is None else {"HOME": folder if home == "own" else home}
        command = [*AS_READER, sys.executable, "-c", PROGRAM]
        run = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert (Path(folder) / "flywheel-home-12345").is_dir() == (home != "own")
