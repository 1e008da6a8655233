"""The chaos test itself: a real wheel that meets two faults of every kind, compared with an undisturbed one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import FaultKind
from tests.end_to_end.towns import write_corpus

pytestmark = [pytest.mark.end_to_end, pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "tests/end_to_end/newcomer.toml"
"""One that learns, so that there is something to lose."""
OWN_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
"""A shell that may mount a small filesystem, which no other process sees and which ends with the shell."""


def can_mount(folder: Path) -> bool:
    """Whether this machine lets an ordinary process have a filesystem of its own."""
    mounted = subprocess.run([*OWN_DISK, f"mount -t tmpfs -o size=1m tmpfs {shlex.quote(str(folder))}"], capture_output=True, check=False)
    return mounted.returncode == 0


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[FaultKind], dict[str, Any], dict[str, Any], str]:
    """The kinds of faults, what the chaos test found, what the same command found after it, and what that said."""
    place = tmp_path_factory.mktemp("chaos")
    folder, first, second, said = place / "chaos", place / "first.json", place / "second.json", place / "said.txt"
    folder.mkdir()
    disk = can_mount(folder)
    kinds = [kind for kind in FaultKind if disk or kind is not FaultKind.DISK]
    write_corpus(place / "corpus")
    asked = f"--faults {2 * len(kinds)} --kinds {','.join(kinds)} --every 20 --set corpus.kind=files --set corpus.path={place / 'corpus'}"
    command = f"{sys.executable} -m tests.chaos --profile {PROFILE} --dir {folder} {asked}"
    mount = f"mount -t tmpfs -o size=400m tmpfs {folder} && " if disk else ""
    script = f"{mount}{command} > {first}; {command} > {second} 2> {said}"
    done = subprocess.run([*(OWN_DISK if disk else ["sh", "-c"]), script], capture_output=True, text=True, timeout=1450, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return kinds, json.loads(first.read_text()), json.loads(second.read_text()), said.read_text()


def test_a_wheel_under_every_kind_of_fault_loses_nothing(
    disturbed: tuple[list[FaultKind], dict[str, Any], dict[str, Any], str],
) -> None:
    kinds, result, _, _ = disturbed
    assert Counter(fault["kind"] for fault in result["faults"]) == Counter(map(str, 2 * kinds))
    checks = [(home["home"], check) for home in result["homes"] for check in home["checks"]]
    assert [(home, check["name"], check["found"]) for home, check in checks if not check["held"]] == []
    assert result["held"] and len({check["name"] for _, check in checks}) == 8
    assert max(fault["committed"] for fault in result["faults"]) > 0, "a fault came when there was something to lose"


def test_a_chaos_test_that_is_done_only_tells_what_it_found(disturbed: tuple[list[FaultKind], dict[str, Any], dict[str, Any], str]) -> None:
    _, first, second, said = disturbed
    assert second == first
    assert "nothing to do" in said
