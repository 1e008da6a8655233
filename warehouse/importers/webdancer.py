"""Reader of WebDancer's released runs (Alibaba-NLP, arXiv 2505.22648): JSON Lines of chat messages.

A row has `messages` (system, then alternating user and assistant), `answer` (accepted answers as a nested list), and a tag. Thought, calls
(`<tool_call>` with JSON) and answer are in the assistant's text, responses in the next user message; the row's own `tool_calls` are empty.
The file has no verdicts, so outcomes are None.

Kept verbatim: assistant messages, split before each further call, and responses without tags. The rest of the row goes into `provenance`.
There are no token ids, since the tokenizer is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.digests import digest
from warehouse.foreign import Row
from warehouse.importers.messages import TextCall, find_text_calls, read_responses
from warehouse.importers.runs import ImportedRuns, MalformedRow, ParsedAction, RunCollector, RunEnd, trajectory_of, turns_of
from warehouse.importers.tables import read_rows
from warehouse.json_text import RepeatedKey, is_too_deep
from warehouse.records import Task
from warehouse.replies import split_reasoning

FORMAT = "webdancer"
_OPENING = re.compile(r"<(tool_call|answer)>")
_COMMA = re.compile(r"\s*,?\s*")
_QUESTION = "\nUser: "


def read_webdancer(path: Path) -> ImportedRuns:
    """Read the runs of a file, or of the `.jsonl` and `.parquet` files in a folder. Raises RequestError if there is none."""
    return read_rows(FORMAT, path, (".jsonl", ".parquet"), _read_row)


def _read_row(row: dict[str, Any], place: Row, collector: RunCollector) -> None:
    messages = _messages(row)
    system = [content for role, content in messages if role == "system"]
    spoken = [(role, content) for role, content in messages if role != "system"]
    if not spoken or spoken[0][0] != "user":
        raise MalformedRow("the first message after the system message is not a user message")
    instructions, _, question = ("\n" + spoken[0][1]).rpartition(_QUESTION)
    answers = _answers(row)
    key = f"{FORMAT}-{digest([question.strip(), answers])}"
    task = Task(key, FORMAT, question.strip(), answers, split="import", provenance={"format": FORMAT})
    rest = {name: value for name, value in row.items() if name not in ("messages", "answer")}
    provenance = {"file": place.path.name, "line": place.line, "system": system, "instructions": instructions.removeprefix("\n"), **rest}
    provenance["tools"] = _tools(instructions)
    identifier = f"{FORMAT}-{digest([FORMAT, row])}"
    collector.records += [task, trajectory_of(identifier, task, FORMAT, turns_of(_calls(spoken[1:])), RunEnd(), provenance)]


def _tools(instructions: str) -> list[dict[str, Any]]:
    """Schemas of the tools in the instructions, given as consecutive JSON objects; empty if they have another form."""
    text, decoder, found = instructions.partition("<tools>")[2].partition("</tools>")[0], json.JSONDecoder(), []
    place = _past_comma(text, 0)
    while place < len(text):
        try:
            function, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or is_too_deep(function):
            return []
        found.append({"type": "function", "function": function})
        place = _past_comma(text, place)
    return found


def _past_comma(text: str, place: int) -> int:
    found = _COMMA.match(text, place)
    return found.end() if found else place


def _messages(row: Any) -> list[tuple[str, str]]:
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        raise MalformedRow("the row has no list of messages")
    messages = []
    for number, message in enumerate(row["messages"]):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise MalformedRow(f"message {number} has no text")
        if message.get("role") not in ("system", "user", "assistant"):
            raise MalformedRow(f"message {number} has the role {message.get('role')!r}")
        messages.append((message["role"], message["content"]))
    return messages


def _answers(row: dict[str, Any]) -> tuple[str, ...]:
    answers = row.get("answer")
    parts = answers if isinstance(answers, list) else [answers]
    found = [text for part in parts for text in (part if isinstance(part, list) else [part])]
    texts = tuple(text for text in found if isinstance(text, str) and text.strip())
    if len(texts) != len(found):
        raise MalformedRow("answer contains a value that is not text")
    return texts


def _calls(messages: list[tuple[str, str]]) -> list[ParsedAction]:
    calls: list[ParsedAction] = []
    open_calls: list[ParsedAction] = []
    for role, content in messages:
        if role == "assistant":
            calls += open_calls
            open_calls = _actions(content)
        elif open_calls:
            calls += _with_responses(open_calls, content)
            open_calls = []
        else:
            raise MalformedRow("a response does not follow a call")
    return calls + open_calls


def _actions(content: str) -> list[ParsedAction]:
    """Calls of one message, whose text is split before each further call; calls quoted in a thought are ignored."""
    rest = split_reasoning(content)[1]
    whole = content.rstrip()
    blocks = list(_blocks(whole, len(whole) - len(rest) if whole.endswith(rest) else 0))
    if not blocks:
        return [ParsedAction(content, None, outcome="unparsable")]
    cuts = [0, *(block.start for block in blocks[1:]), len(content)]
    return [_call(content[cuts[n] : cuts[n + 1]], block.value) for n, block in enumerate(blocks)]


def _blocks(content: str, start: int) -> Iterator[TextCall]:
    """Calls and answers in a text from `start` on; answers and calls that are not JSON are read as text.

    The JSON of a call is decoded before its closing tag is searched.
    """
    while (opening := _OPENING.search(content, start)) is not None:
        try:
            block = next(find_text_calls(content, opening.start())) if opening[1] == "tool_call" else None
        except (MalformedRow, StopIteration) as error:
            if isinstance(error.__cause__, RepeatedKey):
                raise MalformedRow(str(error)) from error
            block = None
        if block is None:
            end = _closing(content, opening)
            if end < 0:
                start = opening.end()
                continue
            inside = content[opening.end() : end].strip()
            value = {"name": "answer", "arguments": inside} if opening[1] == "answer" else None
            block = TextCall(opening.start(), end + len(opening[1]) + 3, value)
        yield block
        start = block.end


def _closing(content: str, opening: re.Match[str]) -> int:
    """End of an opened block; an answer, which may quote its tag, ends at the last closing tag before the next opening one."""
    closing, following = f"</{opening[1]}>", _OPENING.search(content, opening.end())
    first = content.find(closing, opening.end())
    if opening[1] != "answer":
        return first
    return max(first, content.rfind(closing, opening.end(), following.start() if following else len(content)))


def _call(text: str, value: Any) -> ParsedAction:
    if not isinstance(value, dict) or "name" not in value or "arguments" not in value:
        return ParsedAction(text, None, outcome="unparsable")
    arguments = value["arguments"]
    written = arguments if value["name"] == "answer" and isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ParsedAction(text, str(value["name"]), written)


def _with_responses(calls: list[ParsedAction], content: str) -> list[ParsedAction]:
    """Assign responses to calls: one each if the numbers match, else all text to the last call."""
    read = read_responses(content)
    responses = read[0] if read is not None and len(read[0]) == len(calls) and not read[1] else [""] * (len(calls) - 1) + [content]
    return [ParsedAction(c.text, c.tool, c.arguments, response, c.outcome) for c, response in zip(calls, responses, strict=True)]
