"""Reader of chat messages with tool calls in the form of OpenAI's API: JSON lines, or one list.

A row has `messages`, and may have `id`, `model`, `tools`, `answer` or `answers` (what is accepted), and `reward` or `score`. Full marks are
a success. A run whose last message is not the assistant's text was broken off.

Nothing is lost: the row stands in `provenance` as it was. Token ids and times are not in the format. Parts of a message that
are no text (images, audio) stand in turns as their type in brackets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warehouse.foreign.messages import question_of, read_messages, turns_of_messages
from warehouse.foreign.rows import Row, read_rows
from warehouse.foreign.runs import Collector, End, ForeignRuns, number_of, scores_of, task_of, texts_of, trajectory_of, verdict_of

FORMAT = "openai"


def read_openai(path: Path) -> ForeignRuns:
    """Every run of a file, or of the `.jsonl` and `.json` files in a folder. Raises RequestError where there is no such file."""
    return read_rows(FORMAT, path, (".jsonl", ".json"), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: Collector) -> None:
    messages = read_messages(row.get("messages"))
    task = task_of(FORMAT, question_of(messages), texts_of(row.get("answer", row.get("answers"))))
    policy = row["model"] if isinstance(row.get("model"), str) else place.path.stem
    reward = number_of(row.get("reward", row.get("score")), "reward")
    turns = turns_of_messages(messages)
    provenance = {"file": place.path.name, "line": place.line, "row": row}
    identifier = collector.identify(place.path, policy, row)
    run = trajectory_of(identifier, task, policy, turns, End(verdict_of(reward), reward), provenance)
    collector.records += [task, run, *scores_of(run, f"{FORMAT}_reward")]
