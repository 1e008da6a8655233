"""A tool world from a description: a teacher proposes it part by part, and each part is kept as far as it holds.

    tables     of one reply; a world without is none
    tools      each by itself: readable, of names that there are, its code found in the sandbox
    records    each by itself: fits its table, refers to what is there
    tasks      each by itself, by playing it (`world_checks.py`); what the same was asked before is dropped

A tool that no kept task uses is dropped last of all, for nothing has shown that it works. What is dropped is a `Failure` each. What cannot
be read is asked for twice. The replies stand in the lake, so that whoever begins again asks nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rl.envs.tool_world.conversation import RESPOND
from rl.envs.tool_world.definition import ToolDefinition, WorldDefinition, dangling, record_misfit
from rl.envs.tool_world.steps import Tables
from rl.envs.tool_world.written import run_code
from rl.tools import ToolFault
from rl.tools.tool import check_name
from synth.questions.text_comparison import plain
from synth.teachers.asking import ask_for
from synth.teachers.teacher import Teacher
from synth.worlds.world_checks import TaskProof, goal_of, provenance_of
from synth.worlds.world_proposals import (
    RECORDS,
    TABLES,
    TASKS,
    TOOLS,
    Flaw,
    ProposedTables,
    TaskProposal,
    WorldDefect,
    WorldRequests,
    read_tool,
)
from synth.worlds.writing_config import WrittenWorldsConfig
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.records import Failure, Request, Task
from warehouse.settings import first_error

T = TypeVar("T")


@dataclass(slots=True)
class WrittenTasks:
    """What one world came to: its tasks, each of which holds the whole of it, what was dropped, and how many there were of each part."""

    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def write_world(name: str, description: str, teacher: Teacher, config: WrittenWorldsConfig, seed: int) -> WrittenTasks:
    """One world of a description; `name` tells it apart in failures and keys.

    Raises:
        RequestError: no request to the teacher can succeed, or this machine grants no sandbox for the code that it wrote.
    """
    return _Writer(name, teacher, WorldRequests(description, config, seed)).write()


class _Writer:
    """The work on one world."""

    def __init__(self, name: str, teacher: Teacher, requests: WorldRequests) -> None:
        self._name, self._teacher, self._requests, self._config = name, teacher, requests, requests.config
        self._made = WrittenTasks(counts={"worlds_proposed": 1})

    def write(self) -> WrittenTasks:
        tables = next(iter(self._asked([self._requests.tables()], TABLES)), None)
        if tables is None:
            return self._made
        if tables.flaw is not None:
            self._drop(tables.flaw, {"tables": tables.model_dump(mode="json", exclude_defaults=True)})
            return self._made
        world = WorldDefinition(domain=tables.domain, tables=tables.tables, tools=self._tools(tables), records=self._records(tables))
        proposals = asyncio.run(self._tasks(world)) if world.tools else []
        self._finish(world, proposals)
        return self._made

    def _finish(self, world: WorldDefinition, proposals: Sequence[TaskProposal]) -> None:
        """The tasks over the world without the tools that none of them uses."""
        used = {call.tool for proposal in proposals for call in proposal.calls}
        for name in sorted(world.tools.keys() - used) if proposals else ():
            self._drop(Flaw(WorldDefect.TOOL_UNUSED, f"no task that is kept calls {name}"), {"tool": name})
        world = world.model_copy(update={"tools": {name: tool for name, tool in world.tools.items() if name in used}})
        self._made.tasks = [self._task(world, proposal) for proposal in proposals]
        self._made.counts |= {"tools_kept": len(world.tools), "worlds_kept": int(bool(proposals))}
        if not proposals:
            self._drop(Flaw(WorldDefect.NO_TASK, "no task of this world is left, and so nothing of it"), {"domain": world.domain})

    def _tools(self, tables: ProposedTables) -> dict[str, ToolDefinition]:
        written = [item for proposed in self._asked([self._requests.tools(tables)], TOOLS) for item in proposed.tools]
        self._made.counts["tools_proposed"] = len(written)
        kept: dict[str, ToolDefinition] = {}
        for item in written:
            read = self._tool(item, tables, kept)
            if isinstance(read, Flaw):
                self._drop(read, {"tool": item})
            else:
                kept[read[0]] = read[1]
        return kept

    def _tool(self, item: dict[str, Any], tables: ProposedTables, kept: dict[str, ToolDefinition]) -> tuple[str, ToolDefinition] | Flaw:
        try:
            name, tool = read_tool(item)
            if check_name(name) == RESPOND or name in kept:
                raise ValueError(f"the name {name!r} is taken")
        except (ValueError, RequestError) as error:
            reason = first_error(error) if isinstance(error, ValidationError) else str(error)
            return Flaw(WorldDefect.MALFORMED_TOOL, reason[:500])
        if tool.code is None:
            why = tool.defect(tables.tables)
            return (name, tool) if why is None else Flaw(WorldDefect.WRONG_STEPS, why)
        if not self._config.code:
            return Flaw(WorldDefect.MALFORMED_TOOL, "it is written as code, and synth.tool_worlds.code is false")
        try:
            asyncio.run(run_code(name, tool.code, {}, None, self._config.limits))
        except ToolFault as fault:
            return Flaw(WorldDefect.CODE_FAILED, str(fault))
        return name, tool

    def _records(self, tables: ProposedTables) -> Tables:
        """The records that fit; one that refers to a record which was dropped is dropped too."""
        proposed = [each for reply in self._asked([self._requests.records(tables)], RECORDS) for each in reply.records.items()]
        kept: Tables = {name: {} for name in tables.tables}
        count = 0
        for name, records in proposed:
            for key, record in records.items():
                count += 1
                if flaw := self._flaw_in_record(tables, name, key, record, kept):
                    self._drop(flaw, {"table": name, "key": key, "record": record})
                else:
                    kept[name][key] = record
        while why := dangling(tables.tables, kept):
            table, _, rest = why.partition("/")
            key = next(key for key in kept[table] if rest.startswith(f"{key[:100]}: "))
            self._drop(Flaw(WorldDefect.DANGLING_REFERENCE, why), {"table": table, "key": key, "record": kept[table].pop(key)})
        self._made.counts |= {"records_proposed": count, "records_kept": sum(map(len, kept.values()))}
        return kept

    def _flaw_in_record(self, tables: ProposedTables, table: str, key: str, record: Any, kept: Tables) -> Flaw | None:
        if table not in tables.tables:
            return Flaw(WorldDefect.RECORD_MISFIT, f"there is no table {table!r}")
        if len(kept[table]) >= self._config.records * 2:
            return Flaw(WorldDefect.RECORD_MISFIT, f"{table} has {len(kept[table])} records already, twice as many as were asked for")
        why = record_misfit(tables.tables[table], key, record)
        return None if why is None else Flaw(WorldDefect.RECORD_MISFIT, f"{table}/{key:.100}: {why}")

    async def _tasks(self, world: WorldDefinition) -> list[TaskProposal]:
        """The proposals that hold, in the order in which they came."""
        sizes = range(0, self._config.tasks, self._config.tasks_per_request)
        asked = [
            self._requests.tasks(world, number, min(self._config.tasks_per_request, self._config.tasks - start))
            for number, start in enumerate(sizes)
        ]
        written = [item for reply in self._asked(asked, TASKS) for item in reply.tasks]
        self._made.counts["tasks_proposed"] = len(written)
        kept = await self._proven(world, written)
        self._made.counts["tasks_kept"] = len(kept)
        return kept

    async def _proven(self, world: WorldDefinition, written: Sequence[Any]) -> list[TaskProposal]:
        proof = TaskProof(world, self._config.limits)
        read = [_read_task(item) for item in written]
        flaws = await asyncio.gather(*(_none() if isinstance(each, Flaw) else proof.flaw(each) for each in read))
        kept, known = [], set[str]()
        for item, proposal, flaw in zip(written, read, flaws, strict=True):
            if isinstance(proposal, Flaw):
                self._drop(proposal, {"task": item})
                continue
            same = plain(proposal.question)
            flaw = flaw or (Flaw(WorldDefect.DOUBLE, "another task asks the same in the same words") if same in known else None)
            if flaw is not None:
                self._drop(flaw, {"task": proposal.model_dump(mode="json")})
                continue
            known.add(same)
            kept.append(proposal)
        return kept

    def _task(self, world: WorldDefinition, proposal: TaskProposal) -> Task:
        goal = goal_of(proposal, world)
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

    def _asked(self, requests: Sequence[Request], shape: TypeAdapter[T]) -> list[T]:
        """What the replies hold, asked twice where they cannot be read; one that cannot be read then either is a failure."""
        replies, before = ask_for(self._teacher, requests, shape)
        self._made.failures += [*before, *(reply for reply in replies if isinstance(reply, Failure))]
        return [reply for reply in replies if not isinstance(reply, Failure)]

    def _drop(self, flaw: Flaw, item: dict[str, Any]) -> None:
        self._made.failures.append(flaw.failure(self._name, item))


def _read_task(item: Any) -> TaskProposal | Flaw:
    try:
        return TaskProposal.model_validate(item)
    except ValidationError as error:
        return Flaw(WorldDefect.MALFORMED_TASK, first_error(error, "the task")[:500])


async def _none() -> None:
    return None
