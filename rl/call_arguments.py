"""Convert tool-call arguments between a JSON object, the plain text of the only required argument, and unquoted values.

Tag dialects produce plain text, chat templates need an object, and some call formats write values without quotes. The tool's schema decides
whether text that parses as JSON is JSON: `1984` may be a string to search for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_OF_PYTHON = {"True": True, "False": False, "None": None}
"""Literals written by templates that format values with Python's `str`, such as those of Qwen3.5 and Nemotron."""


def parameters_of(tool: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """JSON schema of a tool's arguments; empty if the tool is not in `tools`."""
    functions = (each["function"] for each in tools)
    return next((function.get("parameters") or {} for function in functions if function["name"] == tool), {})


def as_object(arguments: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parse `arguments` as a JSON object, or wrap plain text as the only required argument.

    Args:
        parameters: JSON schema of the tool's arguments.

    Raises:
        ValueError: neither form applies; the message gives the reason.
    """
    reason = "an object is needed"
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        values, reason = None, str(error)
    if isinstance(values, dict):
        return values
    only = _only_text(parameters)
    if only is None:
        raise ValueError(reason)
    return {only: arguments}


def as_text(arguments: str, parameters: Mapping[str, Any] | None = None) -> str:
    """Inverse of `as_object`: the only value if `arguments` is an object with one string that parses back to it, else `arguments`."""
    if not arguments.lstrip().startswith("{"):
        return arguments
    values = _object_in(arguments)
    only = next(iter(values.values())) if values is not None and len(values) == 1 else None
    if not isinstance(only, str):
        return arguments
    read = _object_in(of_text(only, parameters or {}))
    return only if read is None or read == values else arguments


def of_text(text: str, parameters: Mapping[str, Any]) -> str:
    """Return `text` as arguments, wrapped in an object if it would otherwise parse as an object with none of the tool's arguments."""
    only = _only_text(parameters)
    if only is None or not text.lstrip().startswith("{"):
        return text
    values = _object_in(text)
    if values is None or values.keys() & parameters["properties"].keys():
        return text
    return json.dumps({only: text}, ensure_ascii=False)


def value_of(text: str, declared: Mapping[str, Any] | None) -> Any:
    """Parse an unquoted value: JSON for objects, lists and literals of a type that `declared` allows; otherwise `text` itself.

    `declared` is the argument's JSON schema; None allows any type. Python literals (`True`, `None`) need a `declared` that names their
    type.
    """
    types = _types_of(declared)
    if text in _OF_PYTHON:
        return _OF_PYTHON[text] if types is not None and types & _types_with(_OF_PYTHON[text]) else text
    try:
        value = read_json(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str) or (types is not None and "string" in types and not types & _types_with(value)):
        return text
    return value


def read_json(text: str) -> Any:
    """Parse JSON. Raises ValueError also for NaN and infinities, including overflowing numbers."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def read_json_at(text: str, place: int) -> tuple[Any, int]:
    """Parse the JSON value at offset `place`; return it and its end offset. Raises as `read_json` does."""
    return _DECODER.raw_decode(text, place)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _only_text(parameters: Mapping[str, Any]) -> str | None:
    """Name of the only required argument if it is a string, else None."""
    required = parameters.get("required", [])
    if len(required) != 1:
        return None
    return required[0] if parameters.get("properties", {}).get(required[0], {}).get("type") == "string" else None


def _types_of(schema: Any) -> set[str] | None:
    """JSON types that a schema allows; None if undetermined."""
    if not isinstance(schema, Mapping) or "$ref" in schema or "allOf" in schema:
        return None
    named = schema.get("type", [])
    found = {named} if isinstance(named, str) else set(named)
    for value in [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]:
        found |= _types_with(value)
    for one in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        types = _types_of(one)
        if types is None:
            return None
        found |= types
    return found or None


def _types_with(value: Any) -> set[str]:
    """JSON schema type names that match a value."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}
