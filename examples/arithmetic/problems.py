"""Word problems with their answers, and runs of somebody who solves them with programs: what a team has of its own.

python problems.py      # problems.jsonl, held_out.jsonl and runs.jsonl, here; the same ones each time
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

Numbers = tuple[int, int, int]
KINDS: tuple[tuple[str, str, Callable[[Numbers], int]], ...] = (
    ("A baker bakes {} trays of {} rolls and sells {} of them. How many rolls are left?", "{} * {} - {}", lambda n: n[0] * n[1] - n[2]),
    ("{} buses bring {} guests each, and {} more come on foot. How many guests are there?", "{} * {} + {}", lambda n: n[0] * n[1] + n[2]),
    ("A field has {} rows of {} trees; each tree gives {} apples. How many apples is that?", "{} * {} * {}", lambda n: n[0] * n[1] * n[2]),
    ("A tank holds {} litres, {} flow in and {} flow out. How many litres are in it then?", "{} + {} - {}", lambda n: n[0] + n[1] - n[2]),
)


def main() -> None:
    """Write the three files."""
    random = Random(0)
    written("problems.jsonl", [problem(random)[0] for _ in range(160)])
    written("held_out.jsonl", [problem(random)[0] for _ in range(60)])
    written("runs.jsonl", [run(*problem(random)) for _ in range(64)])


def problem(random: Random) -> tuple[dict[str, Any], str]:
    """A problem, and the program that solves it."""
    numbers = (random.randint(60, 99), random.randint(12, 48), random.randint(13, 59))
    question, program, answer = random.choice(KINDS)
    return {"question": question.format(*numbers), "answers": [str(answer(numbers))]}, program.format(*numbers)


def run(problem: dict[str, Any], program: str) -> dict[str, Any]:
    """The problem as solved in a chat with the tool `python`, in the form of the OpenAI API."""
    (answer,) = problem["answers"]
    call = {"id": "call-1", "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": program})}}
    messages = [
        {"role": "user", "content": problem["question"]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": answer},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages, "answer": answer, "reward": 1.0}


def written(name: str, rows: list[dict[str, Any]]) -> None:
    """Rows as JSON lines."""
    with Path(name).open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
