"""The steps of a written tool, carried out on a state: a pure interpreter without loops, so that a call takes no longer than its tables.

What is put into a record is bounded as it is put there, for a later step may take it out again and make more of it.

The state that is given is changed; whoever wants a refused call to change nothing gives a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from rl.envs.tool_world.definition import (
    LONGEST_TEXT,
    PLACEHOLDER,
    DeleteStep,
    FindStep,
    GetStep,
    InsertStep,
    RequireStep,
    ToolDefinition,
    UpdateStep,
    arithmetic,
)
from rl.tools import ToolError, ToolMiss

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Tables = dict[str, dict[str, dict[str, Any]]]
"""A state that is being changed; see `eval.graders.state.State`."""
MOST_FOUND = 50
"""Records that one search brings, the first by key."""


def carry_out(tool: ToolDefinition, state: Tables, arguments: Mapping[str, Any]) -> Any:
    """Carry out a tool's steps on `state`, and give what it returns; without `returns`, what was found last.

    Raises:
        ToolError: the call is refused: no such record, a key that is taken, a condition that does not hold.
        ToolMiss: a search found nothing.
    """
    names = dict(arguments)
    last: Any = "done"
    for step in tool.steps or ():
        match step:
            case FindStep():
                last = names[step.name] = _find(state, step, names)
            case GetStep():
                last = names[step.name] = _get(state, step.table, step.key, names)
            case RequireStep():
                _require(step, names)
            case InsertStep():
                _insert(state, step, names)
            case UpdateStep():
                record = _record(state, step.table, step.key, names)
                record.update({field: _field(value, names) for field, value in step.set.items()})
            case DeleteStep():
                _record(state, step.table, step.key, names)
                del state[step.table][_key(step.key, names)]
    return last if tool.returns is None else value_of(tool.returns, names)


def value_of(value: Any, names: Mapping[str, Any]) -> Any:
    """A value of a step with the names put in.

    Raises:
        ToolError: a sum or difference of what are no numbers, or a text that grows too long.
    """
    if (found := arithmetic(value)) is not None:
        left, right = (value_of(each, names) for each in found[1])
        if not all(type(each) in (int, float) for each in (left, right)):
            raise ToolError(f"{left!r:.80} and {right!r:.80} are not both numbers")
        return left + right if found[0] == "plus" else left - right
    if isinstance(value, dict):
        return {key: value_of(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [value_of(each, names) for each in value]
    if not isinstance(value, str):
        return value
    whole = PLACEHOLDER.fullmatch(value)
    if whole is not None:
        return _named(whole[1], whole[2], names)
    text = PLACEHOLDER.sub(lambda found: str(_named(found[1], found[2], names)), value)
    if len(text) > LONGEST_TEXT:
        raise ToolError(f"a text has at most {LONGEST_TEXT} characters, and this would have {len(text):,}")
    return text


def _field(value: Any, names: Mapping[str, Any]) -> Any:
    """The value of a record's field. Raises ToolError for a list or a record, which none holds."""
    found = value_of(value, names)
    if isinstance(found, list | dict):
        raise ToolError("a field holds one value, and no list or record")
    return found


def _named(name: str, field: str | None, names: Mapping[str, Any]) -> Any:
    return names[name][field] if field else names[name]


def _key(value: Any, names: Mapping[str, Any]) -> str:
    return str(value_of(value, names))


def _record(state: Tables, table: str, key: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    found = state.get(table, {}).get(_key(key, names))
    if found is None:
        raise ToolError(f"there is no {_key(key, names)!r} in {table}")
    return found


def _get(state: Tables, table: str, key: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    return {"key": _key(key, names), **_record(state, table, key, names)}


def _find(state: Tables, step: FindStep, names: Mapping[str, Any]) -> list[dict[str, Any]]:
    wanted = {field: value_of(value, names) for field, value in step.where.items()}
    records = sorted(state.get(step.table, {}).items())
    found = [{"key": key, **record} for key, record in records if all(record[field] == value for field, value in wanted.items())]
    if not found:
        raise ToolMiss(f"No {step.table} with {', '.join(f'{field} {value!r}' for field, value in wanted.items())}.")
    return found[:MOST_FOUND]


def _require(step: RequireStep, names: Mapping[str, Any]) -> None:
    left, right = value_of(step.left, names), value_of(step.right, names)
    try:
        holds = _COMPARISONS[step.comparison](left, right)
    except TypeError as error:
        raise ToolError(f"{left!r:.80} and {right!r:.80} cannot be compared") from error
    if not holds:
        raise ToolError(str(value_of(step.otherwise, names)))


def _insert(state: Tables, step: InsertStep, names: Mapping[str, Any]) -> None:
    key, table = _key(step.key, names), state.setdefault(step.table, {})
    if key in table:
        raise ToolError(f"there is a {key!r} in {step.table} already")
    table[key] = {field: _field(value, names) for field, value in step.record.items()}
