"""Tools offered by a row, and removal of nulls that Arrow added to call arguments.

Arrow stores the arguments of all calls in a column as one struct, so each call has the keys of all others, null where absent. Such a null
is removed if the tool's schema does not name the key or does not allow null. Without a schema it is removed if the file shows such a
struct: it is an Arrow or Parquet file, or all calls have the same keys and use at least two tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from warehouse.json_text import MOST_DEPTH, read_json, unique_object

_OFFERS = ("tools", "tool_defs", "functions", "available_tools")
_ARGUMENTS = ("arguments", "parameters", "args", "input")


@dataclass(frozen=True, slots=True)
class ToolSchemas:
    """Tools of a row in OpenAI's format, and whether the file's arguments are padded with nulls."""

    tools: tuple[dict[str, Any], ...] = ()
    filled: bool = False
    _properties: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def without_fill(self, tool: str, arguments: Any) -> Any:
        """Arguments of a call without padding nulls."""
        if tool in self._properties:
            return _fitting(arguments, self._properties[tool])
        return _without_nulls(arguments) if self.filled else arguments


NO_TOOLS = ToolSchemas()


def schemas_of(row: Mapping[str, Any], filled: bool = False) -> ToolSchemas:
    """Tools offered by a row under `tools`, `tool_defs`, `functions` or `available_tools`, as a list or JSON text."""
    offered = next((found for name in _OFFERS if (found := _offered(row.get(name)))), [])
    functions = [_function(tool) for tool in offered]
    tools = tuple({"type": "function", "function": function} for function in functions)
    described = [function for function in functions if function["parameters"]]
    return ToolSchemas(tools, filled, {function["name"]: function["parameters"] for function in described})


def is_filled(rows: Iterable[Any]) -> bool:
    """Whether the calls of rows without schemas share one struct: equal keys in all, some nulls, and at least two tools."""
    tools: set[str] = set()
    keys: frozenset[str] | None = None
    nulls = False
    for row in rows:
        for name, arguments in _calls_in(row, 0):
            if keys is not None and keys != arguments.keys():
                return False
            keys = frozenset(arguments)
            tools.add(name)
            nulls |= None in arguments.values()
    return nulls and len(tools) > 1


def _calls_in(value: Any, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if depth > MOST_DEPTH:
        return
    if isinstance(value, list):
        for one in value:
            yield from _calls_in(one, depth + 1)
    elif isinstance(value, dict):
        arguments = next((value[name] for name in _ARGUMENTS if isinstance(value.get(name), dict)), None)
        if isinstance(value.get("name"), str) and arguments and "type" not in arguments:
            yield value["name"], arguments
        else:
            for name, one in value.items():
                if name not in _OFFERS:
                    yield from _calls_in(one, depth + 1)


def _offered(value: Any) -> list[dict[str, Any]]:
    value = _from_text(value) if isinstance(value, str) else value
    tools = value if isinstance(value, list) else []
    tools = [_from_text(tool) if isinstance(tool, str) else tool for tool in tools]
    named = all(isinstance(tool, dict) and isinstance(_inner(tool).get("name"), str) for tool in tools)
    return tools if named else []


def _from_text(text: str) -> Any:
    try:
        return read_json(text, unique_object)
    except ValueError:
        return None


def _inner(tool: dict[str, Any]) -> dict[str, Any]:
    inner = tool.get("function")
    return inner if isinstance(inner, dict) else tool


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as OpenAI's `function`; parameters may be a JSON schema, `input_schema`, or a mapping by name."""
    inner = _inner(tool)
    given = inner.get("parameters", inner.get("input_schema"))
    given = given if isinstance(given, dict) else {}
    by_name = bool(given) and "properties" not in given and all(isinstance(one, dict) for one in given.values())
    schema = {"type": "object", "properties": given} if by_name else given
    return {"name": inner["name"], "description": inner.get("description") or "", "parameters": schema}


def _fitting(value: Any, schema: Any) -> Any:
    """The value without nulls that the schema does not name or allow."""
    if not isinstance(schema, dict):
        return value
    if isinstance(value, list):
        return [_fitting(one, schema.get("items")) for one in value]
    known = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(known, dict):
        return value
    needed = schema.get("required") or ()
    allowed = {name for name in known if name in needed or _allows_null(known[name])}
    return {name: _fitting(one, known.get(name)) for name, one in value.items() if one is not None or name in allowed}


def _allows_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    several = [one for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list) for one in schema[name]]
    if "null" in (kinds if isinstance(kinds, list) else [kinds]) or schema.get("nullable") is True or None in (schema.get("enum") or ()):
        return True
    return any(map(_allows_null, several)) if several else kinds is None and not schema.keys() & {"enum", "$ref"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
