"""The timing of a stranger's first minutes: a fixed loop, parts that are README's, days that are kept beside each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.evidence_tables import first_minutes, took
from benchmarks.first_minutes import PARTS, calibrate, made_before, timed, with_day

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_what_is_typed_is_what_the_readme_says() -> None:
    for command in (
        "make setup",
        "make demo",
        "make test",
        "uv build --wheel",
        "sh requirements/install.sh",
        "uv pip install '.[cpu]' --torch-backend cpu",
    ):
        assert command in README
        assert any(all(word in typed for word in command.split()) for typed in PARTS.values()), command


def test_a_part_is_timed_and_one_that_fails_is_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "setup", "echo $1 && sleep 0.3")
    assert 0.3 <= timed("setup", tmp_path) < 30 and (tmp_path / "setup.log").read_text() == f"{tmp_path}/installed-setup\n"
    monkeypatch.setitem(PARTS, "setup", "exit 3")
    with pytest.raises(Exception, match="exit status 3"):
        timed("setup", tmp_path)
    assert calibrate() > 0


def test_what_is_made_already_is_not_timed(tmp_path: Path) -> None:
    assert made_before(list(PARTS), tmp_path) == []
    (tmp_path / ".venv").mkdir()
    assert made_before(list(PARTS), tmp_path) == [".venv"] and made_before(["demo"], tmp_path) == []


def test_days_stand_beside_each_other_and_parts_of_one_day_together() -> None:
    one = {"day": "2026-11-25", "commit": "a", "loop": [2.0, 2.5], "seconds": {"setup": 60.0}}
    again = {"day": "2026-11-25", "commit": "a", "loop": [2.2], "seconds": {"demo": 500.0}}
    earlier = {"day": "2026-11-24", "commit": "b", "loop": [1.5], "seconds": {"setup": 50.0}}
    days = with_day(with_day(with_day([], one), again), earlier)
    assert [day["day"] for day in days] == ["2026-11-24", "2026-11-25"] and days[1]["seconds"] == {"setup": 60.0, "demo": 500.0}
    text = first_minutes({"days": days})
    assert re.search(r"\| 2026-11-25 \| a \| 2.0–2.5 \| 60 \| 500 \|", text) and "| least |  |  | 50 | 500 |" in text
    assert took({"days": days}, "setup") == "50 s to 1 min 0 s" and took({"days": days}, "setup", "demo") == "9 min 20 s"
