"""Rows of JSON in a file, packed by gzip or not: in lines, in one list, or one after the other over many lines, as `jq` prints them.

A row that is not JSON is one fault with its line: in a file of lines the next row is not touched by it; the others give the rows before the
break, and one fault for what is left. Numbers that are not finite and halves of surrogate pairs, which JSON text can name and a table
cannot hold, are faults of their row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.bounds import TOO_DEEP, RepeatedKey, is_too_deep, lines_of, read_row, unique_object, unpacked

_BLANK = re.compile(r"[ \t\r\n\ufeff]*")
_KEPT = 500


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `path` as it stands at `line`: its value, or why it has none."""

    path: Path
    line: int
    text: str
    value: Any = None
    fault: str | None = None


def rows_of(path: Path) -> Iterator[Row]:
    """Every row of a file, packed or not; blank lines are none. Raises RequestError where it cannot be unpacked, or to too much."""
    with unpacked(path) as file:
        beginning = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if beginning.startswith(b"["):
        yield from _values(path, listed=True)
    elif beginning.partition(b"\n")[0].strip() == b"{":
        yield from _values(path, listed=False)
    else:
        yield from _lines(path)


def begins_as_json(path: Path) -> bool:
    """Whether the text of a file begins as JSON does."""
    with unpacked(path) as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def _lines(path: Path) -> Iterator[Row]:
    with unpacked(path) as file:
        for number, line in lines_of(file):
            if not line.strip(b" \t\r\n\xef\xbb\xbf"):
                continue
            shown = line[:_KEPT].decode(errors="replace")
            try:
                yield _storable(path, number, shown, read_row(line))
            except ValueError as error:
                yield Row(path, number, shown, fault=f"it is not JSON: {error}")


def _values(path: Path, listed: bool) -> Iterator[Row]:
    what = "list" if listed else "file"
    with unpacked(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Row(path, data.count(b"\n", 0, error.start) + 1, "", fault=f"the {what} is not UTF-8: {error}")
        return
    decoder = json.JSONDecoder(object_pairs_hook=unique_object)
    line, counted, place = 1, 0, _skip(text, 0) + listed
    while (place := _skip(text, place)) < len(text) and not (listed and text[place] == "]"):
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            fault, behind = _fault_of(text, place, error, what)
            yield Row(path, line, text[place : place + _KEPT], fault=fault)
            if behind is None:
                return
            place = _skip(text, behind)
            place += listed and text[place : place + 1] == ","
            continue
        yield _storable(path, line, text[place : min(end, place + _KEPT)], value)
        place = _skip(text, end)
        place += listed and text[place : place + 1] == ","
    if listed and text[place:].strip() != "]":
        line += text.count("\n", counted, place)
        yield Row(path, line, text[place : place + _KEPT], fault="the list does not end where the file does")


def _fault_of(text: str, place: int, error: Exception, what: str) -> tuple[str, int | None]:
    """What is wrong with the row at `place`, and where it ends if it is JSON all the same: a key stands twice in it."""
    if isinstance(error, RepeatedKey):
        try:
            return str(error), json.JSONDecoder().raw_decode(text, place)[1]
        except (ValueError, RecursionError):
            pass
    return f"from here on the {what} is not JSON: {TOO_DEEP if isinstance(error, RecursionError) else error}", None


def _skip(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found else place


def _storable(path: Path, line: int, text: str, value: Any) -> Row:
    fault = why_not_storable(value)
    return Row(path, line, text, value) if fault is None else Row(path, line, text, fault=fault)


def why_not_storable(value: Any) -> str | None:
    """Why a table cannot hold `value` as JSON; None where it can."""
    if is_too_deep(value):
        return TOO_DEEP
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it holds what no table can: half of a surrogate pair"
    except (TypeError, ValueError, RecursionError) as error:
        return f"it holds what no table can: {error}"
    return None
