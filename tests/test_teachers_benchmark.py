"""The benchmark of teachers: what it reads out of a home that a teacher has written into, shows to be judged, and says in tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.teachers import CORPORA, PAGES, rows_of, shown, write_pages
from tests.flows.test_expansions import teacher_at
from tests.flows.test_seeds import FILMS, make, settings
from tests.synth.corpora.notes import asking_model, write_notes
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from warehouse import Lake
from warehouse.public_data.catalogue import data_root


@pytest.mark.slow
def test_a_teachers_questions_become_rows_tables_and_texts_to_be_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = write_notes(tmp_path / "notes", FILMS)
    with MisbehavingServer(answer=asking_model) as server, Lake(tmp_path / "home") as lake:
        make(tmp_path / "home", lake, [*settings(pages), *teacher_at(server)], ("t1-first",))
    (tmp_path / "ended.jsonl").write_text(json.dumps({"route": "questions", "status": 0}) + "\n")
    rows = list(rows_of(tmp_path, "films"))
    part = next(row for row in rows if row.get("part") == "seeds")
    told = next(row for row in rows if "completions" in row)
    assert part["figures"]["kept"] == 4 and rows[-1]["ended"] == [{"route": "questions", "status": 0}]
    assert 0 < told["completions"][0]["n"] <= part["figures"]["completed"]
    assert [row["n"] for row in told["dropped"] if (row["stage"], row["kind"]) == ("seeds", "second_answer")] == [2]
    texts = shown(tmp_path, "seeds", 50)
    assert len(texts) == 4 and all("Where was the director of Film" in text for text in texts)
    assert shown(tmp_path, "seeds", 2) == shown(tmp_path, "seeds", 2) != texts, "the same ones each time"

    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    (tmp_path / "one.json").write_text(json.dumps({"rows": rows, "judged": {"films/seeds": [3, 4]}}))
    text = evidence.filled("<!-- evidence: asked one -->\n\n<!-- /evidence --><!-- evidence: dropped one -->\n\n<!-- /evidence -->")
    assert "| films | seeds |" in text and "kept 4 of 27 | 3 of 4 |" in text and "| films | `seeds` |" in text


@pytest.mark.slow
@pytest.mark.skipif(not data_root().is_dir(), reason="there is no public data here: `flywheel data get films countries`")
@pytest.mark.parametrize("corpus", CORPORA)
def test_pages_are_real_documents(corpus: str, tmp_path: Path) -> None:
    pages = sorted(write_pages(tmp_path / "pages", corpus).iterdir())
    assert len(pages) == PAGES and all(page.read_text().startswith("# ") and len(page.read_text()) > 40 for page in pages)
