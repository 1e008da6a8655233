"""Plain texts from rows, pages and saved data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warehouse.corpora.texts import read_texts
from warehouse.errors import RequestError

ROWS = [{"text": "A river rises here."}, {"text": ""}, {"body": "elsewhere"}, {"text": "It ends in the sea."}]


def test_rows_without_text_are_left_out_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "general.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)) + "\nnot JSON\n")
    texts, failures = read_texts(file)
    assert texts == ["A river rises here.", "It ends in the sea."]
    assert [failure.item["line"] for failure in failures] == [2, 3, 5]
    assert read_texts(file, "body")[0] == ["elsewhere"]


def test_pages_of_a_folder_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A river\n\nIt rises here.\n")
    (tmp_path / "b.txt").write_text(" ")
    texts, failures = read_texts(tmp_path)
    assert texts == ["It rises here."]
    assert [failure.kind for failure in failures] == ["empty_page"]


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
    with pytest.raises(RequestError, match="no column 'text', but body"):
        read_texts(tmp_path / "plain")
    with pytest.raises(RequestError, match="no split train, but test"):
        read_texts(tmp_path / "other", "body")


def test_nothing_at_the_path_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="There is nothing at"):
        read_texts(tmp_path / "nowhere.jsonl")
