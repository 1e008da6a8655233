"""Find solutions of tasks in a written world by calling its tools; a teacher then words them as questions (`world_writer.py`).

Each tool is tried with values of the rows. Successful calls are joined backwards, as AutoForge joins tools by inputs and outputs (arXiv
2512.22857): an id that a person does not know, such as the key of a loan, is found by another tool from what the person knows. Calls,
changes and answer are thus known and correct before the question is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random
from typing import Any

from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import Parameter, Rows, ToolDefinition, Value, WorldDefinition
from rl.tools import ToolError, ToolFault, ToolMiss
from synth.worlds.layout import Column, Layout, Place, Use, places_of, table_of, words_of
from warehouse.digests import digest

TRIES = 60
"""Calls made to try a tool."""
MOST_SEEN = 30
"""Maximum successful calls of a tool that solutions are built from."""
MOST_FOUND = 2
"""Maximum chained calls to find one value."""
LONGEST_VALUE = 60
"""Maximum characters of a value in a question or answer."""
_DAY = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])")


@dataclass(frozen=True, slots=True)
class Seen:
    """A successful call in the initial world, with the rows it returned and the changes it made."""

    tool: str
    arguments: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WorldSolution:
    """Calls that fulfil a wish, and constraints on the question's text.

    `details` describe what the person knows of each parameter; `told` are the values among them, `hidden` those found by calls.
    """

    calls: tuple[Seen, ...]
    details: tuple[str, ...]
    told: tuple[Value, ...]
    hidden: tuple[Value, ...]
    asked: str = ""
    """Description of the answer."""
    answer: str | None = None

    @property
    def wish(self) -> Seen:
        return self.calls[-1]


class Explorer:
    """Tries tools in a world and builds solutions from successful calls.

    Args:
        world: tables and rows.
        spare: rows written for the world but not in it, used for new values.
    """

    def __init__(self, world: WorldDefinition, layout: Layout, spare: Rows, rng: Random) -> None:
        self._layout, self._spare, self._rng = layout, spare, rng
        self._database = ToolDatabase(world)
        self._rows = {name: list(rows) for name, rows in self._database.rows().items()}
        self.seen: dict[str, list[Seen]] = {}
        self._places: dict[str, dict[str, Place]] = {}
        self._about: dict[str, str | None] = {}

    def try_tool(self, name: str, tool: ToolDefinition) -> str | None:
        """Call a tool with values of the rows and store successful calls; return the reason if none succeeds, else None."""
        statements = [statement.sql for statement in tool.statements]
        places = places_of(statements, self._layout)
        for parameter in tool.parameters:
            if parameter not in places:
                return f"the parameter :{parameter} is not compared with a column or written to one"
        found, reason = dict[str, Seen](), "it cannot be called with the rows of the tables"
        for _ in range(TRIES if tool.parameters else 1):
            arguments = self._arguments(tool, places)
            if arguments is None or (identity := digest(arguments)) in found:
                continue
            made = self._call(name, tool, arguments)
            if isinstance(made, Seen):
                found[identity] = made
            else:
                reason = f"called with {', '.join(f'{key} = {value!r}' for key, value in arguments.items())}: {made}"
            if len(found) == MOST_SEEN:
                break
        if not found:
            return reason
        self.seen[name], self._places[name], self._about[name] = list(found.values()), places, table_of(statements[-1], self._layout)
        return None

    def solutions(self, name: str) -> Iterator[WorldSolution]:
        """Yield different solutions whose last call is of this tool, in random order."""
        known = set[str]()
        seen = self._rng.sample(self.seen[name], len(self.seen[name]))
        for wish in [*seen, *seen]:
            solution = self._solution(wish)
            identity = solution and digest([[each.tool, dict(each.arguments)] for each in solution.calls] + [solution.asked])
            if solution is not None and identity not in known:
                known.add(str(identity))
                yield solution

    def _solution(self, wish: Seen) -> WorldSolution | None:
        way = _Way()
        details = [str(self._known(way, wish.tool, name, value, MOST_FOUND)) for name, value in wish.arguments.items()]
        if wish.changes:
            return way.to(wish, details)
        answers = list(self._answers(wish, way))
        if not answers:
            return None
        asked, answer, picked = self._rng.choice(answers)
        way.told += picked.values()
        owner = self._about[wish.tool]
        asked = f"{words_of(asked)} of the {_singular(owner)}" if owner else words_of(asked)
        return way.to(wish, [*details, *(f"{words_of(column)}: {value}" for column, value in picked.items())], asked, answer)

    def _known(self, way: _Way, tool: str, name: str, value: Value, depth: int) -> _Known:
        """What a person knows of an argument: its value, or what calls find it by; those calls are added to `way`."""
        column = self._places[tool][name].column
        label = _label(name, column)
        found = self._finding(column, value, depth) if column.is_id else None
        if found is None:
            way.told.append(value)
            return _Known(label, str(value))
        call, picked = found
        clauses = [self._known(way, call.tool, key, each, depth - 1).clause for key, each in call.arguments.items()]
        clauses += [_Known(words_of(key), str(each)).clause for key, each in picked.items()]
        way.told += picked.values()
        way.hidden.append(value)
        if call not in way.calls:
            way.calls.append(call)
        return _Known(label, " and ".join(clauses) or "the only one", found=True)

    def _finding(self, column: Column, value: Value, depth: int) -> tuple[Seen, Mapping[str, Value]] | None:
        """A call about the key's table that returns `value` without being given it, and the columns that select its row."""
        if depth == 0:
            return None
        found = [
            (call, picked)
            for tool, calls in self.seen.items()
            if self._about[tool] == (column.parent or column.table)
            for call in calls
            if not call.changes and value not in call.arguments.values() and (picked := self._picked(call.rows, value)) is not None
        ]
        return self._rng.choice(found) if found else None

    def _picked(self, rows: Sequence[Mapping[str, Any]], value: Value) -> Mapping[str, Value] | None:
        """Columns that select the row with `value`: empty if all rows have it, None if no row can be selected."""
        for column in rows[0] if rows else ():
            holding = [row for row in rows if row.get(column) == value and type(row.get(column)) is type(value)]
            if len(holding) == len(rows):
                return {}
            if len(holding) == 1 and (picking := self._picking(rows, holding[0], {column})):
                return dict([self._rng.choice(picking)])
        return None

    def _picking(self, rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], but: set[str]) -> list[tuple[str, Value]]:
        return [
            (column, value)
            for column, value in row.items()
            if column not in but and _sayable(value) and isinstance(value, str) and sum(each.get(column) == value for each in rows) == 1
        ]

    def _answers(self, wish: Seen, way: _Way) -> Iterator[tuple[str, str, Mapping[str, Value]]]:
        """Column and value of possible answers, and the column that selects the row among several."""
        known = {*wish.arguments.values(), *way.told, *way.hidden}
        ids = {column.name for columns in self._layout.values() for column in columns if column.is_id}
        for row in wish.rows:
            for column, value in row.items():
                if not _sayable(value) or value in known or column in ids or column.lower() == "id" or value in (0, 1):
                    continue
                if len({each.get(column) for call in self.seen[wish.tool] for each in call.rows}) < 2:
                    continue  # guessable
                picking = [pair for pair in self._picking(wish.rows, row, {column}) if pair[1] not in known]
                if len(wish.rows) == 1:
                    yield column, str(value), {}
                elif picking:
                    yield column, str(value), dict([self._rng.choice(picking)])

    def _call(self, name: str, tool: ToolDefinition, arguments: Mapping[str, Any]) -> Seen | str:
        """The call with its result, or the reason why it yields nothing."""
        database = self._database.copy()
        try:
            bound = {key: tool.parameters[key].bound(value) for key, value in arguments.items()}
            result = database.execute(tool.statements, bound)
            changes = database.changes()
        except (ToolError, ToolMiss, ToolFault) as error:
            return str(error)
        finally:
            database.close()
        rows = tuple(row for row in result if isinstance(row, Mapping)) if isinstance(result, list) else ()
        return Seen(name, arguments, rows, changes) if rows or changes else "it shows nothing and changes nothing"

    def _arguments(self, tool: ToolDefinition, places: Mapping[str, Place]) -> dict[str, Any] | None:
        """Arguments for a call: values of related rows, and new values to write; None if one does not fit."""
        picked = self._together([place.column.table for place in places.values() if place.use is Use.FIND])
        new = {name: self._rng.choice(rows) if (rows := self._spare.get(name) or self._rows[name]) else {} for name in self._layout}
        arguments = dict[str, Any]()
        for name, parameter in tool.parameters.items():
            value = _fitting(self._value(places[name], picked, new), parameter)
            if value is None:
                return None
            arguments[name] = value
        return arguments

    def _together(self, tables: Sequence[str]) -> dict[str, Mapping[str, Value]]:
        """Related rows, one per table: rows of `tables` are drawn first, referencing tables before those they reference."""
        picked: dict[str, Mapping[str, Value]] = {}
        order = sorted(self._layout, key=lambda name: (name in tables, list(self._layout).index(name)), reverse=True)
        for name in order:
            if name not in picked and self._rows[name]:
                self._pick(name, self._rng.choice(self._rows[name]), picked)
        return picked

    def _pick(self, table: str, row: Mapping[str, Value], picked: dict[str, Mapping[str, Value]]) -> None:
        picked[table] = row
        for column in self._layout[table]:
            if column.parent and column.parent not in picked:
                key = _key(self._layout, column.parent)
                parent = next((each for each in self._rows[column.parent] if each[key] == row[column.name]), None)
                if parent is not None:
                    self._pick(column.parent, parent, picked)

    def _value(self, place: Place, picked: Mapping[str, Mapping[str, Value]], new: Mapping[str, Mapping[str, Value]]) -> Value:
        column, present = place.column, picked.get(place.column.table, {}).get(place.column.name)
        match place.use:
            case Use.FIND:
                return present
            case Use.ADD:
                return self._rng.randint(1, 3)
            case _ if column.parent:
                return self._rng.choice([row[_key(self._layout, column.parent)] for row in self._rows[column.parent]])
            case Use.INSERT:
                return new[column.table].get(column.name)
        values = [*column.options, *(row.get(column.name) for row in [*self._spare.get(column.table, ()), *self._rows[column.table]])]
        others = sorted({value for value in values if value is not None and value != present}, key=str) or _near(present)
        later = [value for value in others if _DAY.match(str(value)) and str(value) > str(present)]
        return self._rng.choice(later or others) if others else None


