"""Layout of a world's SQLite tables, and the columns from which tool parameters take their values.

Rows, tools and tasks of a written world are derived from it: valid references, valid parameter values, and ids that a person does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import json_type

MOST_TABLES, MOST_COLUMNS = 6, 7


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `numbered`: a key that SQLite assigns; `parent`: table whose key it references; `options`: values allowed by CHECK IN."""

    table: str
    name: str
    type: str
    sql_type: str
    required: bool
    in_key: bool
    numbered: bool
    parent: str | None
    options: tuple[str, ...]

    @property
    def is_id(self) -> bool:
        """Whether it identifies a row of its own table or of another one."""
        return self.parent is not None or (self.in_key and self.numbered)

    @property
    def is_name(self) -> bool:
        """Whether it names a row for people."""
        return self.type == "string" and any(word in ("name", "title") for word in self.name.lower().split("_"))


Layout = Mapping[str, tuple[Column, ...]]
"""Columns by table; a table follows those it references."""

_INTEGER = re.compile(r"\b(?:INT|BIGINT|SERIAL)\b", re.IGNORECASE)
_COUNTED = re.compile(r"\s+AUTO_?INCREMENT\b", re.IGNORECASE)
_OPTIONS = r"\b{}[\"`\]]?\s+IN\s*\(([^()]*)\)"
_QUOTED = re.compile(r"'((?:[^']|'')*)'")


def in_dialect(tables: str) -> str:
    """Replace other databases' integer types and AUTO_INCREMENT in CREATE statements by SQLite's."""
    return _COUNTED.sub("", _INTEGER.sub("INTEGER", tables))


def read_layout(database: ToolDatabase) -> Layout:
    """Tables of a database, referenced ones first. Raises ValueError with a message for the writer if rows could not be created."""
    listed = database.query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid")
    names = [row["name"] for row in listed]
    if not 2 <= len(names) <= MOST_TABLES:
        raise ValueError(f"there must be 2 to {MOST_TABLES} tables, and there are {len(names)}")
    layout = {name: tuple(_columns(database, name)) for name in names}
    if not any(column.parent for columns in layout.values() for column in columns):
        raise ValueError("no table refers to another one: add a foreign key by REFERENCES")
    return dict(_ordered(layout))


def pointless(layout: Layout) -> set[str]:
    """Tables that no other table references and that add nothing about another one, such as one for the desk."""
    referred = {column.parent for columns in layout.values() for column in columns}
    found = set[str]()
    for name, columns in layout.items():
        parents = sum(column.parent is not None for column in columns)
        adds = any(not column.in_key and column.parent is None for column in columns)
        if name not in referred and (not parents or (parents == 1 and not adds)):
            found.add(name)
    return found


def _columns(database: ToolDatabase, table: str) -> Iterator[Column]:
    known = {name.lower(): name for name in database.rows()}
    parents = dict[str, str]()
    for row in database.query(f'PRAGMA foreign_key_list("{table}")'):
        parent = known.get(row["table"].lower())
        if parent is None:
            raise ValueError(f"{table}.{row['from']} refers to the table {row['table']}, which does not exist")
        keys = [each["name"] for each in database.query(f'PRAGMA table_info("{parent}")') if each["pk"]]
        if len(keys) != 1 or (row["to"] or keys[0]).lower() != keys[0].lower():
            raise ValueError(f"{table}.{row['from']} must refer to the primary key of {parent}, which must be one column")
        parents[row["from"]] = parent
    found = database.query(f'PRAGMA table_info("{table}")')
    keys = [row["name"] for row in found if row["pk"]]
    if not keys:
        raise ValueError(f"the table {table} has no primary key")
    if len(found) > MOST_COLUMNS:
        raise ValueError(f"the table {table} has {len(found)} columns: leave only the {MOST_COLUMNS - 1} that matter most")
    (sql,) = (row["sql"] for row in database.query("SELECT sql FROM sqlite_schema WHERE name = :name", {"name": table}))
    for row in found:
        name, kind, key = row["name"], json_type(row["type"] or "text"), bool(row["pk"])
        options = re.search(_OPTIONS.format(re.escape(name)), sql, re.IGNORECASE)
        yield Column(
            table,
            name,
            kind,
            row["type"].upper(),
            bool(row["notnull"]) or key,
            key,
            numbered=key and len(keys) == 1 and kind == "integer" and name not in parents,
            parent=parents.get(name),
            options=tuple(_QUOTED.findall(options[1])) if options and kind == "string" else (),
        )


