"""Commands work for an account without a home directory, and hostile folders in its place are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warehouse import account
from warehouse.account import ensure_home
from warehouse.errors import RequestError

PROGRAM = "from pathlib import Path; from warehouse import Lake; lake = Lake(Path('lake')); print(lake.tasks()); lake.close()"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(account.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("home", [None, "", "/nonexistent/home", __file__])
def test_a_home_that_does_not_work_is_replaced(home: str | None, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home or "")
    if home is None:
        monkeypatch.delenv("HOME")
    ensure_home()
    folder = Path(os.environ["HOME"])
    assert folder.parent == temporary and folder.stat().st_mode & 0o077 == 0
    ensure_home()
    assert Path(os.environ["HOME"]) == folder


def test_a_home_that_works_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ensure_home()
    assert os.environ["HOME"] == str(tmp_path)


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


@pytest.mark.parametrize("folder", ["plain", "a?b#c", "100% [x] *", "it's", "a b"])
def test_a_lake_opens_without_a_home_and_under_any_name(folder: str, tmp_path: Path) -> None:
    place = tmp_path / folder
    place.mkdir()
    surroundings = {name: value for name, value in os.environ.items() if name not in ("HOME", "USER", "LOGNAME")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=place,
        env={**surroundings, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
