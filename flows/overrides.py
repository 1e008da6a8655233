"""Setting overrides: `later` from the second iteration on, and `--set KEY=VALUE` on the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from warehouse.errors import RequestError
from warehouse.json_text import read_json
from warehouse.settings import fault_of, models_in

WHOLE = ("counts", "mixture")
"""Tables that are replaced as a whole instead of merged."""


def lay_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Lay `above` over `below`: merge tables, replace other values and the tables in `WHOLE`."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = lay_over(under, value) if isinstance(value, dict) and isinstance(under, dict) and key not in WHOLE else value
    return merged


def parse_override(text: str) -> tuple[list[str], Any]:
    """Split an override such as `rl.horizon.rounds=[2,4]` into path and value: JSON, TOML, or else a string."""
    key, separator, value = text.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise RequestError(f"--set {text!r} is not of the form key=value; write for example --set seed=7.")
    return [part.strip() for part in key.split(".")], _read_value(value)


def _read_value(text: str) -> Any:
    """Parse `[2,4]`, `{"a": 1}`, `{1 = 20}`, `'text'`. Only lists, tables and quoted strings are read as TOML, so a date stays a string."""
    try:
        return read_json(text)
    except ValueError:
        if not text.lstrip().startswith(("[", "{", "'")):
            return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def apply_overrides(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `table` with each override at its path, creating missing tables. Raise RequestError for an invalid override."""
    merged: dict[str, Any] = json.loads(json.dumps(table))
    for override in overrides:
        path, value = parse_override(override)
        place = merged
        for depth, part in enumerate(path[:-1]):
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
            if not isinstance(place, dict):
                raise RequestError(f"--set {override!r}: {'.'.join(path[: depth + 1])} is a value, not a table.")
        place[path[-1]] = value
    return merged


def describe(error: ValidationError, where: str, overrides: Sequence[str], model: type[BaseModel], what: str = "the configuration") -> str:
    """Describe the first error in `what` in one sentence, with the closest key of `model` for an unknown key.

    The sentence names the override that sets the key, or else the file `where`, with any override below the key.
    """
    first = error.errors(include_url=False)[0]
    key, paths = list(map(str, first["loc"])), [parse_override(text)[0] for text in overrides]
    own = [text for text, path in zip(overrides, paths, strict=True) if key[: len(path)] == path]
    near = [text for text, path in zip(overrides, paths, strict=True) if path[: len(key)] == key]
    place = f"--set {own[-1]}" if own else f"{where} with --set {near[-1]}" if near else where
    return f"{place}: {fault_of(error, what)}{_meant(key, model) if first['type'] == 'extra_forbidden' else '.'}"


def _meant(key: Sequence[str], model: type[BaseModel]) -> str:
    """Suggest the key that an unknown one may mean, or where to look."""
    sections = [model]
    for part in key[:-1]:
        sections = [inner for one in sections if part in one.model_fields for inner in models_in(one.model_fields[part].annotation)]
    close = get_close_matches(key[-1], [field.alias or name for one in sections for name, field in one.model_fields.items()], 1)
    return f"; did you mean {'.'.join([*key[:-1], *close])}?" if close else "; docs/settings.md lists all settings."
