"""Reader of traces saved by the package `verifiers`: `results.jsonl` with `metadata.json` beside it.

A row has `prompt` and `completion` (messages, or texts of a completion model), `answer`, `info`, `reward`, and in later versions `error`,
`is_truncated`, `stop_condition` and metrics (`verifiers/utils/save_utils.py`). Tool calls are JSON texts. Results without a call id belong
to the latest message's calls in order, if the numbers match. A prompt repeated at the start of a completion is read once. A reward of 1 is
a success, or of at least `pass_threshold` if the metadata has one.

Nothing is lost: the row with its metrics is kept in `provenance`. Token ids are not in the saved format. The policy's name is the
metadata's `model`, else the file's stem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from warehouse.foreign import Row
from warehouse.importers.conversation import ChatMessage, question_of, turns_of_messages
from warehouse.importers.messages import plain_messages
from warehouse.importers.runs import (
    ImportedRuns,
    RunCollector,
    RunEnd,
    number_of,
    task_of,
    texts_of,
    verdict_of,
)
from warehouse.importers.schemas import schemas_of
from warehouse.importers.tables import read_rows
from warehouse.json_text import read_json
from warehouse.records import StopReason

FORMAT = "verifiers"
_STOPS = {"max_turns_reached": StopReason.MAX_TURNS, "prompt_too_long": StopReason.MAX_CONTEXT_TOKENS}


def read_verifiers(path: Path) -> ImportedRuns:
    """Read the runs of a file, or of the `.jsonl` and `.parquet` files in a folder. Raises RequestError if there is none."""
    return read_rows(FORMAT, path, (".jsonl", ".parquet"), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: RunCollector) -> None:
    metadata, schemas = _metadata(place.path), schemas_of(row, collector.filled)
    prompt, completion = (
        plain_messages(row.get(name), speaker, schemas) for name, speaker in (("prompt", "user"), ("completion", "assistant"))
    )
    task = task_of(FORMAT, question_of([*prompt, *completion]), texts_of(row.get("answer")))
    policy = metadata["model"] if isinstance(metadata.get("model"), str) else place.path.stem
    reward = number_of(row.get("reward"), "reward")
    full = metadata.get("pass_threshold")
    verdict = verdict_of(reward, full if isinstance(full, int | float) else 1.0)
    turns = turns_of_messages([*prompt, *_without_prompt(prompt, completion)])
    end = RunEnd(verdict, reward, _stop(row), _error(row))
    collector.add_run(place, task, policy, turns, end, f"{FORMAT}_reward", environment=metadata.get("env_id"))


def _metadata(path: Path) -> dict[str, Any]:
    try:
        value = read_json((path.parent / "metadata.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _without_prompt(prompt: list[ChatMessage], completion: list[ChatMessage]) -> list[ChatMessage]:
    without_system = [message for message in prompt if message.role != "system"]
    prefix = next((part for part in (prompt, without_system) if part and completion[: len(part)] == part), [])
    return completion[len(prefix) :]


def _stop(row: dict[str, Any]) -> StopReason | None:
    """Limit that ended a run; a truncated run was ended by its context."""
    stop = _STOPS.get(str(row.get("stop_condition")))
    return stop or (StopReason.MAX_CONTEXT_TOKENS if row.get("is_truncated") is True else None)


def _error(row: dict[str, Any]) -> str | None:
    error = row.get("error")
    reason = error.get("error_chain_str") or error.get("error") if isinstance(error, dict) else error
    return f"broken: {reason}" if error else None