def _ordered(layout: Layout) -> Iterator[tuple[str, tuple[Column, ...]]]:
    left, done = dict(layout), set[str]()
    while left:
        ready = [name for name, columns in left.items() if all(c.parent in (None, *done) for c in columns)]
        if not ready:
            raise ValueError(f"the tables {', '.join(left)} refer to each other or to themselves: remove one of the foreign keys")
        for name in ready:
            yield name, left.pop(name)
        done.update(ready)


def levels(layout: Layout) -> list[list[str]]:
    """Tables in groups, each of which references earlier groups only."""
    depth = dict[str, int]()
    for table, columns in layout.items():
        depth[table] = max((depth[column.parent] + 1 for column in columns if column.parent), default=0)
    return [[table for table in layout if depth[table] == level] for level in range(max(depth.values()) + 1)]


class Kind(StrEnum):
    """Whether a tool finds rows or changes them."""

    FIND = "find"
    CHANGE = "change"


def operations(layout: Layout) -> dict[str, Kind]:
    """Descriptions of possible tools over these tables, most useful first, since small models choose from the top.

    Things and people are found by name, events between them by the people and things involved; changes to events come first.
    """
    named, listed, events, things = list[str](), list[str](), list[str](), list[str]()
    for table, columns in reversed(list(layout.items())):
        parents = [c for c in columns if c.parent]
        texts = sorted((c for c in columns if c.type == "string" and not c.parent and not c.options), key=lambda c: not c.is_name)
        names = [c for c in texts if c.is_name] or ([] if parents else texts[:1])
        named = [*(_find(c) for c in names), *named]
        listed = [*(_find(c) for c in parents), *listed, *(_find(c) for c in texts if c not in names)]
        fields = sorted((c for c in columns if not c.in_key and not c.parent), key=lambda c: c.is_name)
        added, removed = f"add to {table}", f"remove one of the {table}"
        if parents:
            events += [added, *map(_change, fields[:1]), removed, *map(_change, [*fields[1:], *parents])]
        else:
            things += [*map(_change, fields), added, removed]
    return dict.fromkeys([*named, *listed], Kind.FIND) | dict.fromkeys([*events, *things], Kind.CHANGE)


def _find(column: Column) -> str:
    return f"find {column.table} by {words_of(column.name)}"


def _change(column: Column) -> str:
    return f"change the {words_of(column.name)} of one of the {column.table}"


def words_of(name: str) -> str:
    return name.removesuffix("_id").replace("_", " ").strip().lower()


class Use(StrEnum):
    """Use of a parameter: find rows by it, set it in found rows, insert it, or add it to a number."""

    FIND = "find"
    SET = "set"
    INSERT = "insert"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Place:
    """Column that a tool parameter is compared with or written to."""

    column: Column
    use: Use


_KEYWORDS = "AS|CROSS|FULL|GROUP|INNER|JOIN|LEFT|LIMIT|NATURAL|ON|ORDER|OUTER|RIGHT|SET|USING|VALUES|WHERE"
_TABLES = re.compile(rf"\b(?:FROM|JOIN|UPDATE|INTO)\s+[\"`]?(\w+)[\"`]?(?:\s+(?:AS\s+)?(?!(?:{_KEYWORDS})\b)(\w+))?", re.IGNORECASE)
_COMPARED = re.compile(
    r"(?:(\w+)\.)?(\w+)\s*\)?\s*(?:==?|<>|!=|<=|>=|<|>|\bLIKE\b|\bIS\b)\s*(?:\w+\s*\(\s*)?(?:'[^']*'\s*\|\|\s*)?(?:(\w+)\s*[-+]\s*)?:(\w+)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(?:(\w+)\.)?(\w+)\s+BETWEEN\s+:(\w+)\s+AND\s+:(\w+)", re.IGNORECASE)
