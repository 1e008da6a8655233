"""A tool world from a description: a teacher proposes it part by part, and of each part is kept what holds.

    tables     of one reply; without them there is no world
    tools      each by itself: readable, and compiled by SQLite over the tables
    rows       each INSERT by itself, then without the rows that refer to what is not there
    tasks      each by itself, by playing it (`world_checks.py`)

Tables and tools that SQLite refuses are asked for once more, with its errors. A tool that no kept task uses is dropped in the end, for
nothing has shown that it works. What is dropped is a `Failure` each. The replies are in the lake, so a run that goes on asks nothing twice.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from rl.envs.tool_world.conversation import RESPOND
from rl.envs.tool_world.database import ToolDatabase
from rl.envs.tool_world.definition import Rows, ToolDefinition, WorldDefinition, json_type, written_tools
from rl.tools.tool import check_name
from synth.questions.text_comparison import plain
from synth.teachers.teacher import Teacher, as_read, ask_for, ask_repaired, malformed
from synth.worlds.world_checks import TaskProof, provenance_of
from synth.worlds.world_proposals import TASKS, Flaw, TaskProposal, WorldDefect, WorldRequests, again, sql_in, statements_of
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.records import Completion, Failure, Request, Task
from warehouse.settings import first_error


@dataclass(slots=True)
class WrittenTasks:
    """The tasks of one world, each of which holds the whole of it, what was dropped, and how many there were of each part."""

    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def write_world(name: str, description: str, teacher: Teacher, config: WrittenWorldsConfig, seed: int) -> WrittenTasks:
    """One world of a description; `name` tells it apart in failures, and without a number at its end is the domain.

    Raises:
        RequestError: no request to the teacher can succeed.
    """
    return _Writer(name, teacher, WorldRequests(description, config, seed)).write()


class _Writer:
    """The work on one world."""

    def __init__(self, name: str, teacher: Teacher, requests: WorldRequests) -> None:
        self._name, self._teacher, self._requests, self._config = name, teacher, requests, requests.config
        self._domain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"-\d+$", "", name).lower()).strip("_")[:40] or "service"
        self._made = WrittenTasks(counts={"worlds_proposed": 1})

    def write(self) -> WrittenTasks:
        database = self._tables()
        if database is None:
            return self._made
        tools, rows = self._tools(database), self._rows(database)
        try:
            world = database.definition.model_copy(update={"tools": tools, "rows": rows})
            ToolDatabase(world).close()
        except ValueError as error:
            self._drop(Flaw(WorldDefect.WRONG_ROWS, str(error)), {"rows": rows})
            return self._made
        self._finish(world, self._tasks(world) if tools else [])
        return self._made

    def _tables(self) -> ToolDatabase | None:
        """An empty database of the tables, or None if there are none that hold."""
        request = self._requests.tables()
        for last in (False, True):
            sql = self._sql(request)
            if sql is None:
                return None
            tables = "\n".join(statements_of(sql, "CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX"))
            try:
                return ToolDatabase(WorldDefinition(domain=self._domain, tables=tables, tools={}))
            except ValueError as error:
                reason = first_error(error) if isinstance(error, ValidationError) else str(error)
            if last:
                self._drop(Flaw(WorldDefect.WRONG_TABLES, reason), {"tables": sql})
            request = again(request, sql, [reason])
        return None

    def _tools(self, database: ToolDatabase) -> dict[str, ToolDefinition]:
        request = self._requests.tools(database.definition.tables)
        kept, flawed, proposed = dict[str, ToolDefinition](), dict[str, tuple[Flaw, Any]](), set[str]()
        for _ in range(2):
            sql = self._sql(request)
            for name, written in written_tools(sql or ""):
                if name in kept and not flawed:  # the first reply gives a name twice: another tool of that name is not meant
                    self._drop(Flaw(WorldDefect.MALFORMED_TOOL, f"there is a tool {name} already"), {"tool": {"name": name, **written}})
                if name in kept:
                    continue
                proposed.add(name)
                read = _read_tool(name, written, database)
                if isinstance(read, Flaw):
                    flawed[name] = read, {"name": name, **written}
                else:
                    kept[name] = read
                    flawed.pop(name, None)
            if sql is None or not flawed:
                break
            request = again(request, sql, [flaw.reason for flaw, _ in flawed.values()])
        for flaw, written in flawed.values():
            self._drop(flaw, {"tool": written})
        self._made.counts["tools_proposed"] = len(proposed)
        return kept

    def _rows(self, empty: ToolDatabase) -> Rows:
        database, sql = empty.copy(), self._sql(self._requests.rows(empty.definition.tables)) or ""
        dropped = 0
        for statement in statements_of(sql, "INSERT"):
            try:
                database.insert(statement)
            except (sqlite3.Error, sqlite3.Warning) as error:
                self._drop(Flaw(WorldDefect.WRONG_ROWS, str(error)), {"rows": statement})
                dropped += 1
        for reason in database.drop_dangling():
            self._drop(Flaw(WorldDefect.WRONG_ROWS, reason), {"rows": reason})
            dropped += 1
        rows = database.rows()
        kept = sum(map(len, rows.values()))
        self._made.counts |= {"records_proposed": kept + dropped, "records_kept": kept}
        return rows

    def _tasks(self, world: WorldDefinition) -> list[tuple[TaskProposal, dict[str, Any]]]:
        """The proposals that hold with their goals, in the order of the replies."""
        sizes = range(0, self._config.tasks, self._config.tasks_per_request)
        requests = [
            self._requests.tasks(world, number, min(self._config.tasks_per_request, self._config.tasks - start))
            for number, start in enumerate(sizes)
        ]
        replies, before = ask_for(self._teacher, requests, TASKS, as_read)
        self._made.failures += [*before, *(reply for reply in replies if isinstance(reply, Failure))]
        written = [item for reply in replies if not isinstance(reply, Failure) for item in reply.tasks]
        self._made.counts["tasks_proposed"] = len(written)
        kept = asyncio.run(self._proven(TaskProof(world), written))
        self._made.counts["tasks_kept"] = len(kept)
        return kept

    async def _proven(self, proof: TaskProof, written: Sequence[Any]) -> list[tuple[TaskProposal, dict[str, Any]]]:
        kept, known = list[tuple[TaskProposal, dict[str, Any]]](), set[str]()
        for item in written:
            try:
                proposal = TaskProposal.model_validate(item)
            except ValidationError as error:
                self._drop(Flaw(WorldDefect.MALFORMED_TASK, first_error(error, "the task")), {"task": item})
                continue
            proven: Flaw | dict[str, Any] = await proof.prove(proposal)
            if not isinstance(proven, Flaw) and plain(proposal.question) in known:
                proven = Flaw(WorldDefect.DOUBLE, "another task asks the same in the same words")
            if isinstance(proven, Flaw):
                self._drop(proven, {"task": proposal.model_dump(mode="json")})
            else:
                known.add(plain(proposal.question))
                kept.append((proposal, proven))
        return kept

    def _finish(self, world: WorldDefinition, kept: Sequence[tuple[TaskProposal, dict[str, Any]]]) -> None:
        """The tasks over the world without the tools that none of them uses."""
        used = {call.tool for proposal, _ in kept for call in proposal.calls}
        for name in sorted(world.tools.keys() - used) if kept else ():
            self._drop(Flaw(WorldDefect.TOOL_UNUSED, f"no task that is kept calls {name}"), {"tool": name})
        world = world.model_copy(update={"tools": {name: tool for name, tool in world.tools.items() if name in used}})
        self._made.tasks = [self._task(world, proposal, goal) for proposal, goal in kept]
        self._made.counts |= {"tools_kept": len(world.tools), "worlds_kept": int(bool(kept))}
        if not kept:
            self._drop(Flaw(WorldDefect.NO_TASK, "no task of this world is left, and so nothing of it"), {"domain": world.domain})

    def _task(self, world: WorldDefinition, proposal: TaskProposal, goal: dict[str, Any]) -> Task:
        calls = [call.model_dump(mode="json") for call in proposal.calls]
        answers = () if proposal.answer is None else (proposal.answer,)
        question = proposal.question.strip()
        return Task(
            key=f"tool-world-{world.domain}-{digest([question, world.digest, goal, answers])}",
            environment="tool_world",
            question=question,
            answers=answers,
            hops=len(calls),
            constraints=max(1, len({path.rsplit("/", 1)[0] for path in goal})),
            provenance={**provenance_of(world, goal), "calls": calls, "written_by": self._teacher.name, "described_in": self._name},
        )

    def _sql(self, request: Request) -> str | None:
        """The SQL of the reply; one without any returns to its writer."""
        (reply,), before = ask_repaired(self._teacher, [request], _read_sql)
        self._made.failures += [*before, *([reply] if isinstance(reply, Failure) else [])]
        return None if isinstance(reply, Failure) else reply

    def _drop(self, flaw: Flaw, item: dict[str, Any]) -> None:
        self._made.failures.append(flaw.failure(self._name, item))


def _read_sql(_: int, reply: Completion) -> str | Failure:
    return sql_in(reply.text) or malformed(reply, "the reply holds no SQL")


def _read_tool(name: str, written: dict[str, Any], database: ToolDatabase) -> ToolDefinition | Flaw:
    """The tool as it was written; parameters that are not declared have the type of the column of their name, unused ones are left out."""
    try:
        check_name(name)
        if name == RESPOND:
            raise ValueError(f"{RESPOND} is the tool that speaks to users")
        tool = ToolDefinition.model_validate({**written, "description": written["description"] or name.replace("_", " ")})
        used = set[str]().union(*(database.parameters_of(statement.sql) for statement in tool.statements))
        declared = {key: value for key, value in written["parameters"].items() if key in used}
        inferred = {key: {"type": json_type(database.columns.get(key, "text"))} for key in sorted(used - declared.keys())}
        return ToolDefinition.model_validate({**written, "description": tool.description, "parameters": {**declared, **inferred}})
    except (sqlite3.Error, sqlite3.Warning) as error:
        return Flaw(WorldDefect.WRONG_SQL, f"{name}: {error}")
    except ValidationError as error:
        return Flaw(WorldDefect.MALFORMED_TOOL, f"{name:.60}: {first_error(error)}")
    except (ValueError, RequestError) as error:
        return Flaw(WorldDefect.MALFORMED_TOOL, f"{name:.60}: {error}")