@dataclass(frozen=True, slots=True)
class _Known:
    """What a person knows of an argument: its value, or clauses that identify the row."""

    label: str
    words: str
    found: bool = False

    def __str__(self) -> str:
        return f"{self.label}: the {self.label} {self.words}" if self.found else f"{self.label}: {self.words}"

    @property
    def clause(self) -> str:
        return f"of the {self.label} {self.words}" if self.found else f"whose {self.label} is {self.words}"


@dataclass(slots=True)
class _Way:
    """Preparation of the last call, so far."""

    calls: list[Seen] = field(default_factory=list)
    told: list[Value] = field(default_factory=list)
    hidden: list[Value] = field(default_factory=list)

    def to(self, wish: Seen, details: Sequence[str], asked: str = "", answer: str | None = None) -> WorldSolution:
        return WorldSolution((*self.calls, wish), tuple(details), tuple(self.told), tuple(self.hidden), asked, answer)


def _near(value: Value) -> list[Value]:
    """Alternative values for a column whose rows all have the same one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value + more for more in (1, 2, 3)]
    if isinstance(value, str) and _DAY.fullmatch(value):
        return [str(date.fromisoformat(value) + timedelta(days=days)) for days in (7, 10, 14)]
    return []


def _fitting(value: Value, parameter: Parameter) -> Any:
    """Convert a row's value to an argument; None if it does not fit."""
    if value is None or (isinstance(value, str) and not _sayable(value)):
        return None
    match parameter.type:
        case "boolean":
            return bool(value)
        case "string":
            return str(value)
        case "integer":
            return value if isinstance(value, int) else None
        case "number":
            return value if isinstance(value, int | float) else None
    return None


def _key(layout: Layout, table: str) -> str:
    return next(column.name for column in layout[table] if column.in_key)


def _sayable(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool) and 0 < len(str(value)) <= LONGEST_VALUE


def _label(parameter: str, column: Column) -> str:
    words = words_of(parameter)
    return words if words not in ("id", "key", "number") else _singular(column.parent or column.table)


def _singular(table: str) -> str:
    return words_of(table).removesuffix("s")
