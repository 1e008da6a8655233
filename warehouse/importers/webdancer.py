"""Reader of WebDancer's released runs (Alibaba-NLP, arXiv 2505.22648): JSON lines of chat messages.

A row has `messages` (system, then user and assistant in turn), `answer` (accepted answers in a list of a list), and a tag. The
thought, the calls (`<tool_call>` with JSON) and the answer stand in the assistant's text, the responses in the user's next message;
the row's own `tool_calls` are empty. The file does not say whether a run was judged right: its outcome is left open.

Kept in the words of the file: the assistant's messages, cut before each further call, and the responses without their tags. The rest
of the row goes into `provenance`. The prompt has no token ids, for the tokenizer is not known.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from warehouse.bounds import is_too_deep, lines_of, read_json, read_row
from warehouse.digests import digest
from warehouse.importers.runs import ImportedRuns, MalformedRow, ParsedAction, RunCollector, RunEnd, read_files, trajectory_of, turns_of
from warehouse.records import Task

FORMAT = "webdancer"
_BLOCK = re.compile(r"<(tool_call|answer)>(.*?)</\1>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_COMMA = re.compile(r"\s*,?\s*")
_QUESTION = "\nUser: "


def read_webdancer(path: Path) -> ImportedRuns:
    """Every run of a file, or of the `.jsonl` files in a folder. Raises RequestError where there is no such file."""
    return read_files(FORMAT, path, (".jsonl",), _read_file)


def _read_file(path: Path, collector: RunCollector) -> None:
    with path.open("rb") as file:
        for number, line in lines_of(file):
            if not line.strip():
                continue
            collector.rows += 1
            try:
                _read_row(read_row(line), path, number, collector)
            except (MalformedRow, ValueError, RecursionError) as error:
                collector.quarantine(path, number, str(error), line[:1000].decode(errors="replace"))


def _read_row(row: Any, path: Path, line: int, collector: RunCollector) -> None:
    messages = _messages(row)
    system = [content for role, content in messages if role == "system"]
    spoken = [(role, content) for role, content in messages if role != "system"]
    if not spoken or spoken[0][0] != "user":
        raise MalformedRow("the first message after the system's is not the user's question")
    instructions, _, question = ("\n" + spoken[0][1]).rpartition(_QUESTION)
    answers = _answers(row)
    key = f"{FORMAT}-{digest([question.strip(), answers])}"
    task = Task(key, FORMAT, question.strip(), answers, split="import", provenance={"format": FORMAT})
    rest = {name: value for name, value in row.items() if name not in ("messages", "answer")}
    provenance = {"file": path.name, "line": line, "system": system, "instructions": instructions.removeprefix("\n"), **rest}
    provenance["tools"] = _tools(instructions)
    identifier = f"{FORMAT}-{digest([FORMAT, row])}"
    collector.records += [task, trajectory_of(identifier, task, FORMAT, turns_of(_calls(spoken[1:])), RunEnd(), provenance)]


def _tools(instructions: str) -> list[dict[str, Any]]:
    """The schemas of the tools that the instructions offer, one JSON object behind the other; none where they are not of that form."""
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
        raise MalformedRow("answer holds something that is no text")
    return texts


def _calls(messages: list[tuple[str, str]]) -> list[ParsedAction]:
    """The calls of all the assistant's messages, each with its response."""
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
            raise MalformedRow("a response follows no call")
    return calls + open_calls


def _actions(content: str) -> list[ParsedAction]:
    """The calls of one message; its text is cut before each further one. What a thought quotes is no call."""
    start = content.find("</think>") + 1
    blocks = list(_BLOCK.finditer(content, start))
    if not blocks:
        return [ParsedAction(content, None, outcome="unparsable")]
    cuts = [0, *(block.start() for block in blocks[1:]), len(content)]
    return [_call(content[cuts[n] : cuts[n + 1]], block) for n, block in enumerate(blocks)]


def _call(text: str, block: re.Match[str]) -> ParsedAction:
    if block[1] == "answer":
        return ParsedAction(text, "answer", block[2].strip())
    try:
        call = read_json(block[2])
        return ParsedAction(text, str(call["name"]), json.dumps(call["arguments"], ensure_ascii=False))
    except (ValueError, KeyError, TypeError):
        return ParsedAction(text, None, outcome="unparsable")


def _with_responses(calls: list[ParsedAction], content: str) -> list[ParsedAction]:
    """The calls with their responses: one each where there are as many, else all that came is the last one's."""
    responses = _RESPONSE.findall(content)
    if len(responses) != len(calls) or _RESPONSE.sub("", content).strip():
        responses = [""] * (len(calls) - 1) + [content]
    return [ParsedAction(c.text, c.tool, c.arguments, response, c.outcome) for c, response in zip(calls, responses, strict=True)]
