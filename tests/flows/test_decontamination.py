"""The report over a lake: what is taken out is told, stays in earlier snapshots, and does not come back in the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config import load_config
from flows.data.decontamination import decontaminate
from warehouse import Example, Lake, Part, PartKind, Task

SMALL = Path(__file__).parent.parent / "end_to_end" / "small.toml"


def chain(city: str, name: str) -> tuple[tuple[str, str, str], ...]:
    return ((f"C@{city}", "country", f"V@{name}"), (f"V@{name}", "capital", "?"))


@pytest.mark.slow
def test_what_meets_an_evaluation_set_is_removed_and_told(tmp_path: Path) -> None:
    (tmp_path / "seen.jsonl").write_text('{"question": "How many apples has Janet left for the market after breakfast?"}\n')
    asked = "how many apples has Janet left for the market after breakfast"
    with Lake(tmp_path / "home") as lake:
        lake.add(
            [
                Task("e1", "search", "Oslo?", ("Oslo",), chain("Oslo", "x"), "held_out"),
                Task("t1", "search", "the capital of where Oslo lies?", ("Oslo",), chain("Oslo", "land"), "train"),
                Task("t2", "search", "Rome?", ("Rome",), chain("Rome", "x"), "train"),
                Example("x1", "fas_reason", (Part(PartKind.QUESTION, asked),), ()),
                Example("x2", "fas_reason", (Part(PartKind.QUESTION, "Rome?"),), ("t2",)),
            ]
        )
        before = lake.snapshot()
        config = load_config(str(SMALL))
        rows = {row["suite"]: row for row in decontaminate(lake, config, {"seen": tmp_path / "seen.jsonl"})}
        assert (rows["held_out"]["tasks"], rows["held_out"]["same_formula"], rows["held_out"]["removed"]) == (1, 1, 1)
        assert (rows["seen"]["tasks"], rows["seen"]["same_question"], rows["seen"]["removed"]) == (1, 1, 1)
        assert [task.key for task in lake.tasks()] == ["e1", "t2"]
        assert [example.id for example in lake.examples()] == ["x2"]
        assert len(lake.tasks(at=before)) == 3 and len(lake.examples(at=before)) == 2
        again = {row["suite"]: row["removed"] for row in decontaminate(lake, config, {"seen": tmp_path / "seen.jsonl"})}
        assert again == {"held_out": 1, "seen": 1}
