"""A file of wordings: a table for each relation, and one sentence where it cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from warehouse.corpora.corpus import Wording
from warehouse.corpora.files import read_wordings
from warehouse.errors import RequestError

GOOD = """
["release year"]
questions = ["In which year was {s} released?", "When did {s} come out?"]
phrases = ["the release year of {s}"]
condition = "released in {o}"
word = "year"

[capital]
questions = ["Was ist die Hauptstadt von {s}, «été»?"]
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "wordings.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_table_is_the_wording_of_a_relation(tmp_path: Path) -> None:
    assert read_wordings(written(tmp_path, GOOD)) == {
        "release year": Wording(
            ("In which year was {s} released?", "When did {s} come out?"), ("the release year of {s}",), "released in {o}", "year"
        ),
        "capital": Wording(("Was ist die Hauptstadt von {s}, «été»?",)),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[a]\nquestions = ["In which year?"]', "'In which year?' of 'a'"),
        ('[a]\nquestions = ["{s}?", "{s.__class__}?"]', "'{s.__class__}?' of 'a'"),
        ('[a]\ncondition = "of {s}"', "'of {s}' of 'a'"),
        ("[a\n", "TOML"),
        (b"[a]\ncondition = '\xff {o}'", "UTF-8"),
        ('[a]\nquestion = ["{s}?"]', "a wording has"),
        ("a = 3", "a wording has"),
    ],
)
def test_a_file_of_wordings_with_a_fault_is_refused_by_name(tmp_path: Path, text: str | bytes, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RequestError) as refused:
        read_wordings(path)
    told = str(refused.value)
    assert reason in told and str(path) in told and "\n" not in told
