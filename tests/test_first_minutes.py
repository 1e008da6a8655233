"""The timing of a stranger's first minutes: a fixed loop, parts that are README's, days that are kept beside each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.evidence_tables import first_minutes, took
from benchmarks.first_minutes import PARTS, calibrate, made_before, main, timed, with_day

IDENTITY = ("-c", "user.name=one", "-c", "user.email=one@example.org")
README = "".join((Path(__file__).parents[1] / name).read_text() for name in ("README.md", "docs/install.md"))


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


def test_a_part_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "setup", "echo $1 && sleep 0.3")
    seconds, status = timed("setup", tmp_path)
    assert 0.3 <= seconds < 30 and status == 0 and (tmp_path / "setup.log").read_text() == f"{tmp_path}/installed-setup\n"
    assert calibrate() > 0


def test_a_part_that_fails_takes_no_time_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    kept: list[dict[str, object]] = []
    monkeypatch.setattr(evidence, "kept", lambda name: {})
    monkeypatch.setattr(evidence, "keep", lambda name, found: kept.append(found))
    for part, typed in (("setup", "true"), ("demo", "exit 3"), ("test", "true")):
        monkeypatch.setitem(PARTS, part, typed)
    monkeypatch.setattr(sys, "argv", ["first_minutes", "--clone", str(tmp_path), "--parts", "setup", "demo", "test", "--keep"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "demo failed with status 3" in capsys.readouterr().out
    (day,) = kept[0]["days"]  # type: ignore[misc]
    assert set(day["seconds"]) == {"setup", "test"}


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
