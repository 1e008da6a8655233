"""Reader of Search-R1's tagged text (arXiv 2503.09516), which alternates the policy's tags and retrieved passages.

A row is a verl dump (`input`, `output`, `gts`, `score`, `step`), or has `question`, `golden_answers` and the text under `response`,
`output` or `sequences_str` (prompt and response). The text is split as `search_r1/llm_agent/generation.py` composed it: an `<information>`
block after `</search>` and the sentence after an invalid action are observations, the rest is the policy's. Of several tags in one action
only the first was run; the others become turns that were not run. A score of 1 is a success.

Lost: whitespace around observations, control tokens, and truncated text. The format does not escape observations, so a row with unclosed
(truncated) or nested blocks is quarantined: a document could otherwise impersonate the policy. The row is kept in `provenance`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.foreign import Row
from warehouse.importers.runs import (
    ImportedRuns,
    MalformedRow,
    ParsedAction,
    RunCollector,
    RunEnd,
    mark_not_run,
    number_of,
    task_of,
    texts_of,
    turns_of,
    verdict_of,
)
from warehouse.importers.tables import read_rows

FORMAT = "search-r1"
_TEXTS = ("response", "output", "sequences_str")
_OPENING = re.compile(r"<(search|answer)>")
_RETRIEVED = r"(?<=</search>)\s*<information>(.*?)(?:</information>\s*|\Z)"
_REFUSED = re.escape(
    "My previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again."
)
_OBSERVED = re.compile(f"{_RETRIEVED}|({_REFUSED})", re.DOTALL)
_ASSISTANT = re.compile(r"\s*(?:<\|im_end\|>)?\s*(?:(?:<\|im_start\|>)?assistant\s*\n)?\s*")


def read_search_r1(path: Path) -> ImportedRuns:
    """Read the runs of a file, or of the `.jsonl` and `.json` files in a folder. Raises RequestError if there is none."""
    return read_rows(FORMAT, path, (".jsonl", ".json"), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: RunCollector) -> None:
    question, text = _question_and_text(row)
    task = task_of(FORMAT, question, _answers(row))
    policy = row["model"] if isinstance(row.get("model"), str) else place.path.stem
    reward = number_of(row.get("score", row.get("reward")), "score")
    collector.add_run(place, task, policy, turns_of(_calls(text)), RunEnd(verdict_of(reward), reward), f"{FORMAT}_score")


def _question_and_text(row: dict[str, Any]) -> tuple[str, str]:
    text = next((row[name] for name in _TEXTS if isinstance(row.get(name), str)), None)
    if text is None:
        raise MalformedRow(f"the row has no text under {', '.join(_TEXTS)}")
    whole = text is row.get("sequences_str")
    asked, end = _question_in(text if whole else row.get("input"))
    question = row["question"] if isinstance(row.get("question"), str) else asked
    if not question.strip():
        raise MalformedRow("the row has no question, and its prompt has no line that begins with Question:")
    if not whole:
        return question.strip(), text
    if not asked:
        raise MalformedRow("sequences_str has no line that begins with Question:, so the start of the policy's text is unknown")
    begin = _ASSISTANT.match(text, end)
    return question.strip(), text[begin.end() if begin else end :]


def _question_in(prompt: Any) -> tuple[str, int]:
    """Question in Search-R1's prompt and its end position; ("", 0) if there is none."""
    _, found, rest = prompt.partition("Question:") if isinstance(prompt, str) else ("", "", "")
    question = rest.split("\n", 1)[0].split("<|im_end|>", 1)[0]
    return question.strip(), len(prompt) - len(rest) + len(question) if found else 0


def _answers(row: dict[str, Any]) -> tuple[str, ...]:
    model = row.get("reward_model")
    known = [row.get(name) for name in ("golden_answers", "gts", "ground_truth")]
    known += [model.get("ground_truth")] if isinstance(model, dict) else []
    value = next((one for one in known if one is not None), None)
    return texts_of(value.get("target") if isinstance(value, dict) else value)


def _calls(text: str) -> list[ParsedAction]:
    calls: list[ParsedAction] = []
    begin = 0
    for found in _OBSERVED.finditer(text):
        if found[1] is not None:
            _check_closed(found, text)
        calls += _action(text[begin : found.start()], (found[2] if found[1] is None else found[1]).strip())
        begin = found.end()
    rest = text[begin:]
    return calls + (_action(rest, "") if rest.strip() else [])


def _check_closed(block: re.Match[str], text: str) -> None:
    """Raise MalformedRow unless the block has one unambiguous end: a document may contain the closing mark."""
    behind = text[block.end() :].partition("<information>")[0]
    if "<information>" in block[1] or "</information>" not in block[0]:
        raise MalformedRow(f"the information at character {block.start()} is not closed, so the policy's text after it is unknown")
    if "</information>" in behind:
        raise MalformedRow(f"the information at character {block.start()} is closed twice, so the policy's text after it is unknown")


def _action(text: str, observation: str) -> list[ParsedAction]:
    """Actions in the policy's text before one observation; only the first tag was run."""
    blocks = list(_blocks(text))
    if not blocks:
        return [ParsedAction(text, None, response=observation, outcome="unparsable")]
    cuts = [0, *(start for start, _, _ in blocks[1:]), len(text)]
    calls = [ParsedAction(text[cuts[n] : cuts[n + 1]], tag, inside.strip()) for n, (_, tag, inside) in enumerate(blocks)]
    return mark_not_run(calls, observation)


def _blocks(text: str) -> Iterator[tuple[int, str, str]]:
    place = 0
    never: set[str] = set()
    for opening in _OPENING.finditer(text):
        if opening.start() < place or opening[1] in never:
            continue
        end = text.find(f"</{opening[1]}>", opening.end())
        if end < 0:
            never.add(opening[1])
            continue
        yield opening.start(), opening[1], text[opening.end() : end]
        place = end
