"""What a newcomer reaches by the pages alone: a graph and a corpus of their own brought in, a tool of their own, and answers by the policy.

One small wheel serves all of it. Its command is put together from the lines that docs/extending.md and docs/tools.md give, with this test's
folders in the place of theirs, so a page that is wrong fails here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warehouse import Lake

pytestmark = [pytest.mark.end_to_end, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PROFILE = Path(__file__).parent / "newcomer.toml"
FLYWHEEL = Path(sys.executable).parent / "flywheel"
BEGINNINGS, ENDS = ("Oak", "Stone", "Mill", "Amber", "Frost", "Heron"), ("ford", "ton", "wick", "by", "mere")
TOWNS = tuple(f"{beginning}{end}" for beginning in BEGINNINGS for end in ENDS)
RIVERS = tuple(town[::-1].capitalize() for town in TOWNS)
MAYORS = tuple(f"{town[:3]}a {town[2:].capitalize()}son" for town in TOWNS)
TOOL = '''
from pathlib import Path

from rl.tools import ToolMiss, tool

PAGES = {page.stem.lower(): page.read_text().split("\\n", 1)[1].strip() for page in (Path(__file__).parent / "corpus").rglob("*.md")}


@tool(probe={"query": "Oakford"})
def search(query: str) -> str:
    """Open the page of a town.

    Args:
        query: what the town is called.
    """
    if query.strip().lower() not in PAGES:
        raise ToolMiss("there is no such page")
    return PAGES[query.strip().lower()]
'''


def documented(page: str, word: str) -> list[str]:
    """The arguments of the command in a page of docs/ that holds `word`."""
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("flywheel run") and word in line]
    assert len(lines) == 1, f"{page} shows one `flywheel run` with {word}"
    return shlex.split(lines[0])[1:]


def settings(arguments: list[str], places: dict[str, Path]) -> list[str]:
    """The `--set` of a documented command, its folders and files replaced by those that are there."""
    chosen = [arguments[place + 1].split("=", 1) for place, argument in enumerate(arguments) if argument == "--set"]
    return [word for key, value in chosen for word in ("--set", f"{key}={places.get(key, value)}")]


def write_corpus(folder: Path) -> None:
    """A page of Markdown for each town, in two folders, and the facts as CSV."""
    facts = ["subject,relation,object"]
    for number, (town, river, mayor) in enumerate(zip(TOWNS, RIVERS, MAYORS, strict=True)):
        place = folder / ("north" if number % 2 else "south")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{town}.md").write_text(f"# {town}\n\n{town}: river {river}, mayor {mayor}.\n")
        facts += [f"{town},river,{river}", f"{town},mayor,{mayor}"]
    (folder / "facts.csv").write_text("\n".join(facts) + "\n")


def flywheel(*arguments: str) -> str:
    done = subprocess.run([str(FLYWHEEL), *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def ask(home: Path, query: str) -> list[dict[str, Any]]:
    """The answer of `flywheel sql`."""
    found: list[dict[str, Any]] = json.loads(flywheel("sql", query, "--home", str(home), "--format", "json"))
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of one turn over one's own corpus, whose RL tasks are played with one's own tool and whose suite with the search."""
    folder = tmp_path_factory.mktemp("mine")
    write_corpus(folder / "corpus")
    (folder / "my_tools.py").write_text(TOOL)
    (folder / "my_tools.toml").write_text('[tools.search]\nfunction = "my_tools.py:search"\n')
    places = {"corpus.path": folder / "corpus", "rollout.environments.kinds.tools.options.file": folder / "my_tools.toml"}
    chosen = [*settings(documented("extending.md", "corpus.kind=files"), places), *settings(documented("tools.md", "options.file"), places)]
    flywheel("run", "--profile", str(PROFILE), "--home", str(folder / "home"), *chosen)
    return folder / "home"


def test_a_graph_and_a_corpus_of_ones_own_are_in_the_lake(home: Path) -> None:
    assert ask(home, "SELECT count(*) AS n FROM documents") == [{"n": len(TOWNS)}]
    assert ask(home, "SELECT count(*) AS n, count(*) FILTER (len(documents) = 1) AS stated FROM facts") == [{"n": 60, "stated": 60}]


def test_the_policy_answers_questions_over_them(home: Path) -> None:
    solved = ask(
        home,
        """SELECT DISTINCT k.question, t.answer, k.answers FROM trajectories t JOIN tasks k ON k.key = t.task_key
        WHERE t.policy = 't1-rl' AND t.outcome = 'success'""",
    )
    assert len(solved) >= 3
    assert all(row["answer"] in row["answers"] and row["answer"] in RIVERS + MAYORS + TOWNS for row in solved)


def test_a_tool_of_ones_own_is_called_and_what_it_says_is_read(home: Path) -> None:
    calls = ask(
        home,
        """SELECT c.outcome, c.observation, t.outcome AS came_to FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id
        JOIN tasks k ON k.key = t.task_key WHERE k.environment = 'tools' AND c.tool = 'search'""",
    )
    found = [call for call in calls if call["outcome"] == "ok"]
    assert found and all(re.fullmatch(r"\w+: river \w+, mayor \w+ \w+\.", call["observation"]) for call in found)
    assert any(call["came_to"] == "success" for call in found)


def test_a_trajectory_of_it_is_read_turn_by_turn(home: Path) -> None:
    with Lake(home, read_only=True) as lake:
        trajectory = lake.trajectories("policy = 't1-rl' AND outcome = 'success'")[0]
    shown = flywheel("show", trajectory.id, "--home", str(home))
    assert trajectory.turns[0].action in shown
    assert "[masked, " in shown
    assert f"accepted  {trajectory.answer}" in shown
