"""Files are read in a child process: what kills or hijacks it is one sentence, and every kind of text has its rows."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warehouse import foreign
from warehouse.errors import RequestError
from warehouse.foreign import MIB, Delimiting, open_table
from warehouse.importers.tables import table_rows


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[foreign._Child]:
    """The children that are started, none of them before the test."""
    made: list[foreign._Child] = []

    class Noted(foreign._Child):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(foreign, "_Child", Noted)
    foreign._pool.close()
    return made


def lines(path: Path, count: int, name: str = "a") -> Path:
    path.write_text("".join(json.dumps({name: number, "text": "word " * 20}) + "\n" for number in range(count)))
    return path


def test_a_child_is_kept_for_the_next_file_and_gets_no_secret(
    tmp_path: Path, children: list[foreign._Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    for number in range(3):
        assert len(list(table_rows(lines(tmp_path / f"{number}.jsonl", 10)))) == 10
    (child,) = children
    assert b"swordfish" not in Path(f"/proc/{child._process.pid}/environ").read_bytes()


def test_a_child_that_crashes_is_reported_and_the_next_file_is_read(tmp_path: Path, children: list[foreign._Child]) -> None:
    rows = table_rows(lines(tmp_path / "crash.jsonl", 20_000))
    next(rows)
    os.kill(children[0]._process.pid, signal.SIGSEGV)
    with pytest.raises(RequestError, match=r"crash.jsonl crashed \(SIGSEGV\)"):
        list(rows)
    rows = table_rows(tmp_path / "crash.jsonl")
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert len(list(table_rows(tmp_path / "crash.jsonl"))) == 20_000, "a reply that was not read to its end stays with its child"


@pytest.mark.slow
def test_a_child_without_memory_or_time_is_reported(
    tmp_path: Path, children: list[foreign._Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MEMORY_A_BYTE", 0)
    (tmp_path / "long.json").write_text('["' + "x" * 60_000_000 + '"]')
    monkeypatch.setattr(foreign, "CHILD_MEMORY", 64 * MIB)
    with pytest.raises(RequestError, match=r"long.json needs more than 64 MiB of memory"):
        list(table_rows(tmp_path / "long.json"))
    (tmp_path / "list.json").write_text("[" + "[0]," * 4_000_000 + "[0]]")
    monkeypatch.setattr(foreign, "CHILD_MEMORY", 2048 * MIB)
    monkeypatch.setattr(foreign, "CHILD_SECONDS", 1)
    monkeypatch.setattr(foreign, "SECONDS_A_MIB", 0)
    with pytest.raises(RequestError, match=r"list.json takes more than 1 seconds"):
        list(table_rows(tmp_path / "list.json"))


def test_threads_read_their_own_files(tmp_path: Path) -> None:
    paths = [lines(tmp_path / f"{number}.jsonl", 2_000, f"key{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        for number, rows in enumerate(threads.map(lambda path: list(table_rows(path)), paths)):
            assert [row.value[f"key{number}"] for row in rows] == list(range(2_000))


@pytest.mark.parametrize("broken", ['a,"never closed', 'a,"never\nclosed', 'a,"in "quotes" of its own"'])
def test_a_broken_quote_spoils_no_other_row(broken: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'q,a\n1,x\n{broken}\n2,"y\nz"\n\n3,\n')
    head, rows = open_table(tmp_path / "rows.csv")
    found = list(rows)
    assert head["columns"] == ["q", "a"]
    assert [row.value for row in found if row.value] == [{"q": "1", "a": "x"}, {"q": "2", "a": "y\nz"}, {"q": "3", "a": ""}]
    assert [row.line for row in found if row.fault] == list(range(3, 4 + broken.count("\n")))


HEADER = "question;answer\n"
ENCODED = (
    (HEADER + "Wer, bitte, regiert Zürich?;Ann\n", "utf-8", (";", "utf-8-sig")),
    (HEADER + "Wer regiert Zürich?;Ann\n", "cp1252", (";", "cp1252")),
    (HEADER + "Кто?;Ann\n", "utf-16", (";", "utf-16")),
    (HEADER + "Who?;Ann\n", "utf-16-le", (";", "utf-16-le")),
    ("question\tanswer\nWho, then?\tAnn\n", "utf-8", ("\t", "utf-8-sig")),
    ("question,answer\nOne; two; three?,Ann\nFour; five?,Bob\n", "utf-8", (",", "utf-8-sig")),
    ('question,answer\n"Who; and\nwhere?",Ann\n', "utf-8", (",", "utf-8-sig")),
    ("question\nOne; two?\n", "utf-8", (",", "utf-8-sig")),
    ("question,answer\nКто правит?,Ann\n", "cp1251", (",", "utf-8-sig")),
)


def test_delimiter_and_encoding_are_guessed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for text, encoding, form in ENCODED:
        path.write_bytes(text.encode(encoding))
        head = open_table(path)[0]
        assert (head["delimiter"], head["encoding"]) == form
        head, rows = open_table(path, Delimiting("", encoding))
        assert head["columns"] == text.partition("\n")[0].split(form[0]) and all(row.value for row in rows)
