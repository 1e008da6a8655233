"""Folders that bear the id of their process are removed once it is gone, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rl.ray_runtime import make_folder, remove_leftovers


def test_the_folder_of_a_process_that_is_gone_is_removed_and_those_of_the_living_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = [tmp_path / f"flywheel-{what}-{gone.pid}-abc_123" for what in ("ray", "files")]
    strangers = [
        tmp_path / name for name in (f"flywheel-ray-{os.getpid()}-x1", f"flywheel-{gone.pid}", f"other-ray-{gone.pid}-x1", "notes")
    ]
    for folder in (*left, *strangers):
        folder.mkdir()
        (folder / "socket").touch()
    mine = make_folder("ray", tmp_path)
    assert mine.name.startswith(f"flywheel-ray-{os.getpid()}-")
    assert [folder.exists() for folder in left] == [False, False]
    assert all((folder / "socket").exists() for folder in strangers)
    remove_leftovers(tmp_path)
    assert mine.is_dir()
