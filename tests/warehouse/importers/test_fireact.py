"""FireAct's runs: both layouts, several actions in one message, its own figures, and rows that are set aside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eval.graders.answers import exact_match, normalize
from tests.clock import processor_seconds
from tests.real_data import DATA, needs
from warehouse.importers.fireact import read_fireact
from warehouse.importers.runs import ImportedRuns
from warehouse.records import NOT_RUN, Outcome, Score, Trajectory

RUNS = DATA / "trajectories" / "fireact"

SEARCH = "Thought: look.\nAction: search[amber]"
FINISH = "Thought: done.\nAction: finish[Amber Stone]"
END = "Observation: Episode finished, reward = True"


def row(*texts: str, **changed: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    traj = [{"role": roles[number % 2], "content": text} for number, text in enumerate(("Who? ", *texts))]
    return {"reward": True, "em": True, "f1": 1.0, "gt": "amber stone", "pred": "amber stone", "prompt": [], "traj": traj} | changed


def read(tmp_path: Path, rows: dict[str, Any]) -> ImportedRuns:
    path = tmp_path / "model_a.json"
    path.write_text(json.dumps(rows, indent=2))
    return read_fireact(path)


def only(tmp_path: Path, one: dict[str, Any]) -> Trajectory:
    (run,) = read(tmp_path, {"7": one}).trajectories
    return run


def calls(run: Trajectory) -> list[tuple[str | None, str | None, str, str | None]]:
    return [(turn.tool, turn.arguments, turn.observation, turn.tool_outcome) for turn in run.turns]


def test_the_line_of_a_row_is_found_for_a_key_of_any_script(tmp_path: Path) -> None:
    path = tmp_path / "model_a.json"
    path.write_text("{\n" + ",\n".join(f'"ключ{number}": 3' for number in range(20_000)) + "\n}")
    began = processor_seconds()
    found = read_fireact(path)
    assert [failure.item["line"] for failure in found.failures[:3]] == [2, 3, 4]
    assert len(found.failures) == 20_000 and processor_seconds() - began < 10


def test_messages_and_text_are_the_same_run(tmp_path: Path) -> None:
    text = f"Intro.\n\n### Instruction:\nWho?\n\n### Response:\n{SEARCH}\nObservation: seen\nmore\n{FINISH}\n{END}\n"
    expected = [("search", "amber", "seen\nmore", None), ("answer", "Amber Stone", "", None)]
    first = only(tmp_path, row(SEARCH, "Observation: seen\nmore", FINISH, END))
    second = only(tmp_path, row(traj=text, prompt=""))
    assert calls(first) == calls(second) == expected
    assert first.task_key == second.task_key == "fireact-7"
    assert (first.policy, first.outcome, first.provenance["pred"]) == ("model_a", Outcome.SUCCESS, "amber stone")
    assert first.answer == "Amber Stone"


def test_of_several_actions_in_one_message_the_first_was_run(tmp_path: Path) -> None:
    run = only(tmp_path, row(f"{SEARCH}\n{SEARCH.replace('amber', 'blue')}", "Observation: seen", f"{FINISH}\n{SEARCH}", END))
    assert calls(run) == [
        ("search", "amber", "seen", None),
        ("search", "blue", "", NOT_RUN),
        ("answer", "Amber Stone", "", None),
        ("search", "amber", "", NOT_RUN),
    ]
    assert [(call.tool, call.arguments, call.observation, call.outcome) for turn in run.turns for call in turn.calls] == calls(run)
    assert run.answer == "Amber Stone"


@needs("trajectories/fireact")
@pytest.mark.slow
def test_the_released_runs_keep_every_call_and_figure() -> None:
    made = read_fireact(RUNS)
    assert (made.rows, len(made.trajectories), len(made.failures)) == (965, 965, 0)
    source = {(path.stem, key): value for path in RUNS.glob("*.json") for key, value in json.loads(path.read_text()).items()}
    scores = {(record.trajectory_id, record.verifier): record for record in made.records if isinstance(record, Score)}
    for run in made.trajectories:
        given = source[run.policy, run.task_key.removeprefix("fireact-")]
        if isinstance(given["traj"], str):
            body = given["traj"].split("### Response:\n")[-1]
        else:
            texts = [message["content"] for message in given["traj"] if message["role"] == "assistant"]
            assert "".join(turn.action for turn in run.turns) == "".join(texts)
            body = "\n".join(texts)
        labels = len(re.findall(r"^Action:?", body, re.MULTILINE))
        assert sum(turn.tool is not None or "Action" in turn.action for turn in run.turns) == labels
        assert (run.outcome is Outcome.SUCCESS) == given["reward"]
        assert scores[run.id, "fireact_em"].value == float(given["em"]) == float(exact_match(run.answer or "", [given["gt"]]))
        assert scores[run.id, "fireact_f1"].value == pytest.approx(given["f1"])
        assert not run.answer or normalize(run.answer) == given["pred"] or any(turn.tool_outcome == NOT_RUN for turn in run.turns)
