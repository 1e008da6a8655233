"""Higher-order action synthesis (AgentFounder, arXiv 2509.13310): stored trajectories as decision records.

At each step of a trajectory the oracle proposes other actions, none of which is executed; they are listed with the one that was
taken, the choice is stated, and the real response follows. The end is a verdict. Successes and failures both serve: what is
learnt is deciding, and judging the outcome, rather than one path. The list stands inside the policy's thought, so that the text
stays in the dialect.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from rl.config import Section
from synth.graph import KnowledgeGraph
from synth.paths import Retrieve
from synth.transcripts import observation, prompt, tagged, untagged
from synth.wording import spoken
from warehouse.digests import digest, seed_from
from warehouse.records import Example, Failure, Outcome, Task, Trajectory, Turn


class HasConfig(Section):
    """How wide the decisions are."""

    n_alternatives: int = Field(default=2, ge=1, le=20)
    """Alternatives to the action taken at each step; fewer only where the graph knows no more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One step: the options as text, the number of the one that was taken (from 0), the call and its response (empty at the end)."""

    options: tuple[str, ...]
    chosen: int
    call: str
    response: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A trajectory as decisions, with the judgement of its outcome."""

    question: str
    steps: tuple[Decision, ...]
    correct: bool
    trajectory_id: str


def build_has(
    graph: KnowledgeGraph,
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    config: HasConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    wheel_turn: int = 1,
) -> tuple[list[Example], list[Failure]]:
    """One example for each usable trajectory, in their order; the others as failures.

    Args:
        tasks: by key; the questions are there.
        retrieve: the search that the trajectories used, to know which document a response showed; without it titles serve.
    """
    examples: list[Example] = []
    failures: list[Failure] = []
    for trajectory in trajectories:
        unusable = _unusable(trajectory, tasks)
        if unusable:
            failures.append(Failure("synth", f"has_{unusable}", f"trajectory of {trajectory.task_key} left out", trajectory.id))
            continue
        rng = random.Random(seed_from("has", seed, trajectory.id))
        record = decisions(graph, trajectory, tasks[trajectory.task_key].question, config.n_alternatives, rng, retrieve)
        examples.append(_example(record, wheel_turn))
    return examples, failures


def _unusable(trajectory: Trajectory, tasks: Mapping[str, Task]) -> str | None:
    """Why a trajectory makes no decision record, in a word."""
    if trajectory.outcome is Outcome.INVALID:
        return "invalid"
    if trajectory.outcome is None:
        return "not_judged"
    if not trajectory.turns:
        return "empty"
    return None if trajectory.task_key in tasks else "unknown_task"


def decisions(
    graph: KnowledgeGraph, trajectory: Trajectory, question: str, alternatives: int, rng: random.Random, retrieve: Retrieve | None
) -> DecisionRecord:
    """The decision record of one trajectory."""
    read: list[str] = []
    steps: list[Decision] = []
    for turn in trajectory.turns:
        taken = describe(turn)
        others = _alternatives(graph, read, taken, alternatives, rng)
        options = [taken, *others]
        rng.shuffle(options)
        steps.append(Decision(tuple(options), options.index(taken), _call(turn), untagged(turn.observation)))
        read += _shown(graph, turn, retrieve)
    return DecisionRecord(question, tuple(steps), trajectory.outcome is Outcome.SUCCESS, trajectory.id)


def describe(turn: Turn) -> str:
    """An action as the text of an option: the thought, then the call; what could not be read as an action stands as it was."""
    if turn.tool is None:
        return f"write {untagged(turn.action)}"
    thought = untagged(turn.action.partition("</think>")[0]) if "</think>" in turn.action else ""
    return _option(thought, turn.tool, turn.arguments or "")


def _option(thought: str, tool: str, argument: str) -> str:
    return f"{thought}, {tool} {argument}" if thought else f"{tool} {argument}"


def _call(turn: Turn) -> str:
    """The call that was made, in tags; none where it was no call."""
    return tagged(turn.tool, turn.arguments or "") if turn.tool is not None else ""


def _shown(graph: KnowledgeGraph, turn: Turn, retrieve: Retrieve | None) -> list[str]:
    """The title of the document that a search showed."""
    if turn.tool != "search" or not turn.arguments:
        return []
    document = retrieve(turn.arguments) if retrieve is not None else graph.titled(turn.arguments)
    return [document.title] if document is not None else []


def _alternatives(graph: KnowledgeGraph, read: Sequence[str], taken: str, count: int, rng: random.Random) -> list[str]:
    """`count` other actions: from the last document read, from those before it, then searches for anything in the graph."""
    chosen: list[str] = []
    for entity in dict.fromkeys(reversed(read)):
        pool = [option for option in _proposals(graph, entity) if option != taken and option not in chosen]
        chosen += rng.sample(pool, min(count - len(chosen), len(pool)))
    return chosen + _elsewhere(graph, {taken, *chosen}, count - len(chosen), rng)


def _proposals(graph: KnowledgeGraph, entity: str) -> list[str]:
    """What the oracle could do after the document of `entity`: go on with any of its facts, or answer with it."""
    thoughts = [(f"{spoken(fact.relation)} {fact.object}", fact.object) for fact in graph.about(entity) if fact.documents]
    return [_option(thought, tool, value) for thought, value in thoughts for tool in ("search", "answer")]


def _elsewhere(graph: KnowledgeGraph, excluded: set[str], count: int, rng: random.Random) -> list[str]:
    """`count` searches for entities drawn from the graph, or as many as it has."""
    entities = graph.subjects
    drawn = rng.sample(entities, min(len(entities), count + len(excluded)))
    return [option for option in (_option("", "search", entity) for entity in drawn) if option not in excluded][:count]


def render(record: DecisionRecord) -> str:
    """A decision record as training text."""
    parts = [prompt(record.question)]
    for step in record.steps:
        listed = " ".join(f"{number}. {option}" for number, option in enumerate(step.options, start=1))
        parts.append(tagged("think", f"options: {listed} I will choose option {step.chosen + 1}") + step.call)
        parts.append(observation(step.response) if step.response else "")
    verdict = "Correct" if record.correct else "Incorrect"
    return "".join(parts) + f" My decision is {verdict}"


def _example(record: DecisionRecord, wheel_turn: int) -> Example:
    text = render(record)
    return Example(f"has-{digest([record.trajectory_id, text])}", "has", ((text, True),), (record.trajectory_id,), wheel_turn)
