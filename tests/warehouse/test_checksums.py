"""A data file that changed on disk is noticed: digests that writers keep, files of a writer that was killed, files that are gone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from warehouse import Document, Lake, Task
from warehouse.checksums import FileState, check_lake
from warehouse.errors import RequestError
from warehouse.storage import Place, Storage

pytestmark = pytest.mark.slow


def write(home: Path, *keys: str) -> None:
    """A commit for each key."""
    with Lake(home) as lake:
        for key in keys:
            lake.add([Task(key, "search", "Who?", ("Ann",))])


def states(home: Path) -> Counter[FileState]:
    return Counter(file.state for file in check_lake(Place.of(home))[0])


def files(home: Path) -> list[Path]:
    return sorted(home.rglob("*.parquet"))


def damage(file: Path) -> None:
    """One other bit, and the size as it was."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_one_bit_is_noticed_and_so_is_a_file_that_is_gone(tmp_path: Path) -> None:
    write(tmp_path, "a", "b", "c")
    first, second, *_ = files(tmp_path)
    damage(first)
    second.unlink()
    found = states(tmp_path)
    assert (found[FileState.changed], found[FileState.missing]) == (1, 1)
    done = CliRunner().invoke(app, ["lake", "check", "--home", str(tmp_path)])
    assert done.exit_code == 1 and str(first.relative_to(tmp_path / "lake" / "data")) in done.stdout


def test_a_commit_has_its_digests_while_its_writer_goes_on(tmp_path: Path) -> None:
    with Lake(tmp_path) as lake:
        for number in range(2):
            lake.add([Task(f"k{number}", "search", "Who?", ("Ann",))])
            lake.add([Document(f"d{number}", "Ann", "Ann is here.", "s")])
            assert set(states(tmp_path)) == {FileState.same}
        lake.replace([Task("k0", "search", "Who else?", ("Ann",))])
        assert set(states(tmp_path)) == {FileState.same}, "of what was replaced too"
        damage(files(tmp_path)[0])
        assert states(tmp_path)[FileState.changed] == 1


def test_files_of_a_writer_that_was_killed_have_their_digests_from_the_next(tmp_path: Path) -> None:
    write(tmp_path, "a")
    digests = tmp_path / "lake" / "digests.jsonl"
    digests.write_text(digests.read_text()[:-20])  # torn, and without an end
    assert states(tmp_path)[FileState.unrecorded] == 1
    write(tmp_path, "b")
    assert set(states(tmp_path)) == {FileState.same}


def test_digests_can_be_kept_by_command_and_never_hide_a_change(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    digests = tmp_path / "lake" / "digests.jsonl"
    digests.unlink()
    with Lake(tmp_path) as lake:
        lake.tasks()
    assert not digests.exists(), "a lake that was only read keeps nothing"
    assert set(states(tmp_path)) == {FileState.unrecorded}
    assert CliRunner().invoke(app, ["lake", "check", "--record", "--home", str(tmp_path)]).exit_code == 0
    damage(files(tmp_path)[0])
    done = CliRunner().invoke(app, ["lake", "check", "--record", "--json", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert Counter(file["state"] for file in json.loads(done.stdout))["changed"] == 1


def test_data_elsewhere_is_its_stores(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="s3://bucket/lake"):
        check_lake(Place(tmp_path, Storage(data="s3://bucket/lake")))
