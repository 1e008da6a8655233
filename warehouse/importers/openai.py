"""Reader of runs as rows of chat messages: `{"messages": […]}` in any dialect of `messages.py`.

A row has `messages` or `conversations`, as a list or its JSON text, and optionally `id`, `model`, `tools`, `answer` or `answers`
(accepted), and `reward` or `score`; 1 is a success. Files may be JSON Lines, one JSON list, Parquet, or any format of `tables.py`. The row
is kept unchanged in `provenance`. An action's text is a view: thought, text and calls in Hermes tags. There are no token ids and times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warehouse.foreign import Row
from warehouse.importers.conversation import question_of, turns_of_messages, unlearnt_turns
from warehouse.importers.messages import read_messages
from warehouse.importers.runs import ImportedRuns, MalformedRow, RunCollector, RunEnd, first_of, number_of, task_of, texts_of, verdict_of
from warehouse.importers.schemas import schemas_of
from warehouse.importers.tables import read_rows

FORMAT = "openai"
_MESSAGES = ("messages", "conversations", "conversation")


def read_openai(path: Path) -> ImportedRuns:
    """Read the runs of a file, or of all files of rows in a folder. Raises RequestError if there is none."""
    return read_rows(FORMAT, path, (".jsonl", ".json", ".parquet", ".gz"), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: RunCollector) -> None:
    schemas = schemas_of(row, collector.filled)
    said = first_of(row, *_MESSAGES)
    if said is None:
        raise MalformedRow(_why_no_messages(row))
    messages = read_messages(said, schemas)
    task = task_of(FORMAT, question_of(messages), texts_of(first_of(row, "answer", "answers")))
    policy = row["model"] if isinstance(row.get("model"), str) else place.path.stem
    reward = number_of(first_of(row, "reward", "score"), "reward")
    about: dict[str, Any] = {"tools": list(schemas.tools)} if schemas.tools and row.get("tools") != list(schemas.tools) else {}
    about |= {"unlearnt_turns": unlearnt} if (unlearnt := unlearnt_turns(messages)) else {}
    end = RunEnd(verdict_of(reward), reward)
    collector.add_run(place, task, policy, turns_of_messages(messages), end, f"{FORMAT}_reward", **about)


def _why_no_messages(row: dict[str, Any]) -> str:
    if "query" in row and "answers" in row and "tools" in row:
        return "the row has xLAM's form, a query and the calls that answer it: without results and an answer it is not a run to import"
    if "prompt" in row and "completion" in row:
        return "the row has a prompt and a completion: import it with `flywheel import verifiers`"
    return "the row has no list of messages"
