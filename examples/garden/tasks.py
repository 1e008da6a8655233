"""Tasks in the garden with the changes that they ask for, and runs of somebody who does them: what a team has of its own.

python tasks.py      # tasks.jsonl, held_out.jsonl and runs.jsonl, here; the same ones each time

Each task is carried out while it is made, so that what it asks for can be done and is known: `reference` is what its calls changed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from garden import GARDEN, HELD_OUT

from rl.envs.tool_world.database import ToolDatabase

SIZE = 8
Call = tuple[str, dict[str, Any]]
Done = tuple[dict[str, Any], list[tuple[Call, str]]]


def main() -> None:
    """Write the three files; no two of their tasks have the same garden."""
    written("tasks.jsonl", [task for task, _ in first(140, 0)])
    written("held_out.jsonl", [task for task, _ in first(60, 1000, held_out=True)])
    written("runs.jsonl", [run(*done) for done in first(80, 2000)])


def first(count: int, seed: int, held_out: bool = False) -> Iterator[Done]:
    """So many tasks in the gardens from `seed` on, each about a plant that is `held_out` or one that is not."""
    return islice(filter(None, (carried_out(each, held_out) for each in itertools.count(seed))), count)


def carried_out(seed: int, held_out: bool) -> Done | None:
    """A task in the garden of `seed`, and its calls with what each brought; None where no such plant grows there."""
    garden, chance = ToolDatabase(GARDEN.definition(seed, SIZE)), Random(seed)
    grown = {row["plant"]: row["bed"] for row in garden.query("SELECT plant, bed FROM beds ORDER BY bed")}
    fitting = [plant for plant in grown if (plant in HELD_OUT) is held_out]
    if not fitting:
        return None
    plant, litres = chance.choice(fitting), chance.randint(1, 9)
    bed = grown[plant]
    question, act = chance.choice(
        (
            (f"Give {litres} litres to the {plant}.", ("water", {"bed": bed, "litres": litres})),
            (f"Harvest the {plant}.", ("harvest", {"bed": bed})),
        )
    )
    calls = [(call, json.dumps(garden.call(*call))) for call in (("find", {"plant": plant}), act)]
    world = {"domain": "garden", "seed": seed, "size": SIZE, "digest": garden.definition.digest}
    provenance = {"world": world, "reference": garden.changes()}
    return {"id": seed, "question": question, "provenance": provenance}, calls


def run(task: dict[str, Any], calls: list[tuple[Call, str]]) -> dict[str, Any]:
    """The task as done in a chat, in the form of the OpenAI API."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task["question"]}]
    for number, ((tool, arguments), result) in enumerate(calls):
        function = {"name": tool, "arguments": json.dumps(arguments)}
        calling = [{"id": f"call-{number}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calling})
        messages.append({"role": "tool", "tool_call_id": f"call-{number}", "content": result})
    messages.append({"role": "assistant", "content": "done"})
    tools = [tool.schema for tool in ToolDatabase(GARDEN.definition(0, SIZE)).tools.values()]
    return {"messages": messages, "tools": tools, "answer": "done", "reward": 1.0}


def written(name: str, rows: list[dict[str, Any]]) -> None:
    """Rows as JSON lines."""
    with Path(name).open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
