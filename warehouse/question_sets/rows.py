"""Rows of a question set: a JSON list or JSON lines, packed by gzip or not.

A question set that is half read would be another one under the same name, so a row that cannot be read is an error and no row is left out.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from warehouse.errors import RequestError


def read_rows(path: Path, what: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The objects in a file, each with where it stands («row 3 of test.jsonl»).

    Raises:
        RequestError: there is no such file, it is no JSON, or a row is no object; `what` says in the sentence what is missing.
    """
    if not path.is_file():
        raise RequestError(f"there is no file {path}: put {what} there, or name another file with --set source.path=FILE.")
    rows = list(_rows(path))
    if not rows:
        raise RequestError(f"{path} holds no row.")
    for place, row in rows:
        if not isinstance(row, dict):
            raise RequestError(f"{place} is no object but {str(row)[:40]!r}; correct it.")
    return rows


def text_in(row: Mapping[str, Any], key: str, place: str) -> str:
    """The text under `key`. Raises RequestError where there is none."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{place} has no text under {key}; correct it.")
    return value


def texts_in(row: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    """The texts of the list under `key`. Raises RequestError where it is none."""
    value = row.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{place} has no list of texts under {key}; correct it.")
    return tuple(value)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read as text: {error}.") from error
    if text.lstrip().startswith("["):
        yield from ((f"row {number} of {path}", row) for number, row in enumerate(_parsed(text, str(path)), start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"line {number} of {path}"
            yield place, _parsed(line, place)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{place} is not JSON: {error}.") from error
