"""Write a tool world from a description: a teacher proposes each part, and checks decide what is kept.

    tables     compiled by SQLite, with satisfiable keys and references; without them there is no world
    rows       one table after another, parents first; each row is checked separately
    tools      planned in two lists (finding, changing), written one by one, and tried with the rows
    tasks      solutions found by calling the tools (`solutions.py`), worded one by one, and proven (`world_checks.py`)

Rejected parts are returned to the teacher with the reason (`ask_repaired`); each dropped part is a `Failure`. Tools that no kept task uses
are dropped in the end, as nothing shows that they work. Replies are cached in the lake, so a resumed run repeats no request.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from pydantic import ValidationError

from rl.envs.tool_world.conversation import RESPOND
from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import Rows, Statement, ToolDefinition, Value, WorldDefinition, json_type, written_tools
from rl.tools import ToolError, ToolFault, ToolMiss
from rl.tools.tool import check_name
from synth.questions.text_comparison import plain
from synth.teachers.teacher import MeteredTeacher, Teacher, ask_for, ask_repaired, parted
from synth.worlds.layout import Column, Kind, Layout, Use, in_dialect, levels, operations, places_of, pointless, read_layout
from synth.worlds.solutions import Explorer, WorldSolution
from synth.worlds.world_checks import TaskProof, flaw_in_words, provenance_of, word_of_databases
from synth.worlds.world_proposals import (
    PLAN,
    QUESTION,
    ROWS,
    Flaw,
    PlannedTool,
    ProposedQuestion,
    ProposedRows,
    ToolPlan,
    WorldDefect,
    WorldRequests,
    sql_in,
    statements_of,
)
from synth.worlds.writing_config import REQUESTS, WrittenWorldsConfig
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import Completion, Failure, Task
from warehouse.settings import first_error

T = TypeVar("T")

SPARE = 2
"""Extra rows requested per table, used for new values."""
FIRST_KEY = 101
"""First key of the first table; each further table starts a hundred later, so that a number identifies one row."""
MOST_PARAMETERS = 5


@dataclass(slots=True)
class WrittenTasks:
    """Tasks of one world (each contains the whole world), failures for dropped parts, and counts per part."""

    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def write_world(name: str, description: str, teacher: Teacher, config: WrittenWorldsConfig, seed: int) -> WrittenTasks:
    """Write one world from a description. `name` identifies it in failures; without a trailing number it is the domain.

    Raises:
        RequestError: the teacher is unusable.
    """
    return _Writer(name, description, teacher, config, seed).write()


class _Writer:
    def __init__(self, name: str, description: str, teacher: Teacher, config: WrittenWorldsConfig, seed: int) -> None:
        self._name, self._teacher, self._config, self._seed = name, teacher, config, seed
        self._requests = WorldRequests(description, config, seed)
        self._domain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"-\d+$", "", name).lower()).strip("_")[:40] or "service"
        self._made = WrittenTasks(counts={"worlds_proposed": 1})

    def write(self) -> WrittenTasks:
        tables = self._tables()
        if tables is None:
            return self._made
        empty, layout = tables
        with ThreadPoolExecutor(1) as thread:  # rows and plan are independent
            planning = thread.submit(self._plan, layout)
            rows, spare = self._rows(empty, layout)
            plan = planning.result()
        world = empty.definition.model_copy(update={"rows": rows})
        explorer = Explorer(world, layout, spare, Random(seed_from("explorer", self._seed)))
        world = world.model_copy(update={"tools": self._tools(plan, ToolDatabase(world), layout, explorer)})
        self._finish(world, self._tasks(world, explorer))
        return self._made

    def _ask(self, part: str, ask: Callable[[Teacher], tuple[list[T | Failure], list[Failure]]]) -> list[T | Failure]:
        """Results of the requests for a part; records their failures and counts."""
        meter = MeteredTeacher(self._teacher)
        results, before = ask(meter)
        self._made.failures += [*before, *parted(results)[1]]
        counted = meter.drain()
        for name in REQUESTS:
            self._made.counts[f"{part}_{name}"] = self._made.counts.get(f"{part}_{name}", 0) + int(counted.get(name, 0))
        return results

    def _count(self, part: str, proposed: int, kept: int) -> None:
        self._made.counts |= {f"{part}_proposed": proposed, f"{part}_kept": kept}

    def _rejected(self, flaw: Flaw, **item: Any) -> Failure:
        return flaw.failure(self._name, item)

    def _drop(self, flaw: Flaw, **item: Any) -> None:
        self._made.failures.append(self._rejected(flaw, **item))

    def _tables(self) -> tuple[ToolDatabase, Layout] | None:
        """Empty database of the tables, with their layout; None if no valid ones were written."""

        def read(_: int, reply: Completion) -> tuple[ToolDatabase, Layout] | Failure:
            sql = sql_in(reply.text)
            tables = in_dialect("\n".join(statements_of(sql, "CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX")))
            if not tables:
                return self._rejected(Flaw(WorldDefect.NO_SQL, "the reply holds no CREATE TABLE statement"), tables=reply.text)
            try:
                return self._laid_out(tables)
            except ValueError as error:
                reason = first_error(error) if isinstance(error, ValidationError) else str(error)
                return self._rejected(Flaw(WorldDefect.WRONG_TABLES, reason), tables=sql)

        found, _ = parted(self._ask("tables", lambda teacher: ask_repaired(teacher, [self._requests.tables()], read)))
        self._count("tables", 1, len(found))
        return found[0] if found else None

    def _laid_out(self, tables: str) -> tuple[ToolDatabase, Layout]:
        """Database of the connected tables. Raises ValueError if they are invalid."""
        database = ToolDatabase(WorldDefinition(domain=self._domain, tables=tables, tools={}))
        layout = read_layout(database)
        if not (without := pointless(layout)):
            return database, layout
        for name in without:
            self._drop(Flaw(WorldDefect.WRONG_TABLES, "no other table refers to it, and it says nothing of another one"), table=name)
        created = database.query("SELECT sql, tbl_name FROM sqlite_schema WHERE sql IS NOT NULL")
        kept = [row["sql"] for row in created if row["tbl_name"] in layout.keys() - without]
        return self._laid_out(in_dialect("\n".join(f"{sql};" for sql in kept)))

    def _rows(self, database: ToolDatabase, layout: Layout) -> tuple[Rows, Rows]:
        """Rows of the world, inserted into `database`, and spare rows by table."""
        keys, spare, proposed = dict[str, dict[Value, str]](), dict[str, list[dict[str, Value]]](), 0
        for tables in levels(layout):
            fillings = [
                _Filling(database, layout[table], FIRST_KEY + 100 * list(layout).index(table), self._config.records) for table in tables
            ]
            for filling, filled in zip(fillings, self._filled(fillings, keys), strict=True):
                if isinstance(filled, Failure):
                    keys[filling.table] = {}
                    continue
                filling.insert(filled.kept)
                for row, reason in filled.dropped:
                    self._drop(Flaw(WorldDefect.WRONG_ROWS, reason), rows=row)
                proposed += len(filled.kept) + len(filled.spare) + len(filled.dropped)
                spare[filling.table], keys[filling.table] = filled.spare, filling.keys(filled.kept)
        rows = database.rows()
        self._count("records", proposed, sum(map(len, [*rows.values(), *spare.values()])))
        return rows, spare

    def _filled(self, fillings: Sequence[_Filling], keys: Mapping[str, Mapping[Value, str]]) -> list[_Filled | Failure]:
        wanted, tables = self._config.records, fillings[0].database.definition.tables

        def read(place: int, reply: ProposedRows) -> _Filled | Failure:
            filled = fillings[place].fill(reply.rows)
            if len(filled.kept) < max(2, wanted // 2):
                return self._rejected(Flaw(WorldDefect.WRONG_ROWS, filled.reason), rows=reply.rows)
            return filled

        requests = [self._requests.rows(tables, filling.columns, keys, wanted + SPARE) for filling in fillings]
        return self._ask("records", lambda teacher: ask_for(teacher, requests, ROWS, read))

    def _tools(self, plan: Sequence[PlannedTool], database: ToolDatabase, layout: Layout, explorer: Explorer) -> dict[str, ToolDefinition]:
        kinds = operations(layout)

        def read(place: int, reply: Completion) -> ToolDefinition | Failure:
            planned, sql = plan[place], sql_in(reply.text)
            tool = _read_tool(planned, kinds[planned.what], sql, database, layout)
            if not isinstance(tool, Flaw) and (reason := explorer.try_tool(planned.name, tool)):
                tool = Flaw(WorldDefect.TOOL_FAILED, reason)
            return self._rejected(tool, tool=planned.name, sql=sql) if isinstance(tool, Flaw) else tool

        requests = [self._requests.tool(database.definition.tables, planned) for planned in plan]
        written = self._ask("tools", lambda teacher: ask_repaired(teacher, requests, read))
        kept = dict[str, ToolDefinition]()
        for planned, tool in zip(plan, written, strict=True):
            if isinstance(tool, Failure):
                continue
            if tool.statements in [each.statements for each in kept.values()]:
                self._drop(Flaw(WorldDefect.DOUBLE, f"{planned.name} does what another tool does"), tool=planned.name)
                del explorer.seen[planned.name]
            else:
                kept[planned.name] = tool
        self._count("tools", len(plan), len(kept))
        return kept

    def _plan(self, layout: Layout) -> list[PlannedTool]:
        """Planned tools with distinct names and purposes; finding tools first."""
        kinds = operations(layout)
        choices = {kind: [what for what, its in kinds.items() if its is kind] for kind in Kind}
        half = self._config.tools // 2
        counts = {kind: min(len(choices[kind]), half if kind is Kind.FIND else self._config.tools - half) for kind in Kind}
        plan = dict[str, PlannedTool]()

        def read(place: int, reply: ToolPlan) -> list[PlannedTool] | Failure:
            kind = list(Kind)[place]
            found = [each for each in map(_named, reply.tools) if each and kinds.get(each.what) is kind]
            if len({each.what for each in found}) < min(2, counts[kind]):
                flaw = Flaw(WorldDefect.MALFORMED_TOOL, f"it chooses {len(found)} different ones, and {counts[kind]} are needed")
                return self._rejected(flaw, plan=reply.model_dump())
            if foreign := next(filter(None, (word_of_databases(each.does, self._requests.description) for each in found)), None):
                flaw = Flaw(WorldDefect.NOT_IN_WORDS, f"{foreign} is a word of databases, and not of the service")
                return self._rejected(flaw, plan=reply.model_dump())
            return found[: counts[kind]]

        requests = [self._requests.plan(choices[kind], kind, counts[kind]) for kind in Kind]
        replies, _ = parted(self._ask("plan", lambda teacher: ask_for(teacher, requests, PLAN, read)))
        for each in (each for reply in replies for each in reply):
            if each.name in plan or each.what in {other.what for other in plan.values()}:
                self._drop(Flaw(WorldDefect.DOUBLE, f"{each.name}, to {each.what}, is planned already"), plan=each.model_dump())
            else:
                plan[each.name] = each
        self._count("plan", sum(counts.values()), len(plan))
        return list(plan.values())

    def _tasks(self, world: WorldDefinition, explorer: Explorer) -> list[tuple[str, WorldSolution]]:
        proof, solutions = TaskProof(world), self._solutions(world, explorer)
        service = self._domain.replace("_", " ")
        words = [self._requests.words(service, each, world.tools[each.wish.tool].description, n) for n, each in enumerate(solutions)]
        known = set[str]()

        def read(place: int, reply: ProposedQuestion) -> tuple[str, WorldSolution] | Failure:
            question, solution = " ".join(reply.question.split()), solutions[place]
            flaw = flaw_in_words(question, solution, self._requests.description) or asyncio.run(proof.flaw(question, solution))
            if flaw is None and plain(question) in known:
                flaw = Flaw(WorldDefect.DOUBLE, "another person says the same: say it in other words")
            known.add(plain(question))
            return self._rejected(flaw, task=question, details=list(solution.details)) if flaw else (question, solution)

        kept, _ = parted(self._ask("tasks", lambda teacher: ask_for(teacher, words, QUESTION, read)))
        self._count("tasks", len(solutions), len(kept))
        return kept

    def _solutions(self, world: WorldDefinition, explorer: Explorer) -> list[WorldSolution]:
        """Up to `config.tasks` solutions, from all tools in turn; each is proven for a question that lists its details."""
        proof, found = TaskProof(world), list[WorldSolution]()
        left = {name: explorer.solutions(name) for name in world.tools}
        while left and len(found) < self._config.tasks:
            for name in list(left):
                holding = (each for each in left[name] if asyncio.run(proof.flaw(", ".join(map(str, each.told)), each)) is None)
                solution = next(holding, None)
                if solution is None:
                    del left[name]
                elif len(found) < self._config.tasks:
                    found.append(solution)
        return found

    def _finish(self, world: WorldDefinition, kept: Sequence[tuple[str, WorldSolution]]) -> None:
        """Build the tasks over the world without unused tools."""
        used = {call.tool for _, solution in kept for call in solution.calls}
        for name in sorted(world.tools.keys() - used) if kept else ():
            self._drop(Flaw(WorldDefect.TOOL_UNUSED, f"no task that is kept calls {name}"), tool=name)
        world = world.model_copy(update={"tools": {name: tool for name, tool in world.tools.items() if name in used}})
        self._made.tasks = [self._task(world, question, solution) for question, solution in kept]
        self._made.counts |= {"tools_kept": len(world.tools), "worlds_kept": int(bool(kept))}
        if not kept:
            self._drop(Flaw(WorldDefect.NO_TASK, "no task of this world is left, and so nothing of it"), domain=world.domain)

    def _task(self, world: WorldDefinition, question: str, solution: WorldSolution) -> Task:
        calls = [{"tool": call.tool, "arguments": dict(call.arguments)} for call in solution.calls]
        answers = () if solution.answer is None else (solution.answer,)
        goal = dict(solution.wish.changes)
        return Task(
            key=f"tool-world-{world.domain}-{digest([question, world.digest, goal, answers])}",
            environment="tool_world",
            question=question,
            answers=answers,
            hops=len(calls),
            constraints=max(1, len({path.rsplit("/", 1)[0] for path in goal})),
            provenance={**provenance_of(world, goal), "calls": calls, "written_by": self._teacher.name, "described_in": self._name},
        )


@dataclass(frozen=True, slots=True)
class _Filled:
    """Rows for a table, spare rows, and rows refused by SQLite with the reason."""

    kept: list[dict[str, Value]]
    spare: list[dict[str, Value]]
    dropped: list[tuple[dict[str, Value], str]]

    @property
    def reason(self) -> str:
        return f"only {len(self.kept)} of the rows can be inserted; {self.dropped[0][1] if self.dropped else 'give more rows'}"


@dataclass(frozen=True, slots=True)
class _Filling:
    """Inserts rows into one table and numbers its keys from `first`."""

    database: ToolDatabase
    columns: tuple[Column, ...]
    first: int
    wanted: int

    @property
    def table(self) -> str:
        return self.columns[0].table

    def fill(self, rows: Sequence[Sequence[Value]]) -> _Filled:
        """Sort out the rows that can be inserted in sequence; they hold values of all columns except numbered keys."""
        scratch, filled = self.database.copy(), _Filled([], [], [])
        names = [column.name for column in self.columns if not column.numbered]
        for values in rows:
            number = self.first + len(filled.kept) + len(filled.spare)
            row = {**{each.name: number for each in self.columns if each.numbered}, **dict(zip(names, values, strict=False))}
            reason = f"a row has {len(names)} values" if len(values) != len(names) else self._refused(scratch, row)
            if reason:
                filled.dropped.append((row, reason))
            else:
                (filled.kept if len(filled.kept) < self.wanted else filled.spare).append(row)
        scratch.close()
        return filled

    def insert(self, rows: Sequence[dict[str, Value]]) -> None:
        for row in rows:
            self._refused(self.database, row)

    def keys(self, rows: Sequence[dict[str, Value]]) -> dict[Value, str]:
        """Key of each row, with the first text that names it."""
        key = next(column.name for column in self.columns if column.in_key)
        text = next((column.name for column in self.columns if column.type == "string" and column.name != key and not column.parent), key)
        return {row[key]: str(row.get(text, "")) if text != key else "" for row in rows if key in row}

    def _refused(self, database: ToolDatabase, row: dict[str, Value]) -> str | None:
        names, marks = ", ".join(f'"{name}"' for name in row), ", ".join(f":{name}" for name in row)
        try:
            database.execute([Statement(sql=f'INSERT INTO "{self.table}" ({names}) VALUES ({marks})')], row)
        except (ToolError, ToolMiss, ToolFault) as error:
            return str(error)
        return None


_WRITES = re.compile(r"^\s*(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_HEADER = re.compile(r"^[ \t]*--[ \t]*tool:.*$", re.MULTILINE | re.IGNORECASE)
_MARKED = re.compile(r"(?<![\w'@$])[@$](\w+)")
_CHANGES_ALL = re.compile(r"^\s*(?:UPDATE|DELETE)\b(?!.*\bWHERE\b)", re.IGNORECASE | re.DOTALL)


def _named(planned: PlannedTool) -> PlannedTool | None:
    name = re.sub(r"\W+", "_", planned.name.strip().lower()).strip("_")[:40]
    try:
        return planned.model_copy(update={"name": check_name(name)}) if name != RESPOND else None
    except RequestError:
        return None


def _read_tool(planned: PlannedTool, kind: Kind, sql: str, database: ToolDatabase, layout: Layout) -> ToolDefinition | Flaw:
    """Parse a written tool, or return its flaw; parameters have the types of their columns."""
    body = _MARKED.sub(r":\1", _HEADER.sub("", sql))
    _, written = written_tools(f"-- tool: {planned.name}\n{body}")[0]
    statements = [each["sql"] for each in written["statements"]]
    if not statements:
        return Flaw(WorldDefect.NO_SQL, "the reply holds no SQL")
    if flaw := _flaw_in_statements(kind, statements):
        return flaw
    try:
        used = sorted(set[str]().union(*map(database.parameters_of, statements)), key=lambda name: body.find(f":{name}"))
    except (sqlite3.Error, sqlite3.Warning) as error:
        return Flaw(WorldDefect.WRONG_SQL, str(error))
    if len(used) > MOST_PARAMETERS or (not used and kind is Kind.CHANGE):
        return Flaw(WorldDefect.MALFORMED_TOOL, f"it has {len(used)} parameters, such as :name; it may have 1 to {MOST_PARAMETERS}")
    places = places_of(statements, layout)
    for name in used:
        if name in places and places[name].use is Use.INSERT and places[name].column.numbered:
            return Flaw(WorldDefect.MALFORMED_TOOL, f"leave out {places[name].column.name}: SQLite numbers it when a row is inserted")
    types = {name: places[name].column.type if name in places else json_type(database.columns.get(name, "text")) for name in used}
    try:
        return ToolDefinition.model_validate(
            {
                "description": planned.does,
                "parameters": {name: {"type": its} for name, its in types.items()},
                "statements": written["statements"],
            }
        )
    except ValidationError as error:
        return Flaw(WorldDefect.MALFORMED_TOOL, first_error(error))


def _flaw_in_statements(kind: Kind, statements: Sequence[str]) -> Flaw | None:
    foreign = [sql for sql in statements if not re.match(r"(?i)\s*(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH)\b", sql)]
    writes = any(map(_WRITES.match, statements))
    if foreign:
        return Flaw(
            WorldDefect.MALFORMED_TOOL, f"a tool is SELECT, INSERT, UPDATE and DELETE statements alone, and no {foreign[0].split()[0]}"
        )
    if writes is (kind is Kind.FIND):
        return Flaw(WorldDefect.MALFORMED_TOOL, "it must change nothing" if writes else "it must change rows by INSERT, UPDATE or DELETE")
    if everything := next(filter(_CHANGES_ALL.match, statements), None):
        return Flaw(WorldDefect.MALFORMED_TOOL, f"it changes every row: add WHERE to {everything.split()[0]}")
    if any("?" in re.sub(r"'[^']*'", "", sql) for sql in statements):
        return Flaw(WorldDefect.MALFORMED_TOOL, "name the parameters, such as :name, instead of ?")
    return None
