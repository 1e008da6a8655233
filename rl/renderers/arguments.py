"""The two forms that the arguments of a call have: a JSON object, or the plain text of the only one that must be given.

Policies that speak in tags write text, chat templates want the object. Both say the same, so each is read as the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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


def as_text(arguments: str) -> str:
    """The text of the only argument, where `arguments` are an object with one text; else `arguments` as they are."""
    if not arguments.lstrip().startswith("{"):
        return arguments
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    only = next(iter(values.values())) if isinstance(values, dict) and len(values) == 1 else None
    return only if isinstance(only, str) else arguments


def _only_text(parameters: Mapping[str, Any]) -> str | None:
    """The one argument that must be given, where it is text."""
    required = parameters.get("required", [])
    if len(required) != 1:
        return None
    return required[0] if parameters.get("properties", {}).get(required[0], {}).get("type") == "string" else None