_INSERTED = re.compile(r"\bINTO\s+[\"`]?(\w+)[\"`]?\s*\(([^)]*)\)\s*(?:VALUES\s*\(|SELECT\b)(.*)", re.IGNORECASE | re.DOTALL)


def places_of(statements: Iterable[str], layout: Layout) -> dict[str, Place]:
    """Place of each parameter; FIND takes precedence. A parameter in no comparison is matched to a column by name, if possible."""
    found = dict[str, Place]()
    named = set[str]()
    for sql in statements:
        tables = _tables_of(sql, layout)
        named |= set(re.findall(r":(\w+)", sql))
        for name, written, use in _uses(sql):
            place = _place(written, tables, layout, use)
            if place and (name not in found or use is Use.FIND):
                found[name] = place
        for name in named - found.keys():
            column = next((c for c in _all(tables, layout) if name == c.name or name.endswith(f"_{c.name}")), None)
            if column is not None:
                found[name] = Place(column, Use.FIND)
    return found


def table_of(sql: str, layout: Layout) -> str | None:
    """First table named by a statement, or None."""
    return next(iter(_tables_of(sql, layout).values()), None)


def _uses(sql: str) -> Iterator[tuple[str, tuple[str, str], Use]]:
    """Parameter, qualifier and name of its column, and use."""
    if inserted := _INSERTED.search(sql):
        columns = [each.strip(' "`') for each in inserted[2].split(",")]
        for column, value in zip(columns, _at_top(inserted[3]), strict=False):
            if given := re.fullmatch(r"\s*:(\w+)\s*", value):
                yield given[1], (inserted[1], column), Use.INSERT
    where = re.search(r"\bWHERE\b", sql, re.IGNORECASE)
    updates = re.match(r"\s*UPDATE\b", sql, re.IGNORECASE) is not None
    for compared in _COMPARED.finditer(sql):
        written = updates and (where is None or compared.start() < where.start())
        yield compared[4], (compared[1] or "", compared[2]), (Use.ADD if compared[3] else Use.SET) if written else Use.FIND
    for between in _BETWEEN.finditer(sql):
        for name in (between[3], between[4]):
            yield name, (between[1] or "", between[2]), Use.FIND


def _tables_of(sql: str, layout: Layout) -> dict[str, str]:
    known = {name.lower(): name for name in layout}
    found = dict[str, str]()
    for table, alias in _TABLES.findall(sql):
        if table.lower() in known:
            found[table.lower()] = known[table.lower()]
            found.setdefault(alias.lower() or table.lower(), known[table.lower()])
    return found


def _place(column: tuple[str, str], tables: Mapping[str, str], layout: Layout, use: Use) -> Place | None:
    qualifier, name = column
    among = {qualifier.lower(): tables[qualifier.lower()]} if qualifier.lower() in tables else tables
    return next((Place(each, use) for each in _all(among, layout) if each.name.lower() == name.lower()), None)


def _all(tables: Mapping[str, str], layout: Layout) -> Iterator[Column]:
    for table in dict.fromkeys(tables.values()):
        yield from layout[table]


def _at_top(text: str) -> list[str]:
    """Parts of a list between top-level commas, up to its closing bracket."""
    parts, depth, start = list[str](), 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0 or (letter == "," and depth == 0):
            parts.append(text[start:place])
            start = place + 1
        if depth < 0:
            return parts
    return [*parts, text[start:]]
