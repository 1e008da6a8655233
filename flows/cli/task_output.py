"""What `flywheel show` prints of a task: what is asked, its formula and its expansions drawn, what is proven, how attempts went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.text import Text

from flows.screen import Screen
from synth.formulas.drawing import MOST_TRIPLES, formula_tree, tree_lines
from synth.formulas.triples import validate
from warehouse import Lake, Task

MOST_EARLIER = 20
"""Tasks that one was made from, one from the other, that are shown."""
_MADE_FROM = {"expanded_from": "expanded from", "reworded_from": "reworded from"}


def find_task(lake: Lake, key: str) -> Task | None:
    """The task of that key."""
    return next(iter(lake.read(Task, "key = ?", [key])), None)


def earlier_tasks(lake: Lake, task: Task) -> list[Task]:
    """The tasks that one was made from by expansion or rewording, the last first, as far as the lake has them."""
    found: list[Task] = []
    here: Task | None = task
    while here is not None and len(found) < MOST_EARLIER:
        named = next((here.provenance[name] for name in _MADE_FROM if isinstance(here.provenance.get(name), str)), None)
        here = None if named is None or named in {task.key, *(one.key for one in found)} else find_task(lake, named)
        found += [] if here is None else [here]
    return found


def plain_task(task: Task, lake: Lake) -> dict[str, Any]:
    """A task as JSON can hold it, with its formula as networkx's node-link data."""
    from networkx import node_link_data

    earlier = earlier_tasks(lake, task)
    tree = formula_tree(task.formula, earlier[0].formula if earlier else ())
    drawn = node_link_data(tree, edges="edges") if task.formula else None
    return {
        **asdict(task),
        "digest": task.digest,
        "graph": drawn,
        "made_from": [one.key for one in earlier],
        "attempts": _attempts(lake, task),
    }


def print_task(task: Task, lake: Lake) -> None:
    """Print a task, with what a person looks for first on top."""
    console, earlier = Screen(), earlier_tasks(lake, task)
    _say(console, task.key, "bold")
    asked = f"{task.split} · {task.environment} · {task.hops} hops · {task.constraints} constraints · {task.layers} layers"
    _say(console, asked, "dim")
    _say(console, f"question  {task.question}\naccepted  {' | '.join(task.answers)}")
    if path := task.provenance.get("path"):
        _say(console, f"path      {' → '.join(map(str, path))}")
    _draw(console, task, earlier)
    for name, value in task.proofs.items():
        _say(console, f"proof     {name}: {_brief(value)}")
    for place, one in enumerate(earlier):
        _say(console, f"── {_how(earlier[place - 1] if place else task)} {one.key}", "dim")
        _say(console, f"question  {one.question}")
        _draw(console, one, earlier[place + 1 :])
    for row in _attempts(lake, task):
        _say(console, f"attempts  {row['policy']}, {row['stage']}: {row['outcome']} {row['attempts']}", "cyan")


def _draw(console: Screen, task: Task, earlier: list[Task]) -> None:
    """The formula, with a `+` at what it has beyond the formula that it was made from."""
    if not task.formula:
        return
    if problems := validate(task.formula):
        _say(console, f"formula   {problems[0].detail}", "red")
    before = next((one.formula for one in earlier), ())
    _say(console, "\n".join(tree_lines(formula_tree(task.formula, before))), "green")
    if len(task.formula) > MOST_TRIPLES:
        _say(console, f"and {len(task.formula) - MOST_TRIPLES} triples more", "dim")


def _how(later: Task) -> str:
    return next(words for name, words in _MADE_FROM.items() if name in later.provenance)


def _brief(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str | dict):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _attempts(lake: Lake, task: Task) -> list[dict[str, Any]]:
    """How many attempts of each policy came to which outcome, by the latest verdicts."""
    return lake.query(
        "SELECT policy, stage, coalesce(outcome::VARCHAR, 'not judged') AS outcome, count(*) AS attempts FROM outcomes "
        "WHERE task_key = ? GROUP BY ALL ORDER BY ALL",
        [task.key],
    ).to_pylist()


def _say(console: Screen, text: str, style: str = "") -> None:
    """A line or more, in which nothing that a model or a document wrote is obeyed by the terminal."""
    console.print(Text(text, style=style))
