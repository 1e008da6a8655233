"""Parse untrusted JSON: limited depth, no repeated keys, storable values only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

MOST_DEPTH = 200
"""Maximum nesting depth; Python's parser fails near a thousand."""
TOO_DEEP = f"it is nested deeper than {MOST_DEPTH} levels"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class RepeatedKey(ValueError):
    """A key occurs twice in one JSON object, so its value is ambiguous."""


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs; raises RepeatedKey. Use as `object_pairs_hook`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKey(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} occurs twice in one object")
    return found


def read_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON; `pairs` builds the objects. Raises ValueError if the text is not JSON or nested too deep."""
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets > MOST_DEPTH and is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def read_text_json(text: str) -> Any:
    """Like `read_json`; also raises ValueError for lone surrogates, which no table can store."""
    value = read_json(text)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("a string in it contains a lone surrogate") from error
    return value


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than `MOST_DEPTH`."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [inner for inner in inner_values(level) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def inner_values(level: list[Any]) -> Iterator[Any]:
    """Values directly inside the lists and objects of `level`."""
    for outer in level:
        yield from outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()


def why_not_storable(value: Any) -> str | None:
    """Reason why a table cannot store `value` as JSON, or None."""
    if is_too_deep(value):
        return TOO_DEEP
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "it contains a lone surrogate, which no table can store"
    except (TypeError, ValueError, RecursionError) as error:
        return f"no table can store it: {error}"
    return None
