"""A running tool world: one in-memory SQLite database per trajectory, and the tools over it.

A definition comes with a task, which may come from anywhere, so its SQL is untrusted. Restrictions:

    authorizer        SELECT; INSERT, UPDATE and DELETE on its own tables; the functions of `_FUNCTIONS`; nothing else
    progress handler  a call stops after a bounded number of steps of SQLite's virtual machine
    limits            database pages, bytes of a value or row, expression depth, returned rows and characters
    clock             "now" is the same moment in every world; there are no random functions

A trajectory's effect is a difference of tables, see `ToolDatabase.changes`.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from eval.graders.state import changes
from rl.envs.tool_world.definition import Rows, Statement, ToolDefinition, WorldDefinition, split_statements
from rl.tools import Tool, ToolError, ToolFault, ToolMiss
from rl.tools.arguments import ArgumentsSchema
from rl.tools.config import CallRules
from rl.tools.tool import StatelessTool, ToolResponse, check_name, to_response

MOST_ROWS = 50
"""Maximum rows that a call returns."""
LONGEST_RESULT = 8_000
"""Maximum characters that a call returns."""
MOST_STEPS = 250_000
"""Maximum virtual-machine steps of a call."""
MOST_PAGES = 256
"""Maximum database pages, of 4 KiB each."""
MOST_TABLES = 12
NOW = "2026-01-05 09:00:00"
"""The current time in every world: a Monday."""
_STEPS_PER_TICK = 1_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 8_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 40,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 40,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 64,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 8,
}
_CLOCKS = frozenset({"date", "time", "datetime", "julianday", "unixepoch", "strftime"})
_TIMES = {"current_date": NOW[:10], "current_time": NOW[11:], "current_timestamp": NOW}
_PURE = """
abs avg changes coalesce count dense_rank first_value format group_concat glob ifnull iif instr json json_array json_array_length json_each
json_extract json_group_array json_group_object json_object json_type json_valid lag last_insert_rowid last_value lead length like lower
ltrim max min nullif printf quote rank replace round row_number rtrim sign substr substring sum total trim typeof upper -> ->>
"""
_FUNCTIONS = frozenset({*_CLOCKS, *_TIMES, *_PURE.split()})
_VIRTUAL = frozenset({"json_each"})
_WRITES = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_SCHEMA_ACTIONS = frozenset({sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_READ})
_MASTER = frozenset({"sqlite_master", "sqlite_schema"})
Tables = dict[str, dict[str, dict[str, Any]]]
"""See `eval.graders.state.State`."""


@dataclass(frozen=True, slots=True)
class _Table:
    """How the rows of a table are identified.

    `key` are the columns of the primary key. `generated` is True if SQLite assigns it as a counter; it then depends on earlier inserts and
    only identifies the initial rows. `parents` maps columns to the tables they reference.
    """

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    generated: bool
    parents: Mapping[str, str]


class ToolDatabase:
    """World of one trajectory; not thread-safe."""

    def __init__(self, definition: WorldDefinition) -> None:
        """Create the database and check every statement.

        Raises:
            ValueError: SQLite rejects part of the definition; the message says what and where.
        """
        self.definition = definition
        self._known: frozenset[str] | None = None
        self._open()
        with self._checked("tables"):
            self._connection.executescript("\n".join(map(_without_reuse, split_statements(definition.tables))))
        with self._trusted():
            self._tables = {table.name: table for table in self._read_tables()}
        if not 0 < len(self._tables) <= MOST_TABLES:
            raise ValueError(f"tables: a world has 1 to {MOST_TABLES} tables, and this has {len(self._tables)}")
        self._known = frozenset(name.lower() for name in self._tables)
        with self._checked("rows"), self._trusted():
            self._fill(definition.rows)
        for name, tool in definition.tools.items():
            self.check_tool(name, tool)
        self._began = {table.name: frozenset(self._ids(table)) for table in self._tables.values() if table.generated}
        self._before = self._state()
        self._seen, self._changes = self._connection.total_changes, dict[str, Any]()

    @property
    def columns(self) -> dict[str, str]:
        """SQL type by column name; on duplicate names, that of the first table."""
        pairs = [pair for table in reversed(self._tables.values()) for pair in zip(table.columns, table.types, strict=True)]
        return dict(pairs)

    @property
    def tools(self) -> dict[str, Tool]:
        return {name: SqlTool(name, tool, self) for name, tool in self.definition.tools.items()}

    def check_tool(self, name: str, tool: ToolDefinition) -> None:
        """Compile the statements of a tool. Raises ValueError if one is invalid or uses an undeclared parameter."""
        for number, statement in enumerate(tool.statements, 1):
            place = f"tools.{name}: statement {number}"
            with self._checked(place):
                unknown = self.parameters_of(statement.sql) - tool.parameters.keys()
            if unknown:
                raise ValueError(f"{place}: the parameter :{min(unknown)} is not declared")

    def parameters_of(self, sql: str) -> set[str]:
        """Parameter names of a statement, which is compiled but not executed. Raises sqlite3.Error if it does not compile."""
        asked = _AskedNames()
        self._connection.execute(f"EXPLAIN {sql}", asked).close()
        return asked.names

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool and return its result. If the call raises, its changes are rolled back.

        Raises:
            ToolError, ToolMiss: the call is refused, or finds nothing.
            ToolFault: the tool itself fails, or takes too many steps.
        """
        tool = self.definition.tools[name]
        bound = {key: tool.parameters[key].bound(value) for key, value in arguments.items()}
        return self.execute(tool.statements, bound)

    def execute(self, statements: Sequence[Statement], bound: Mapping[str, Any]) -> Any:
        """Execute statements as one transaction. Raises as `call` does."""
        self._ticks = 0
        try:
            self._trusted_execute("BEGIN")
            result = self._run(statements, bound)
            self._trusted_execute("COMMIT")
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            raise ToolError(str(error)) from error
        except (sqlite3.Error, sqlite3.Warning) as error:
            if "full" in str(error):
                raise ToolError("the database is full") from error
            reason = f"it takes more than {MOST_STEPS:,} steps" if "interrupted" in str(error) else str(error)
            raise ToolFault(f"its SQL failed: {reason}") from error
        finally:
            if self._connection.in_transaction:
                self._trusted_execute("ROLLBACK")
        return result

    def rows(self) -> Rows:
        """All rows, in the format of a definition."""
        with self._trusted():
            return {
                name: [dict(zip(table.columns, row, strict=True)) for row in self._select(table)] for name, table in self._tables.items()
            }

    def query(self, sql: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Run a trusted query, without limits, and return its rows."""
        with self._trusted():
            cursor = self._connection.execute(sql, values or {})
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def changes(self) -> dict[str, Any]:
        """Changes since the start: `table/key/column` → value, null if deleted; see `eval.graders.state`."""
        if self._connection.total_changes != self._seen:
            self._seen, self._changes = self._connection.total_changes, changes(self._before, self._state())
        return dict(self._changes)

    def names(self) -> frozenset[str]:
        """Texts in the rows, of at least 3 characters, that begin with a capital or contain a digit."""
        texts = (value for rows in self.rows().values() for row in rows for value in row.values() if isinstance(value, str))
        return frozenset(text for text in texts if len(text) > 2 and (text[0].isupper() or any(map(str.isdigit, text))))

    def copy(self) -> ToolDatabase:
        """Copy the database in its current state, with the same initial state."""
        other = copy(self)
        other._open()
        with other._trusted():
            self._connection.backup(other._connection)
        other._seen = -1
        return other

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> None:
        # No statement cache: a statement compiled while trusted would also run for a tool.
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0)
        self._ticks, self._is_trusted = 0, False
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        for pragma in (f"max_page_count = {MOST_PAGES}", "temp_store = MEMORY", "foreign_keys = ON"):
            self._connection.execute(f"PRAGMA {pragma}").close()
        self._connection.execute("SELECT 1 FROM json_each('[]')").close()  # declares this virtual table, which SQLite does on first use
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        for name in _CLOCKS:
            self._connection.create_function(name, -1, partial(_at_now, name))
        for name, moment in _TIMES.items():
            self._connection.create_function(name, 0, partial(str, moment))
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._tick, _STEPS_PER_TICK)

    def _authorize(self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
        allowed = self._is_trusted or self._may(action, first or "", second or "", database)
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _may(self, action: int, first: str, second: str, database: str | None) -> bool:
        table = first.lower()
        if action == sqlite3.SQLITE_FUNCTION:
            return second.lower() in _FUNCTIONS
        if action == sqlite3.SQLITE_SELECT:
            return True
        if self._known is None:  # while creating tables, SQLite itself writes to its master table
            return database == "main" and (action in _SCHEMA_ACTIONS or (action in _WRITES and table in _MASTER))
        if action == sqlite3.SQLITE_READ:  # without a column, `table` may be a common table expression
            return table in self._known or table in _VIRTUAL or (not second and not table.startswith(("sqlite_", "pragma_")))
        return action in _WRITES and table in self._known and database == "main"

    def _tick(self) -> int:
        self._ticks += 1
        return int(self._ticks * _STEPS_PER_TICK > MOST_STEPS and not self._is_trusted)

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        self._is_trusted = True
        try:
            yield
        finally:
            self._is_trusted = False

    def _trusted_execute(self, sql: str) -> None:
        with self._trusted():
            self._connection.execute(sql).close()

    @contextmanager
    def _checked(self, place: str) -> Iterator[None]:
        """Convert SQLite errors to ValueError with `place`."""
        self._ticks = 0
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeEncodeError) as error:
            raise ValueError(f"{place}: {error}") from error

    def _run(self, statements: Sequence[Statement], bound: Mapping[str, Any]) -> Any:
        result: Any = "done"
        for statement in statements:
            cursor = self._connection.execute(statement.sql, bound)
            is_query = cursor.rowcount < 0 and cursor.description is not None
            rows = cursor.fetchmany(MOST_ROWS + 1)
            changed, names = cursor.rowcount, [column[0] for column in cursor.description or ()]
            cursor.close()
            if not rows if is_query else changed < 1 and not rows:
                if statement.otherwise or not is_query:
                    raise ToolError(statement.otherwise or "no row was changed")
                result = None
            elif rows and not (is_query and statement.otherwise):
                shown = [{name: _shown(value) for name, value in zip(names, row, strict=True)} for row in rows[:MOST_ROWS]]
                result = [*shown, "more rows are not shown"] if len(rows) > MOST_ROWS else shown
        if result is None:
            raise ToolMiss("Nothing was found.")
        return result

    def _read_tables(self) -> Iterator[_Table]:
        execute = self._connection.execute
        inserted = [statement.sql for tool in self.definition.tools.values() for statement in tool.statements]
        for (name,) in execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'").fetchall():
            columns = execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            key = tuple(column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5])
            counted = len(key) == 1 and next(column[2] for column in columns if column[5]).upper() == "INTEGER"
            parents = {row[3]: row[2] for row in execute(f"PRAGMA foreign_key_list({_quoted(name)})")}
            generated = counted and not any(_gives(sql, name, key[0]) for sql in inserted)
            yield _Table(name, tuple(c[1] for c in columns), tuple(c[2] for c in columns), key, generated, parents)

    def _fill(self, rows: Rows) -> None:
        self._connection.execute("BEGIN")
        self._connection.execute("PRAGMA defer_foreign_keys = ON")
        for table, records in rows.items():
            for names, group in groupby(records, key=tuple):
                columns, marks = ", ".join(map(_quoted, names)), ", ".join("?" * len(names))
                values = [tuple(record.values()) for record in group]
                self._connection.executemany(f"INSERT INTO {_quoted(table)} ({columns}) VALUES ({marks})", values)
        self._connection.execute("COMMIT")

    def _select(self, table: _Table) -> list[tuple[Any, ...]]:
        return self._connection.execute(f"SELECT {', '.join(map(_quoted, table.columns))} FROM {_quoted(table.name)}").fetchall()

    def _ids(self, table: _Table) -> Iterable[Any]:
        place = table.columns.index(table.key[0])
        with self._trusted():
            return [row[place] for row in self._select(table)]

    def _state(self) -> Tables:
        """All rows by key, without NULLs.

        The key of a row is its primary key. A row inserted under a generated key, or in a table without key, is identified by its content
        instead, in which generated keys of other new rows are replaced by those rows' content. The state thus does not depend on the order
        of inserts or on earlier mistakes.
        """
        with self._trusted():
            found = {
                table.name: [dict(zip(table.columns, row, strict=True)) for row in self._select(table)] for table in self._tables.values()
            }
        naming = _Naming(self._tables, self._began, found)
        state: Tables = {}
        for name, table in self._tables.items():
            counted = Counter[str]()
            rows = state[name] = {}
            for row in found[name]:
                key = naming.key(table, row)
                counted[key] += 1
                key = key if counted[key] == 1 else f"{key}#{counted[key]}"
                fields = {column: _shown(value) for column, value in naming.content(table, row).items() if value is not None}
                rows[key] = fields or {column: _shown(value) for column, value in row.items() if value is not None}
        return state


class _Naming:
    """Keys and contents of rows; see `ToolDatabase._state`."""

    def __init__(self, tables: Mapping[str, _Table], began: Mapping[str, frozenset[Any]], rows: Mapping[str, list[dict[str, Any]]]) -> None:
        self._began = began
        self._tables = {name.lower(): table for name, table in tables.items()}
        self._by_id = {name: {row[tables[name].key[0]]: row for row in rows[name]} for name in began}

    def key(self, table: _Table, row: Mapping[str, Any], depth: int = 0) -> str:
        if table.key and not (table.generated and row[table.key[0]] not in self._began[table.name]):
            values = [_shown(row[column]) for column in table.key]
            return str(values[0]) if len(values) == 1 else json.dumps(values, ensure_ascii=False)
        return "new " + json.dumps({name: _shown(value) for name, value in self.content(table, row, depth).items()}, ensure_ascii=False)

    def content(self, table: _Table, row: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
        """Columns outside the row's key; all columns if there are no others."""
        columns = [column for column in table.columns if column not in table.key] or table.columns
        return {column: self._named(table.parents.get(column), row[column], depth) for column in columns}

    def _named(self, parent: str | None, value: Any, depth: int) -> Any:
        table = self._tables.get((parent or "").lower())
        if table is None or not table.generated or value in self._began[table.name] or depth > 3:
            return value
        row = self._by_id[table.name].get(value)
        return value if row is None else self.key(table, row, depth + 1)


class SqlTool(StatelessTool):
    """One tool of a world."""

    def __init__(self, name: str, definition: ToolDefinition, database: ToolDatabase) -> None:
        rules = CallRules(max_characters=LONGEST_RESULT)
        super().__init__(check_name(name), definition.description, definition.json_schema, rules)
        self._database = database

    async def call(self, values: Mapping[str, Any]) -> ToolResponse:
        _checker(self.name, json.dumps(self.parameters)).check(values)
        return to_response(self._database.call(self.name, values), self.rules)


@lru_cache(maxsize=512)
def _checker(name: str, schema: str) -> ArgumentsSchema:
    return ArgumentsSchema(json.loads(schema), name)


class _AskedNames(dict[str, None]):
    """Binding that accepts any parameter name and records the names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __missing__(self, name: str) -> None:
        self.names.add(name)


_HELPER = sqlite3.connect(":memory:", check_same_thread=False)
"""Provides SQLite's original time functions."""


def _at_now(name: str, *values: Any) -> Any:
    """SQLite's time function `name` with "now" fixed to `NOW`."""
    leading = 1 if name == "strftime" else 0
    given = [NOW if isinstance(value, str) and value.lower() == "now" else value for value in values]
    given = given if len(given) > leading else [*given, NOW]
    return _HELPER.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]


def _without_reuse(statement: str) -> str:
    """Add AUTOINCREMENT to a CREATE TABLE statement, so that generated keys of deleted rows are not reused."""
    if re.search(r"\bWITHOUT\s+ROWID\b", statement, re.IGNORECASE):
        return statement
    return re.sub(r"\bINTEGER\s+PRIMARY\s+KEY\b(?!\s+(?:ASC|DESC|AUTOINCREMENT))", r"\g<0> AUTOINCREMENT", statement, flags=re.IGNORECASE)


def _gives(sql: str, table: str, column: str) -> bool:
    """Whether a statement inserts into `table` with an explicit value of `column`."""
    found = re.search(
        rf"\b(?:INSERT|REPLACE)\b.*?\bINTO\s+[\"`\[]?{re.escape(table)}\b[\"`\]]?\s*(\([^)]*\))?", sql, re.IGNORECASE | re.DOTALL
    )
    return found is not None and (found[1] is None or re.search(rf"\b{re.escape(column)}\b", found[1], re.IGNORECASE) is not None)


def _shown(value: Any) -> Any:
    """Convert a value to JSON-compatible form."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
