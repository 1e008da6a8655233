"""Facts, documents and texts from files: the good rows and pages are read, the broken ones are reported with line and reason."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from warehouse import Document, Fact, RequestError
from warehouse.corpora.files import read_documents, read_facts, read_pages, read_texts

EXPECTED = (Fact("Ann", "employer", "Blue, River", ("d1", "d2"), "graph"), Fact("Bob", "employer", "Red", (), "graph"))


def test_csv_with_broken_rows(tmp_path: Path) -> None:
    path = tmp_path / "graph.csv"
    good = [b"Subject,relation,object,documents", b'Ann,employer,"Blue, River",d1|d2', b""]
    broken = [b"only,three,cells", b",employer,Red,", b'Eve,employer,"unclosed,d3', b"\xff\xfe,employer,Red,"]
    lines = [*good, *broken, *[b"Bob,employer,Red,"] * 2]
    path.write_bytes(b"\r\n".join(lines))
    corpus = read_facts(path)
    assert corpus.facts == EXPECTED
    reasons = [failure.reason for failure in corpus.failures]
    assert [reason.split(":")[0] for reason in reasons] == [f"graph.csv, line {line}" for line in (4, 5, 6, 7)]
    assert "3 cells" in reasons[0] and "subject is empty" in reasons[1] and "UTF-8" in reasons[3]
    assert {failure.kind for failure in corpus.failures} == {"broken_row"}


def test_tsv_jsonl_and_parquet_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "graph.tsv").write_text("subject\trelation\tobject\tdocuments\nAnn\temployer\tBlue, River\td1|d2\nBob\temployer\tRed\t\n")
    rows = [
        {"subject": "Ann", "relation": "employer", "object": "Blue, River", "documents": ["d1", "d2"]},
        {"subject": "Bob", "relation": "employer", "object": "Red", "documents": None},
    ]
    (tmp_path / "graph.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "graph.parquet")
    for suffix in ("tsv", "jsonl", "parquet"):
        corpus = read_facts(tmp_path / f"graph.{suffix}")
        assert (corpus.facts, corpus.failures) == (EXPECTED, ())


@pytest.mark.parametrize(("content", "message"), [("subject,object\na,b\n", "no column relation"), ("", "no column")])
def test_a_table_without_the_columns_of_facts_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "graph.csv").write_text(content)
    with pytest.raises(RequestError, match=message):
        read_facts(tmp_path / "graph.csv")
    with pytest.raises(RequestError, match=r"none\.csv"):
        read_facts(tmp_path / "none.csv")


@pytest.mark.slow
def test_a_data_set_that_hugging_face_saved_is_read_by_its_column(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"body": ["one", None, " ", "two"]})
    rows.save_to_disk(tmp_path / "plain")
    DatasetDict({"train": rows}).save_to_disk(tmp_path / "splits")
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "other")
    for name in ("plain", "splits"):
        texts, failures = read_texts(tmp_path / name, "body")
        assert texts == ["one", "two"] and [failure.item["line"] for failure in failures] == [1, 2]
    with pytest.raises(RequestError, match=r"no column 'text'.*body"):
        read_texts(tmp_path / "plain")
    with pytest.raises(RequestError, match=r"no split train.*test"):
        read_texts(tmp_path / "other", "body")


def test_half_of_a_surrogate_pair_is_a_fault_of_its_row(tmp_path: Path) -> None:
    bad = [{"id": "\ud800", "title": "A", "text": "x"}, {"id": "1", "title": "A", "text": "x\udfff"}, {"id": ["\ud800"]}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, [*bad, {"id": "2", "title": "\U0001f600", "text": "y"}])))
    corpus = read_documents(tmp_path / "texts.jsonl")
    assert corpus.documents == (Document("2", "\U0001f600", "y", "texts"),)
    assert [failure.item["line"] for failure in corpus.failures] == [1, 2, 3]
    json.dumps([failure.item for failure in corpus.failures], ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("page", "title", "text"),
    [
        ("Intro.\n\n```python\n# a comment\n```\n\n# Title\n\nText.", "Title", "Intro.\n\n```python\n# a comment\n```\n\n\n\nText."),
        ("Text.\n```\n# never closed", "page", "Text.\n```\n# never closed"),
        ("## Title\n\n# Title\n\nText of ``` # none", "Title", "## Title\n\n\n\nText of ``` # none"),
    ],
)
def test_a_line_of_code_is_not_a_heading(page: str, title: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(page)
    (document,) = read_pages(tmp_path).documents
    assert (document.title, document.text) == (title, text)


@pytest.mark.parametrize(
    ("matter", "title"),
    [
        ("title: The Old Mill\ndate: 2020-01-01", "The Old Mill"),
        ("title: >-\n  The Old\n  Mill", "The Old Mill"),
        ("title: [a", "old mill"),
        ('title: "a\\ud800\\0"', "old mill"),
        ("title: &a [x]\nb: " + "[" * 1000, "old mill"),
        ("draft: true", "old mill"),
    ],
)
def test_a_page_without_a_heading_has_the_title_of_its_front_matter(matter: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "old-mill.md").write_text(f"---\n{matter}\n---\nIt stands by the river.\n")
    (tmp_path / "other.md").write_text(f"---\n{matter}\n---\n# Own heading\n\nText.")
    one, other = read_pages(tmp_path).documents
    assert (one.title, one.text, other.title, other.text) == (title, "It stands by the river.", "Own heading", "Text.")


def test_files_that_are_not_read_as_pages_are_reported(tmp_path: Path) -> None:
    folder, other = tmp_path / "notes", tmp_path / "other"
    for place in (folder / "sub", other):
        place.mkdir(parents=True)
    (folder / "page.md").write_text("# Page\n\nText.")
    (folder / "sub" / "page.HTML").write_text("<p>Text.</p>")
    (folder / "picture.png").write_bytes(b"")
    (other / "more.md").write_text("# More\n\nText.")
    (folder / "linked").symlink_to(other)
    corpus = read_pages(folder)
    assert [document.id for document in corpus.documents] == ["page.md"]
    reported = [(failure.kind, failure.item["file"]) for failure in corpus.failures]
    assert reported == [("outside", "linked"), ("other_format", "sub/page.HTML")]
