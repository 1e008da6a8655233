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
