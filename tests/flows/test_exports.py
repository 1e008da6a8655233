"""Datasets out of a lake: what is in them, their cards, other people's readers, and the same bytes from the same snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import datasets
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from eval.graders.verifiers import GRADERS
from flows.cli import app
from flows.data.exports import ExportOptions, export_dataset
from warehouse import Document, Example, Failure, Lake, Outcome, Part, PartKind, RequestError, StopReason, Task, Trajectory

FORMULA = (("C@Paris", "country", "V@x"), ("V@x", "capital", "?"))
ASKED = "capital of country of Paris?"
PARAMETERS = '{"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}'
TOOLS = f'[{{"type": "function", "function": {{"name": "search", "description": "Searches.", "parameters": {PARAMETERS}}}}}]'


def task(key: str, split: str = "train", city: str = "Paris") -> Task:
    formula = ((f"C@{city}", "country", "V@x"), ("V@x", "capital", "?"))
    return Task(key, "search", f"capital of country of {city}?", ("Paris",), formula, split, 2, 1, 2, {"source": "kg_countries"})


def trajectory(key: str, outcome: Outcome) -> Trajectory:
    return Trajectory(key, "t1", "p", "rl", 3, (1,), (), StopReason.ANSWERED, outcome, None, 0, datetime(2026, 1, 1, tzinfo=UTC), 1.0)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "home")
    shown = (
        Part(PartKind.TOOLS, TOOLS),
        Part(PartKind.QUESTION, ASKED),
        Part(PartKind.CALL, "Paris", True, "search"),
        Part(PartKind.RESULT, "France"),
        Part(PartKind.THOUGHT, "country France", True),
        Part(PartKind.ANSWER, "Paris", True),
    )
    lake.add(
        [
            Document("d1", "Paris", "Paris country France.", "kg_countries"),
            task("t1"),
            task("t2", city="Lyon"),
            task("t3", "held_out", city="Oslo"),
            trajectory("r1", Outcome.SUCCESS),
            trajectory("r2", Outcome.FAILURE),
            trajectory("r3", Outcome.INVALID),
            Example("e1", "document", (Part(PartKind.DOCUMENT, "Paris country France.", True),), ("d1",)),
            Example("e2", "fas_reason", (Part(PartKind.TEXT, "Lyon lies in France, whose capital is Paris.", True),), ("t2", "d1")),
            Example("e3", "fas_reason", (Part(PartKind.TEXT, "Lyon lies in France, whose capital is Paris!", True),), ("t2", "d1"), 2),
            Example("e4", "trajectory", shown, ("t1",)),
            Failure("decontamination", "same_formula", "t9 meets t3", {"task": "t9", "suite": "held_out"}),
        ]
    )
    return lake


@pytest.mark.slow
def test_texts_for_pretraining(lake: Lake, tmp_path: Path) -> None:
    dataset = export_dataset(lake, "cpt", tmp_path / "cpt", ExportOptions())
    loaded = datasets.load_dataset(str(tmp_path / "cpt"), cache_dir=str(tmp_path / "cache"))["train"]
    assert [(row["id"], row["kind"]) for row in loaded] == [("e1", "document"), ("e2", "fas_reason"), ("e3", "fas_reason")]
    assert dataset.sources == {"kg_countries": 3}
    card = (tmp_path / "cpt" / "README.md").read_text()
    assert "ODbL" in card and "| train | 3 |" in card and f"--at {lake.snapshot()}" in card
    fewer = export_dataset(lake, "cpt", tmp_path / "fewer.jsonl", ExportOptions(near_duplicates=0.9))
    assert (fewer.rows, [failure.item for failure in fewer.failures]) == (2, [{"id": "e3", "of": "e2"}])
    assert "- 1 left out\n- 1: near duplicate" in (tmp_path / "fewer.jsonl.card.md").read_text()


@pytest.mark.slow
def test_prompts_with_verifier_and_difficulty(lake: Lake, tmp_path: Path) -> None:
    export_dataset(lake, "rl", tmp_path / "rl", ExportOptions("parquet"))
    rows = {row["key"]: row for row in parquet.read_table(tmp_path / "rl" / "train.parquet").to_pylist()}
    assert rows["t1"]["verifier"] == {"name": "qa_em", "version": GRADERS["qa_em"].version}
    assert (rows["t1"]["judged"], rows["t1"]["pass_rate"]) == (2, 0.5), "an invalid trajectory counts for nothing"
    assert (rows["t2"]["judged"], rows["t2"]["pass_rate"]) == (0, None), "unknown is not zero"
    assert rows["t1"]["formula"] == [list(triple) for triple in FORMULA] and rows["t1"]["branching"] == 1
    assert parquet.read_table(tmp_path / "rl" / "held_out.parquet").column("key").to_pylist() == ["t3"]
    assert "- 1 left out\n- 1: removed earlier for same formula with held_out" in (tmp_path / "rl" / "README.md").read_text()
    told = CliRunner().invoke(app, ["export", "rl", "--home", str(lake.place.home), "--to", str(tmp_path / "again")])
    assert "3 rows of snapshot" in told.output and ", 1 left out" in told.output


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", *(pytest.param(form, marks=pytest.mark.long) for form in ("hf", "parquet"))])
@pytest.mark.parametrize("kind", ["cpt", "sft", "rl", "webshaper"])
def test_a_snapshot_gives_the_same_bytes_again(lake: Lake, tmp_path: Path, kind: str, form: str) -> None:
    before = lake.snapshot()
    export_dataset(lake, kind, tmp_path / "first", ExportOptions(form))
    lake.add(
        [
            task("t0", city="Rome"),
            trajectory("r9", Outcome.SUCCESS),
            Example("e0", "document", (Part(PartKind.DOCUMENT, "new", True),), ("d1",)),
        ]
    )
    lake.add([Example("e6", "trajectory", (Part(PartKind.QUESTION, ASKED), Part(PartKind.ANSWER, "new", True)), ("t0",))])
    export_dataset(lake, kind, tmp_path / "later", ExportOptions(form))
    export_dataset(lake, kind, tmp_path / "again", ExportOptions(form, at=before))
    assert files(tmp_path / "again") == files(tmp_path / "first")
    assert files(tmp_path / "later") != files(tmp_path / "first")


def test_requests_that_cannot_be_met(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for path, wishes, told in (
        ("there", ExportOptions(), "exists already"),
        ("a.jsonl", ExportOptions("parquet"), "is a jsonl file and --format says parquet"),
        ("a", ExportOptions("xml"), "no format 'xml'"),
        ("a", ExportOptions(at=999), "no snapshot 999"),
    ):
        with pytest.raises(RequestError, match=told):
            export_dataset(lake, "cpt", tmp_path / path, wishes)
    with pytest.raises(RequestError, match="nothing for cpt"):
        export_dataset(lake, "cpt", tmp_path / "a", ExportOptions(turn=7))
    assert not (tmp_path / "a").exists() and not (tmp_path / "a.jsonl").exists()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
