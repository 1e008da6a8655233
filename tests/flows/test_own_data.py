"""A wheel on its own data: from turn 2 on all training text is of the policy's own trajectories; its control reads turn 1 again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flows.context import RunContext
from synth.demonstrations.oracle import solution_of
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.has.decisions import describe
from synth.parts import CPT_KINDS, SFT_KINDS
from tests.flows.homes import ended, home_at, make
from warehouse import Call, Example, Outcome, PartKind, Task, Trajectory, Turn
from warehouse.records import ANSWER

pytestmark = pytest.mark.slow

SIZES = (
    "corpus.train.entities=300", "corpus.held_out.entities=150", "evaluation.suites.held_out.counts={1=4, 2=4}", "evaluation.gate={}",
    "synth.fas.reasoning={1=20, 2=20}", "synth.fas.plan_slices=4", "synth.documents=8",
)  # fmt: skip
OWN = (
    'later.cpt.from=["has"]', 'later.sft.from=["own"]', "later.synth.has.mixture={others=1.0}", "later.synth.webshaper.counts={2=10}",
    "later.synth.has_count=30",
)  # fmt: skip
AGAIN = ('later.cpt.from=["again"]', 'later.sft.from=["again"]')
OPTION = re.compile(r"(\d+)\. (.+?)(?= \d+\. | I will choose)")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home after synthesis of its first turn, whose RL sampled two trajectories of each of its tasks."""
    root = tmp_path_factory.mktemp("first")
    with home_at(root, *SIZES) as context:
        make(context)
        context.lake.add(list(sampled(context)))
    return root


@contextmanager
def second_turn(first: Path, root: Path, *settings: str) -> Iterator[RunContext]:
    """A copy of that home after synthesis of its second turn."""
    shutil.copytree(first, root, dirs_exist_ok=True)
    with home_at(root, *SIZES, *OWN, *settings) as context:
        make(context, turn=2)
        yield context


def sampled(context: RunContext) -> Iterator[Trajectory]:
    """A success and a failure of every task that RL could draw, as a policy would have sampled them; the failure in words of its own."""
    from flows.stages.synthesis.sources import Material

    graph: KnowledgeGraph = Material(context, 1).train.graph
    retrieve = Material(context, 1).train.retrieve
    for number, task in enumerate(context.lake.tasks(split="train")):
        solution = solution_of(graph, task, retrieve)
        assert solution is not None
        right = [("search", step.query, step.document.text) for step in solution.steps] + [(ANSWER, solution.answer, "")]
        yield run_of(task, f"right{number}", right, Outcome.SUCCESS, number)
        wrong = [("search", f"somebody {number}", "Nothing was found: no hit."), (ANSWER, f"nobody {number}", "")]
        yield run_of(task, f"wrong{number}", wrong, Outcome.FAILURE, number)


def run_of(task: Task, name: str, acts: Sequence[tuple[str, str, str]], outcome: Outcome, number: int) -> Trajectory:
    turns = []
    for index, (tool, argument, seen) in enumerate(acts):
        text, ids = f"<{tool}> {argument}</{tool}>", (100 + number, 7, index)
        call = Call(tool, argument, None if tool == ANSWER else "ok", seen)
        turns.append(
            Turn(index, ids, (-0.1,) * 3, text, tool, argument, (3,) if seen else (), seen, None, call.outcome, 0.1, 1, calls=(call,))
        )
    run = ended(name, task.key, outcome, "t1-rl", "rl", wheel_turn=1, step=1)
    return replace(run, prompt_ids=(1, number), turns=tuple(turns), reward=float(outcome is Outcome.SUCCESS))


def of_turn(context: RunContext, turn: int) -> list[Example]:
    return [example for example in context.lake.examples() if example.wheel_turn == turn]


def foreign_parts(examples: Sequence[Example], own: Sequence[Trajectory]) -> list[str]:
    """What of the examples no trajectory of the policy's own said, did or was shown; questions and the frame of decisions apart."""
    actions = {describe(turn).text for run in own for turn in run.turns}
    said = {call.arguments for run in own for turn in run.turns for call in turn.calls}
    shown = {call.observation for run in own for turn in run.turns for call in turn.calls}
    ids = {turn.action_ids for run in own for turn in run.turns} | {turn.observation_ids for run in own for turn in run.turns}
    ids |= {run.prompt_ids for run in own}
    found = []
    for part in (part for example in examples for part in example.parts):
        if part.kind is PartKind.TOKENS:
            found += [] if part.ids in ids else [str(part.ids)]
        elif part.kind is PartKind.THOUGHT:
            options = [option for _, option in OPTION.findall(part.text.removeprefix("options: "))]
            assert len(options) > 1
            found += [option for option in options if option not in actions]
        elif part.kind in (PartKind.CALL, PartKind.ANSWER):
            found += [] if part.text in said else [part.text]
        elif part.kind is PartKind.RESULT:
            found += [] if part.text in shown else [part.text]
        elif part.kind is not PartKind.QUESTION and part.kind is not PartKind.TOOLS:
            found += [] if re.fullmatch(r" My decision is (Correct|Incorrect)", part.text) else [part.text]
    return found


def test_no_text_of_the_oracle_enters_turn_2(first: Path, tmp_path: Path) -> None:
    with second_turn(first, tmp_path) as context:
        examples, own = of_turn(context, 2), context.lake.trajectories("stage = 'rl'")
        before = {example.kind for example in of_turn(context, 1)}
        asked = [task for task in context.lake.tasks(split="train") if task.hops == 2]
    assert before == {"document", "fas_plan", "fas_reason", "trajectory"}
    assert {example.kind for example in examples} == {"has", "trajectory"}
    names = {run.id for run in own}
    assert all(set(example.sources) <= names for example in examples)
    assert foreign_parts(examples, own) == []
    assert {example.sources[0].rstrip("0123456789") for example in examples if example.kind == "trajectory"} == {"right"}
    assert {example.sources[0].rstrip("0123456789") for example in examples if example.kind == "has"} == {"right", "wrong"}
    assert len(asked) == 20 + 10, "the questions are new"


@pytest.mark.long
@pytest.mark.parametrize(
    "oracle",
    [
        "later.synth.has.mixture={oracle=1.0}",
        'later.sft.from=["own", "oracle"]',
        "later.synth.has.contrasts=1",
    ],
)
def test_each_way_in_which_the_oracle_could_write_is_seen(first: Path, tmp_path: Path, oracle: str) -> None:
    with second_turn(first, tmp_path, oracle) as context:
        examples, own = of_turn(context, 2), context.lake.trajectories("stage = 'rl'")
    names = {run.id for run in own}
    with pytest.raises(AssertionError):
        assert all(set(example.sources) <= names for example in examples)
        assert {example.kind for example in examples} <= {"has", "trajectory"}
        assert foreign_parts(examples, own) == []


def test_the_control_reads_the_text_of_the_first_turn_again_and_nothing_else(first: Path, tmp_path: Path) -> None:
    with second_turn(first, tmp_path, *AGAIN) as context:
        once, twice = of_turn(context, 1), of_turn(context, 2)
        trained = context.lake.query("SELECT kind, count(*) AS n FROM examples WHERE wheel_turn = 2 GROUP BY kind").to_pylist()
    assert [replace(example, id="", wheel_turn=0) for example in twice] == [replace(example, id="", wheel_turn=0) for example in once]
    assert {example.id for example in twice}.isdisjoint(example.id for example in once)
    assert {row["kind"] for row in trained} <= {*CPT_KINDS, *SFT_KINDS} and sum(row["n"] for row in trained) == len(once) > 100
