"""What the docs say is what the committed results hold, and so are the few figures of README."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.evidence import RESULTS, ROOT, filled, load, pages
from benchmarks.evidence_tables import TABLES
from benchmarks.first_minutes import PARTS
from flows.config import load_config
from flows.home import Home
from warehouse import Call, Lake, Outcome, StopReason, Trajectory, Turn
from warehouse.errors import RequestError

FILES = sorted(RESULTS.glob("*.json"))


def test_every_page_says_what_the_data_says() -> None:
    stale = [page.name for page in pages() if filled(text := page.read_text()) != text]
    assert not stale, f"{stale} differ from benchmarks/results: `python -m benchmarks.evidence write`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_of_results_says_where_it_comes_from_and_is_shown(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record["commands"] and record["commit"] and record["machine"]["processor"] and record["versions"]["torch"]
    shown = "".join(page.read_text() for page in pages())
    assert any(f"<!-- evidence: {table} {path.stem}" in shown for table in TABLES), f"{path.name} is shown nowhere"


def test_counts_that_do_not_follow_from_the_verdicts_are_told() -> None:
    verdicts = evidence.per_task({("a", "s"): {"k1": 1.0, "k2": 0.0, "k3": 1.0}, ("b", "s"): {"k1": 1.0, "k3": 0.0}})
    assert verdicts == {"s": {"a": "101", "b": "1-0"}}
    rows = [
        {"policy": name, "suite": "s", "hops": None, "successes": won, "valid": valid} for name, won, valid in (("a", 2, 3), ("b", 1, 2))
    ]
    pair = {"suite": "s", "a": "a", "b": "b", "both": 1, "only_a": 1, "only_b": 0, "neither": 0}
    home = {"verdicts": verdicts, "evaluations": rows, "pairs": [pair]}
    assert evidence.recomputed(home) == []
    assert evidence.recomputed(home | {"evaluations": [rows[0] | {"successes": 3}, rows[1]]}) == ["a on s"]
    assert evidence.recomputed(home | {"pairs": [pair | {"neither": 1}]}) == ["a against b on s"]
    with pytest.raises(RequestError, match="one attempt a task"):
        evidence.per_task({("a", "s"): {"k1": 0.5}})


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


def test_what_the_benchmark_of_the_first_minutes_types_is_what_the_readme_says() -> None:
    readme = "".join((ROOT / name).read_text() for name in ("README.md", "docs/install.md"))
    installing = ("uv build --wheel", "sh requirements/install.sh", "uv pip install '.[cpu]' --torch-backend cpu")
    for command in ("make setup", "make demo", "make test", *installing):
        assert command in readme and any(all(word in typed for word in command.split()) for typed in PARTS.values()), command
