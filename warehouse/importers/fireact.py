"""Reader of FireAct's released runs (arXiv 2310.05915) on HotpotQA: one JSON object of rows by question number.

A row has `reward`, `em`, `f1`, `gt` (normalised), `pred`, and `traj`: chat messages, or one text in Alpaca layout. An action is
`Thought: …` and `Action: tool[argument]`; `finish` is the answer. Of several actions in one message only the first was run, as the recorded
observations and predictions show; the others become turns that were not run. FireAct's own em and f1 are kept as scores.

Lost: whitespace around questions, the `Observation:` label, and the closing line "Episode finished, reward = …", which is the outcome.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.foreign import read_foreign
from warehouse.importers.runs import (
    ImportedRuns,
    MalformedRow,
    ParsedAction,
    RunCollector,
    RunEnd,
    mark_not_run,
    read_files,
    trajectory_of,
    turns_of,
)
from warehouse.records import Outcome, Score, Task
from warehouse.replies import split_reasoning

FORMAT = "fireact"
_LABEL = re.compile(r"^(?:Thought|Action|Observation):", re.MULTILINE)
_CALL = re.compile(r"^Action:\s*(\w+)\s*\[(.*)", re.DOTALL | re.MULTILINE)
_FINISHED = re.compile(r"Episode finished, reward = (?:True|False)\s*")
_PARTS = re.compile(r".*?### Instruction:\n(.*?)\n\n### Response:\n(.*)", re.DOTALL)
_TOOLS = {"finish": "answer"}

Exchange = tuple[str, str]
"""Text of the policy, and the following observation (may be empty)."""


def read_fireact(path: Path) -> ImportedRuns:
    """Read the runs of a file, or of the `.json` files in a folder; a file's stem is the policy's name.

    Raises:
        RequestError: the file is missing or not a JSON object.
    """
    return read_files(FORMAT, path, (".json",), _read_file)


def _read_file(path: Path, collector: RunCollector) -> None:
    seen: set[str] = set()
    for entry in read_foreign("entries", path)[1]:
        collector.rows += 1
        try:
            if entry.fault is not None:
                raise MalformedRow(entry.fault)
            key, row = entry.value
            if key in seen:
                raise MalformedRow(f"the question number {key} occurs twice in the file; the first is kept")
            seen.add(key)
            _read_row(key, row, path, entry.line, collector)
        except (MalformedRow, RecursionError) as error:
            collector.quarantine(path, entry.line, str(error), entry.text)


def _read_row(key: str, row: Any, path: Path, line: int, collector: RunCollector) -> None:
    if not isinstance(row, dict):
        raise MalformedRow(f"row {key} is not an object")
    question, exchanges = _exchanges(row.get("traj"))
    if not isinstance(row.get("gt"), str) or not row["gt"].strip():
        raise MalformedRow(f"row {key} has no gt")
    task = Task(f"{FORMAT}-{key}", FORMAT, question.strip(), (row["gt"],), split="import", provenance={"format": FORMAT})
    calls = [call for exchange in exchanges for call in _calls(*exchange)]
    identifier = f"{FORMAT}-{digest([path.stem, key, row])}"
    provenance = {"file": path.name, "line": line, "pred": row.get("pred"), "prompt": row.get("prompt")}
    run = trajectory_of(identifier, task, path.stem, turns_of(calls), _end(row), provenance)
    collector.records += [task, run, *([] if run.outcome is Outcome.INVALID else _scores(identifier, row))]


def _end(row: dict[str, Any]) -> RunEnd:
    reward = row.get("reward")
    if reward is not None and not isinstance(reward, bool):
        raise MalformedRow(f"reward is {reward!r}, neither true nor false")
    return RunEnd() if reward is None else RunEnd(Outcome.SUCCESS if reward else Outcome.FAILURE, float(reward))


def _scores(identifier: str, row: dict[str, Any]) -> list[Score]:
    """FireAct's own scores; both use the verdict of em."""
    em, f1 = row.get("em"), row.get("f1")
    if not isinstance(em, bool):
        return []
    verdict = Outcome.SUCCESS if em else Outcome.FAILURE
    scores = [Score(identifier, "fireact_em", "released", float(em), verdict)]
    return scores + ([Score(identifier, "fireact_f1", "released", float(f1), verdict)] if isinstance(f1, int | float) else [])


def _exchanges(traj: Any) -> tuple[str, list[Exchange]]:
    if isinstance(traj, str):
        return _from_text(traj)
    if not isinstance(traj, list) or not traj:
        raise MalformedRow("traj is neither messages nor a text")
    if not all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in traj):
        raise MalformedRow("a message of traj has no text")
    roles = [message.get("role") for message in traj]
    if any(role != ("user", "assistant")[number % 2] for number, role in enumerate(roles)):
        raise MalformedRow("the messages of traj do not alternate between user and assistant")
    texts = [message["content"] for message in traj]
    observed = [*texts[2::2], ""]
    return texts[0], [(written, observation) for written, observation in zip(texts[1::2], observed, strict=False)]


def _from_text(traj: str) -> tuple[str, list[Exchange]]:
    parts = _PARTS.fullmatch(traj)
    if parts is None:
        raise MalformedRow("traj has no ### Instruction: and ### Response:")
    exchanges: list[Exchange] = []
    written = ""
    for block in _blocks(parts[2]):
        if block.startswith("Observation:"):
            exchanges.append((written.removesuffix("\n"), block.removesuffix("\n")))
            written = ""
        else:
            written += block
    return parts[1], exchanges + ([(written, "")] if written.strip() else [])


def _blocks(text: str) -> list[str]:
    cuts = [0, *(match.start() for match in _LABEL.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if end > start]


def _calls(written: str, observed: str) -> list[ParsedAction]:
    observation = observed.removeprefix("Observation:").strip()
    response = "" if _FINISHED.fullmatch(observation) else observation
    thought, rest = split_reasoning(written)
    texts = [f"<think>\n{thought}\n</think>\n" if thought else ""]
    for block in _blocks(rest if thought else written):
        texts[-1] += block
        if block.startswith("Action:"):
            texts.append("")
    return mark_not_run([_call(text) for text in texts if text.strip()] or [ParsedAction(written, None, outcome="unparsable")], response)


def _call(text: str) -> ParsedAction:
    found = _CALL.search(split_reasoning(text)[1])
    if found is None:
        return ParsedAction(text, None, outcome="unparsable")
    inside, closed, _ = found[2].rpartition("]")
    tool = _TOOLS.get(found[1], found[1])
    return ParsedAction(text, tool, inside, outcome=None) if closed else ParsedAction(text, tool, found[2].strip(), outcome="unparsable")
