"""CSV and TSV as people and programs write them: cells with line breaks, long cells, quotes that are never closed, columns of one name."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from warehouse import Document
from warehouse.corpora.files import read_documents
from warehouse.delimited import Delimiting, guess, read_delimited
from warehouse.errors import RequestError
from warehouse.importers.tables import table_rows

LONG = "word, word\n" * 20_000


def test_a_document_may_have_lines_that_look_like_rows(tmp_path: Path) -> None:
    (tmp_path / "pages.csv").write_bytes('\ufeffid,title,text\r\n1,A,"One.\r\n\r\nParis, Lyon, Nice\r\nend"\r\n2,B,Two.\r\n'.encode())
    corpus = read_documents(tmp_path / "pages.csv")
    assert corpus.documents == (Document("1", "A", "One.\r\n\r\nParis, Lyon, Nice\r\nend", "pages"), Document("2", "B", "Two.", "pages"))
    assert corpus.failures == ()


def test_a_long_cell_is_one_cell(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'question,answer\n"{LONG}",x\nshort?,y\n')
    assert [(row.value, row.fault) for row in table_rows(tmp_path / "rows.csv")] == [
        ({"question": LONG, "answer": "x"}, None),
        ({"question": "short?", "answer": "y"}, None),
    ]


@pytest.mark.parametrize("broken", ['a,"never closed', 'a,"never\nclosed', 'a,"in "quotes" of its own"'])
def test_a_broken_quote_spoils_no_other_row(broken: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'q,a\n1,x\n{broken}\n2,"y\nz"\n\n3,\n')
    header, rows = read_delimited(tmp_path / "rows.csv")
    found = list(rows)
    assert header == ["q", "a"]
    assert [row.cells for row in found if row.cells] == [{"q": "1", "a": "x"}, {"q": "2", "a": "y\nz"}, {"q": "3", "a": ""}]
    assert [row.line for row in found if row.fault] == list(range(3, 4 + broken.count("\n")))


def test_packed_and_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"question,answer\nWho?,Ann\n"))
    (tmp_path / "ROWS.TSV").write_text("question\tanswer\nWho?\tAnn\n")
    for name in ("rows.csv.gz", "ROWS.TSV"):
        assert [row.value for row in table_rows(tmp_path / name)] == [{"question": "Who?", "answer": "Ann"}]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer,answer,,\nWho?,Ann,Bob,,\n")
    with pytest.raises(RequestError, match="has two columns 'answer'"):
        list(table_rows(tmp_path / "rows.csv"))


HEADER = "question;answer\n"
ENCODED = (
    (HEADER + "Wer, bitte, regiert Zürich?;Ann\n", "utf-8", (";", "utf-8-sig")),
    (HEADER + "Wer regiert Zürich?;Ann\n", "utf-8-sig", (";", "utf-8-sig")),
    (HEADER + "Wer regiert Zürich?;Ann\n", "cp1252", (";", "cp1252")),
    (HEADER + "L’été à Genève?;“Ann”\n", "cp1252", (";", "cp1252")),
    (HEADER + "Кто?;Ann\n", "utf-16", (";", "utf-16")),
    (HEADER + "Who?;Ann\n", "utf-16-le", (";", "utf-16-le")),
    ("question\tanswer\nWho, then?\tAnn\n", "utf-8", ("\t", "utf-8-sig")),
    ("question|answer\nWho?|Ann\n", "utf-8", ("|", "utf-8-sig")),
    ("question,answer\nOne; two; three?,Ann\nFour; five?,Bob\n", "utf-8", (",", "utf-8-sig")),
    ('question,answer\n"Who; and\nwhere?",Ann\n', "utf-8", (",", "utf-8-sig")),
    ("question\nOne; two?\n", "utf-8", (",", "utf-8-sig")),
    ("question,answer\nКто правит?,Ann\n", "cp1251", (",", "utf-8-sig")),
)


@pytest.mark.parametrize(("text", "encoding", "form"), ENCODED)
def test_delimiter_and_encoding_are_guessed(tmp_path: Path, text: str, encoding: str, form: tuple[str, str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode(encoding))
    assert guess(path) == Delimiting(*form)
    header, rows = read_delimited(path, Delimiting("", encoding))
    assert header == text.partition("\n")[0].split(form[0]) and all(row.cells for row in rows)


def test_a_wrong_delimiter_or_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    for given, reason in ((Delimiting("", "nope"), "no encoding 'nope'"), (Delimiting(";;"), "not one character")):
        with pytest.raises(RequestError, match=reason):
            read_delimited(tmp_path / "rows.csv", given)
