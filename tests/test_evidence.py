"""What the docs say is what the committed results hold, and so are the few figures of README."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks import evidence
from benchmarks.evidence import RESULTS, ROOT, filled, load, pages
from benchmarks.evidence_tables import TABLES
from eval.statistics import mcnemar, wilson
from flows.config import load_config
from flows.home import Home
from warehouse import Call, Lake, Outcome, StopReason, Trajectory, Turn
from warehouse.errors import RequestError

FILES = sorted(RESULTS.glob("*.json"))


def row(policy: str, hops: int | None, successes: int, valid: int = 40) -> dict[str, Any]:
    return {"policy": policy, "suite": "held_out", "hops": hops, "valid": valid, "successes": successes, "invalid": 0}


HOME = {
    "seed": 100,
    "evaluations": [
        row("t1-sft", None, 20),
        row("t1-sft", 1, 15, 20),
        row("t1-rl", None, 30),
        row("t1-rl", 1, 18, 20),
        row("t0-init", None, 0),
    ],
    "pairs": [{"suite": "held_out", "a": "t1-rl", "b": "t1-sft", "both": 18, "only_a": 12, "only_b": 2, "neither": 8}],
    "tries": [{"policy": "t1-rl", "stage": "eval", "suite": "held_out", "valid": 40, "in_vain": 8, "retried": 6, "again": 5}],
    "habits": [{"policy": "t1-rl", "suite": "held_out", "hops": 1, "valid": 20, "calls": 30, "failures": 2, "had_the_answer": 1}],
    "steps": [{"policy": "t1-rl", "step": step, "valid": 10, "successes": step} for step in range(1, 6)],
    "seconds": {"t1-sft": 300, "t1-rl": 1500},
}
RECORD = {
    "commands": ["flywheel run"],
    "commit": "abc",
    "measured": "2030-01-01",
    "machine": {"processor": "P", "cpus": 2},
    "homes": [HOME],
}


def test_every_page_says_what_the_data_says() -> None:
    stale = [page.name for page in pages() if filled(text := page.read_text()) != text]
    assert not stale, f"{stale} differ from benchmarks/results: `python -m benchmarks.evidence write`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_of_results_says_where_it_comes_from_and_is_shown(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record["commands"] and record["commit"] and record["machine"]["processor"] and record["versions"]["torch"]
    shown = "".join(page.read_text() for page in pages())
    assert any(f"<!-- evidence: {table} {path.stem}" in shown for table in TABLES), f"{path.name} is shown nowhere"


def test_a_table_is_made_of_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    monkeypatch.setattr(evidence, "ROOT", tmp_path.parent)
    (tmp_path / "one.json").write_text(json.dumps(RECORD))
    text = filled(
        "<!-- evidence: stages one -->\n\nold\n\n<!-- /evidence --> and <!-- evidence: gain one t1-rl t1-sft -->x<!-- /evidence -->."
    )
    low, high = wilson(30, 40)
    difference = mcnemar([False] * 12 + [True] * 2, [True] * 12 + [False] * 2)
    assert f"| 100 | `t1-rl` | 75.0 ({100 * low:.1f}–{100 * high:.1f}) | 90.0 |  |" in text
    assert f"| 100 | `t1-sft` | 50.0 (35.2–64.8) | 75.0 | +25.0 (p = {difference.p_value:.3f}) |" in text
    assert text.index("t0-init") < text.index("t1-sft") < text.index("`t1-rl` |")
    assert text.endswith(f"and <!-- evidence: gain one t1-rl t1-sft -->+25.0 (p = {difference.p_value:.3f})<!-- /evidence -->.")
    assert filled(text) == text
    assert "−25.0" in filled("<!-- evidence: gain one t1-sft t1-rl --><!-- /evidence -->")
    assert " 1     20   0.9000" in filled("<!-- evidence: answer one t1-rl -->\n\n<!-- /evidence -->")
    assert "| 100 | `t1-rl` | greedy | 8 | 75 | 12.5 |" in filled("<!-- evidence: tries one -->\n\n<!-- /evidence -->")
    assert "| 100 | `t1-rl` | 1 | 1.50 | 2 of 20 | 1 |" in filled("<!-- evidence: habits one -->\n\n<!-- /evidence -->")
    assert "| 100 | `t1-rl` | 1.50 |" in filled("<!-- evidence: calls one -->\n\n<!-- /evidence -->")
    assert "-->45<!--" in filled("<!-- evidence: sampled one t1-rl 4 5 --><!-- /evidence -->")
    assert "-->30<!--" in filled("<!-- evidence: minutes one -->?<!-- /evidence -->")


def test_a_home_that_holds_calls_twice_is_refused(tmp_path: Path) -> None:
    call = Call("search", "Hill", "ok", "Hill: a hill.")
    turn = Turn(0, (2,), (-0.5,), "a", "search", "Hill", (), call.observation, None, "ok", 0.1, 0, calls=(call,))
    now = datetime(2030, 1, 1, tzinfo=UTC)
    Home(tmp_path).claim(load_config("quickstart"))
    with Lake(tmp_path) as lake:
        lake.add([Trajectory("r", "q", "t1-rl", "rl", 3, (1,), (turn,), StopReason.ANSWERED, Outcome.SUCCESS, 1.0, 0, now, 1.0)])
    assert evidence.read_home(tmp_path)["evaluations"] == []
    with Lake(tmp_path) as lake:
        lake.write(lambda connection: connection.execute("INSERT INTO tool_calls FROM tool_calls"))
    with pytest.raises(RequestError, match="holds 1 calls of tools twice"):
        evidence.read_home(tmp_path)


def test_the_readme_is_short_and_its_figures_are_those_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 900 and "<!--" not in readme
    table = readme[readme.index("| policy | success, % |") :].partition("\n\n")[0]
    policies = ("t0-init", "t1-sft", "t1-sft-rft", "t1-rl")
    assert re.findall(r"\| (\d+\.\d) \|", table) == [TABLES["success"](load("smollm2"), policy) for policy in policies]
