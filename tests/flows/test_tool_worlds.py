"""Tool worlds as a part of synthesis: over a real HTTP server into the lake, asked once only, shared out, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from flows.report.yields import counted_words, read_yields, worlds_kept
from tests.flows.test_expansions import make, teacher_at, yields_of
from tests.synth.teachers.misbehaving_server import MisbehavingServer
from tests.synth.worlds import two_domains as two
from warehouse import Completion, Lake, PartKind

DESCRIBED = [str(two.EXAMPLES / f"{name}.md") for name in ("library", "clinic")]


def settings(**changed: object) -> list[str]:
    wanted = {"descriptions": DESCRIBED, "tasks": 20, "records": 6, "tools": len(two.LIBRARY_TOOLS), **changed}
    return [f"synth.tool_worlds={json.dumps(wanted)}"]


@pytest.mark.long
@pytest.mark.slow
def test_descriptions_become_tasks_and_nothing_else_and_every_drop_has_its_reason(tmp_path: Path) -> None:
    with MisbehavingServer(answer=two.world_writer) as server, Lake(tmp_path / "home") as lake:
        make(tmp_path / "home", lake, [*settings(), *teacher_at(server)], kind="toolworld")
        asked, tasks, failures = len(server.bodies), lake.tasks(), lake.failures("tool_worlds")
        figures, parts = yields_of(lake, "tool_worlds"), read_yields(lake)
        assert not lake.documents() and not lake.examples(), "no corpus is made for tool worlds"
        completions = len(lake.read(Completion))
    assert asked == completions, "nothing is asked twice"
    assert {task.split for task in tasks} == {"train"} and {task.provenance["described_in"] for task in tasks} == {"library", "clinic"}
    wrong = Counter(kind for tools in (two.LIBRARY_TOOLS, two.CLINIC_TOOLS) for kind in two.broken_tools(tools).values())
    wrong["wrong_rows"] += two.LIBRARY_WRONG_ROWS + two.CLINIC_WRONG_ROWS
    dropped = Counter(str(failure.kind) for failure in failures if "try" not in failure.item)
    assert {kind: number for kind, number in dropped.items() if kind != "not_said"} == wrong
    assert (figures["asked"], figures["worlds_kept"], figures["tasks_kept"], figures["made"]) == (asked, 2, len(tasks), len(tasks))
    (first, *_) = parts
    rows = {row["part"]: row for row in worlds_kept(first.figures)}
    assert (rows["worlds"]["proposed"], rows["worlds"]["kept"]) == (2, 2) and rows["tasks"]["kept"] == len(tasks) >= 20
    assert sum(row["asked"] for row in rows.values()) == asked and sum(row["tokens"] for row in rows.values()) == figures["tokens"]
    for count in ("first_try", "repaired"):
        assert sum(row[count] for row in rows.values()) == figures[count] > 0
    assert f"{len(tasks)} of" in counted_words(first.figures)


@pytest.mark.slow
def test_tasks_are_shared_out_and_none_that_is_trained_on_meets_the_suite(tmp_path: Path) -> None:
    shares = {"held_out": 0.4, "demonstrated": 0.6, "conversations": 1.0, "suite": "held_out", "descriptions": DESCRIBED[:1]}
    with MisbehavingServer(answer=two.world_writer) as server, Lake(tmp_path / "home") as lake:
        make(tmp_path / "home", lake, [*settings(**shares), *teacher_at(server)], ("t1-first",), "toolworld")
        tasks, examples, met = lake.tasks(), lake.examples(("trajectory",)), lake.failures("decontamination")
    split = {name: [task for task in tasks if task.split == name] for name in ("train", "held_out", "demonstration")}
    assert all(split.values()) and sum(map(len, split.values())) == len(tasks)
    assert {example.sources[0] for example in examples} == {task.key for task in split["demonstration"]}
    assert all(example.parts[0].kind is PartKind.TOOLS and example.parts[-1].kind is PartKind.ANSWER for example in examples)
    users = [task for task in split["train"] if "user" in task.provenance]
    assert users and all(task.provenance["user"]["goal"] not in task.question for task in users)
    assert all(not task.answers and "by respond" in task.question for task in users)
    assert len({task.question for task in tasks}) == len(tasks)
    evaluated = {task.question for task in split["held_out"]}
    assert not evaluated & {task.provenance.get("user", {}).get("goal", task.question) for task in split["train"]}
    assert {failure.kind for failure in met} <= {"near_duplicate"}
