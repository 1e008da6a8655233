"""The traces of the package verifiers: both forms of its rows, calls as texts, thresholds, limits and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.warehouse.rows import written
from warehouse.importers.runs import ImportedRuns
from warehouse.importers.verifiers import read_verifiers
from warehouse.records import Outcome, StopReason

PROMPT = [{"role": "system", "content": "You search."}, {"role": "user", "content": "Who?"}]
CALL = json.dumps({"id": "c", "function": {"arguments": '{"q": "a"}', "name": "search"}, "type": "function", "index": 0})
SPOKEN = [
    {"content": "I look.", "role": "assistant", "tool_calls": [CALL, CALL.replace("search", "open")]},
    {"content": "one", "role": "tool", "tool_calls": None},
    {"content": "two", "role": "tool", "tool_calls": None},
    {"content": "Amber", "role": "assistant", "tool_calls": None},
]


def row(completion: Any = SPOKEN, **more: Any) -> dict[str, Any]:
    rest = {"example_id": 0, "prompt": PROMPT, "answer": "Amber", "info": {"k": 1}, "reward": 1.0, "metrics": {"f": 0.5}, "f": 0.5}
    return rest | {"completion": completion, "is_completed": True} | more


def read(tmp_path: Path, *rows: Any, metadata: str | None = '{"env_id": "e", "model": "org/m", "pass_threshold": 0.5}') -> ImportedRuns:
    written(tmp_path / "results.jsonl", *rows)
    if metadata is not None:
        (tmp_path / "metadata.json").write_text(metadata)
    return read_verifiers(tmp_path)


def test_results_without_a_call_id_belong_to_calls_in_order(tmp_path: Path) -> None:
    task, run, score = read(tmp_path, row()).records
    assert (task.question, task.answers, run.answer, run.policy) == ("Who?", ("Amber",), "Amber", "org/m")
    assert [(call.tool, call.observation) for turn in run.turns for call in turn.calls] == [
        ("search", "one"),
        ("open", "two"),
        ("answer", ""),
    ]
    assert (score.verifier, score.value, run.provenance["environment"], run.provenance["row"]) == ("verifiers_reward", 1.0, "e", row())


def test_a_completion_that_repeats_the_prompt_is_read_once(tmp_path: Path) -> None:
    made = read(tmp_path, row(), row([PROMPT[1] | {"tool_calls": None}, *SPOKEN]), row([*PROMPT, *SPOKEN]))
    assert [len(run.turns) for run in made.trajectories] == [2, 2, 2]


def test_the_threshold_of_the_metadata_decides_and_full_marks_without_it(tmp_path: Path) -> None:
    rows = [row(reward=value) for value in (0.4, 0.5, 1.0, 3.0, None)]
    half, full = [Outcome.FAILURE, *[Outcome.SUCCESS] * 2, None, None], [*[Outcome.FAILURE] * 2, Outcome.SUCCESS, None, None]
    assert [run.outcome for run in read(tmp_path, *rows).trajectories] == half
    for metadata in ("{", "[]", "{}"):
        assert [run.outcome for run in read(tmp_path, *rows, metadata=metadata).trajectories] == full


def test_limits_are_reasons_to_stop_and_errors_make_invalid(tmp_path: Path) -> None:
    error = {"error": "ModelError", "error_chain_repr": "r", "error_chain_str": "ModelError -> Timeout"}
    made = read(
        tmp_path,
        row(SPOKEN[:1], reward=0.0, stop_condition="max_turns_reached"),
        row(SPOKEN[:1], reward=0.0, is_truncated=True),
        row(SPOKEN[:3], reward=0.0),
        row(None, reward=0.0, error=error),
        row([], reward=0.0),
    )
    assert [(run.outcome, run.stop_reason, run.error) for run in made.trajectories] == [
        (Outcome.FAILURE, StopReason.MAX_TURNS, None),
        (Outcome.FAILURE, StopReason.MAX_CONTEXT_TOKENS, None),
        (Outcome.INVALID, StopReason.FAULT, "cancelled: the run ends before an answer"),
        (Outcome.INVALID, StopReason.FAULT, "broken: ModelError -> Timeout"),
        (Outcome.INVALID, StopReason.FAULT, "empty: the run has no action"),
    ]
