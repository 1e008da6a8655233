"""The forms that the arguments of a call have: a JSON object, the plain text of the only one that must be given, texts without quotes.

Policies that speak in tags write text, chat templates want the object, and some write each value without quotes. All say the same, so each
is read as the other. What a text stands for that reads as JSON is for the schema of the tool to say: `1984` may be a year to search for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rl.renderers.base import Schema

_OF_PYTHON = {"True": True, "False": False, "None": None}
"""Literals as templates write them that print values by Python's `str`, Qwen3.5's and Nemotron's among them."""


def parameters_of(tool: str, tools: Sequence[Schema]) -> Mapping[str, Any]:
    """The JSON schema of the arguments of a tool among those on offer; an empty one where it is not there."""
    functions = (each["function"] for each in tools)
    return next((function.get("parameters") or {} for function in functions if function["name"] == tool), {})


def as_object(arguments: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The object that `arguments` stand for: its JSON, or the plain text of the only argument that must be given.

    Args:
        parameters: the JSON schema of the tool's arguments.

    Raises:
        ValueError: where it is neither; its text says why.
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
    """The text of the only argument, where `arguments` are an object with one text that is read as that again; else as they are."""
    if not arguments.lstrip().startswith("{"):
        return arguments
    values = _object_in(arguments)
    only = next(iter(values.values())) if values is not None and len(values) == 1 else None
    if not isinstance(only, str):
        return arguments
    read = _object_in(of_text(only, parameters or {}))
    return only if read is None or read == values else arguments


def of_text(text: str, parameters: Mapping[str, Any]) -> str:
    """The arguments that a text stands for: itself, or the object with it where it reads as an object of none of the tool's arguments."""
    only = _only_text(parameters)
    if only is None or not text.lstrip().startswith("{"):
        return text
    values = _object_in(text)
    if values is None or values.keys() & parameters["properties"].keys():
        return text
    return json.dumps({only: text}, ensure_ascii=False)


def value_of(text: str, declared: Mapping[str, Any] | None) -> Any:
    """What a text without quotes stands for: JSON where it is an object, a list or a literal of a type that `declared` takes, else itself.

    A literal in Python's spelling is one only where `declared` names its type.

    Args:
        declared: the JSON schema of this argument; None where it is not known, which then takes any type.
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
    """What a text of JSON holds. Raises ValueError for NaN and the infinities too, however they are spelt: they could not be written."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def read_json_at(text: str, place: int) -> tuple[Any, int]:
    """The JSON value that begins at `place`, and where it ends; raises as `read_json` does. What follows it is not looked at."""
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
    """The one argument that must be given, where it is text."""
    required = parameters.get("required", [])
    if len(required) != 1:
        return None
    return required[0] if parameters.get("properties", {}).get(required[0], {}).get("type") == "string" else None


def _types_of(schema: Any) -> set[str] | None:
    """The types that a JSON schema takes; None where it does not say so in one place."""
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
    """The names of JSON schema for the types that a value has."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if isinstance(value, int) or value.is_integer() else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}
