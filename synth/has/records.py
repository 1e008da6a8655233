"""Higher-order action synthesis (AgentFounder, arXiv 2509.13310): stored trajectories as decision records.

Each step lists the taken action among proposed, unexecuted alternatives, followed by the choice and the real response; a verdict ends the
record. Successes and failures are both used: the policy learns to decide and to judge outcomes. With `outcomes`, options are executed, and
the choice is the one that succeeds more often. Contrastive records name the one option that makes progress, where the oracle can tell: a
search that returns the next unread document of the question's path, or an accepted answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from eval.graders.answers import exact_match
from rl.engines.config import Temperature
from synth.demonstrations.oracle import paths_of, thought
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.has.decisions import (
    RENDERINGS,
    Decision,
    DecisionRecord,
    Option,
    Rendering,
    Step,
    calls_in,
    describe,
    option,
    steps_of,
    unchosen,
)
from synth.has.outcomes import Labeller, OutcomesConfig, Player
from synth.has.proposers import OracleProposer, Proposer
from synth.parts import asked, calls_of, considered, identity, of_turn
from synth.questions.paths import Retrieve, Route, stating_documents
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import ANSWER, Example, Failure, Outcome, Task, Trajectory, Turn
from warehouse.settings import Section


@dataclass(frozen=True, slots=True)
class Progress:
    """Position of a run on its question's path; `read` counts the documents read so far, in order."""

    task: Task
    path: Route
    read: int


class ActionOracle:
    """Tells which actions make progress. `retrieve` is the search they would use (None: by title)."""

    def __init__(self, graph: KnowledgeGraph, retrieve: Retrieve | None = None) -> None:
        self._graph = graph
        self._find = retrieve or graph.titled

    def progress(self, task: Task, before: Sequence[Turn]) -> Progress | None:
        """Progress after the turns `before`; None unless the graph knows exactly one path."""
        paths = paths_of(self._graph, task)
        if len(paths) != 1:
            return None
        (path,) = paths
        read = 0
        for turn in before:
            for tool, query in calls_of(turn):
                read += read < len(path) and tool == "search" and self._brings(path, read, query)
        return Progress(task, path, read)

    def leads_on(self, at: Progress, action: Option) -> bool:
        """Whether any call of `action` makes progress."""
        return any(self._call_leads_on(at, tool, argument) for tool, argument in action.calls)

    def best(self, at: Progress) -> Option:
        think = thought(self._graph, at.path[at.read - 1]) if at.read else ""
        if at.read < len(at.path):
            return option(think, ("search", at.path[at.read].query))
        return option(think, ("answer", at.path[-1].value))

    def _call_leads_on(self, at: Progress, tool: str, argument: str) -> bool:
        if tool == ANSWER:
            return exact_match(argument, at.task.answers)
        return tool == "search" and at.read < len(at.path) and self._brings(at.path, at.read, argument)

    def _brings(self, path: Route, number: int, query: str) -> bool:
        document = self._find(query)
        return document is not None and document.id in stating_documents(self._graph, path[number])


def contrasts(
    oracle: ActionOracle, task: Task, record: DecisionRecord, count: int, rng: random.Random, wheel_turn: int = 1
) -> list[Example]:
    """At most `count` contrastive examples at random steps of a record, in order."""
    found = [(decision, drawn) for decision in record.steps if (drawn := _contrast(oracle, task, decision, rng)) is not None]
    chosen = sorted(rng.sample(range(len(found)), min(count, len(found))))
    return [_contrast_example(record, *found[number], wheel_turn) for number in chosen]


def _contrast(oracle: ActionOracle, task: Task, decision: Decision, rng: random.Random) -> tuple[tuple[Option, ...], int] | None:
    """Options of which exactly one makes progress, and its index; None if there is no such contrast."""
    at = oracle.progress(task, decision.step.before)
    if at is None:
        return None
    worth = [oracle.leads_on(at, option) for option in decision.options]
    good = [option for option, leads in zip(decision.options, worth, strict=True) if leads] or _checked(oracle, at)
    bad = [option for option, leads in zip(decision.options, worth, strict=True) if not leads]
    if not good or not bad:
        return None
    options = [rng.choice(good), *bad]
    best = options[0]
    rng.shuffle(options)
    return tuple(options), options.index(best)


def _checked(oracle: ActionOracle, at: Progress) -> list[Option]:
    best = oracle.best(at)
    return [best] if oracle.leads_on(at, best) else []


def _contrast_example(record: DecisionRecord, decision: Decision, drawn: tuple[tuple[Option, ...], int], wheel_turn: int) -> Example:
    options, number = drawn
    listed = " ".join(f"{place}. {option.text}" for place, option in enumerate(options, start=1))
    best = options[number]
    decided = considered(f"options: {listed} Only option {number + 1} leads on") + calls_in(best)
    parts = asked(record.question) + tuple(part for turn in decision.step.before for part in of_turn(turn, learnt=False)) + decided
    identifier = f"contrast-{identity(record.trajectory_id, parts=parts, by_mask=True)}"
    return Example(identifier, "has_contrast", parts, (record.trajectory_id,), wheel_turn)


class HasConfig(Section):
    """Higher-order action synthesis: alternatives per step, their proposers, and the rendering of records."""

    n_alternatives: int = Field(default=2, ge=1, le=20)
    """Alternatives to the taken action per step; fewer if the proposers know no more."""
    mixture: dict[str, float] = Field(default_factory=lambda: {"oracle": 1.0})
    """Share of alternatives per proposer: `oracle`, `others` (actions of other runs), `teacher`, `policy`."""
    policy_temperature: Temperature = Field(default=1.0, gt=0)
    """Sampling temperature of the policy's alternatives."""
    rendering: Rendering = "thought"
    """`thought`: all options in one thought, then the call; `listing`: one line per option, as in the paper."""
    unjudged: Literal["drop", "open"] = "drop"
    """Handling of trajectories without a verdict: `drop` them, or render them without one (`open`)."""
    contrasts: int = Field(default=0, ge=0)
    """Maximum contrastive records per trajectory; requires that the graph knows the question's path."""
    where: str | None = None
    """SQL condition on the table `trajectories` that selects the input. None: RL rollouts of earlier iterations."""
    outcomes: OutcomesConfig | None = None
    """Label choices by executing the options. None: the choice is the taken action."""

    @field_validator("mixture")
    @classmethod
    def _check(cls, mixture: dict[str, float]) -> dict[str, float]:
        if any(share < 0 for share in mixture.values()) or sum(mixture.values()) <= 0:
            raise ValueError("mixture needs a share above 0 and none below 0")
        return mixture

    def asks(self, model: Literal["teacher", "policy"]) -> bool:
        """Whether this model proposes or continues from alternatives."""
        return model in self.mixture or (self.outcomes is not None and self.outcomes.player == model)


class HasExamples(NamedTuple):
    examples: list[Example]
    failures: list[Failure]
    records: list[DecisionRecord]


def build_has(
    graph: KnowledgeGraph | None,
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    config: HasConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    wheel_turn: int = 1,
    proposers: Mapping[str, Proposer] | None = None,
    allowed: Callable[[str], bool] | None = None,
    player: Player | None = None,
) -> HasExamples:
    """Build one example per usable trajectory, in order, each followed by its contrasts; failures report unusable trajectories and steps.

    With `outcomes`, a trajectory yields as many examples as `Labeller.label` makes records.

    Args:
        graph: knowledge of the oracle; None for imported runs.
        tasks: tasks by key, for their questions.
        retrieve: search used in the trajectories (None: by title).
        proposers: proposers by mixture name; the oracle is added if there is a graph.
        allowed: entities that the oracle's random searches may name, as in `build_questions`.
        player: continues runs; required for `outcomes` only.

    Raises:
        RequestError: the mixture names an unavailable proposer.
    """
    known: dict[str, Proposer] = {} if graph is None else {"oracle": OracleProposer(graph, retrieve, allowed)}
    mixture = _Mixture(known | dict(proposers or {}), config)
    oracle = ActionOracle(graph, retrieve) if graph is not None and config.contrasts else None
    usable, failures = _sort_out(trajectories, tasks, config)
    failures += mixture.prepare([step for trajectory in usable for step in steps_of(trajectory, tasks[trajectory.task_key].question)])
    records: list[DecisionRecord] = []
    for trajectory in usable:
        rng = random.Random(seed_from("has", seed, trajectory.id))
        record, left_out = decisions(trajectory, tasks[trajectory.task_key].question, mixture, rng)
        failures += left_out
        if any(decision.is_choice for decision in record.steps):
            records.append(record)
        else:
            failures.append(Failure("synth", "has_no_alternative", "no step has enough alternatives", trajectory.id))
    if config.outcomes is not None and player is not None:
        sources = {trajectory.id: trajectory for trajectory in usable}
        records, unlabelled = Labeller(config.outcomes, player, sources, tasks, seed, wheel_turn).label(records)
        failures += unlabelled
    examples: list[Example] = []
    for record in records:
        examples.append(_example(record, config, wheel_turn))
        if oracle is not None:
            task, rng = tasks[record.steps[0].step.task_key], random.Random(seed_from("has contrasts", seed, record.trajectory_id))
            examples += contrasts(oracle, task, record, config.contrasts, rng, wheel_turn)
    return HasExamples(examples, failures, records)


def _sort_out(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task], config: HasConfig) -> tuple[list[Trajectory], list[Failure]]:
    usable: list[Trajectory] = []
    failures: list[Failure] = []
    for trajectory in trajectories:
        reason = _unusable(trajectory, tasks, config)
        if reason is None:
            usable.append(trajectory)
        else:
            failures.append(Failure("synth", f"has_{reason}", f"trajectory of {trajectory.task_key} left out", trajectory.id))
    return usable, failures


def _unusable(trajectory: Trajectory, tasks: Mapping[str, Task], config: HasConfig) -> str | None:
    if trajectory.outcome is Outcome.INVALID:
        return "invalid"
    if trajectory.outcome is None and config.unjudged == "drop":
        return "not_judged"
    if not trajectory.turns:
        return "empty"
    if trajectory.images:
        return "of_images"
    return None if trajectory.task_key in tasks else "unknown_task"


class _Mixture:
    """Combines proposers, each with its share of the alternatives."""

    def __init__(self, proposers: Mapping[str, Proposer], config: HasConfig) -> None:
        missing = sorted(config.mixture.keys() - proposers.keys())
        if missing:
            there = ", ".join(sorted(proposers)) or "none"
            raise RequestError(f"synth.has.mixture names {', '.join(missing)}, but the available proposers are: {there}.")
        self._proposers = {name: proposers[name] for name in config.mixture}
        self._shares = list(config.mixture.values())
        self._count = config.n_alternatives

    def prepare(self, steps: Sequence[Step]) -> list[Failure]:
        return [failure for proposer in self._proposers.values() for failure in proposer.prepare(steps, self._count)]

    def decision(self, step: Step, rng: random.Random) -> tuple[Decision, Failure | None]:
        found = self._alternatives(step, rng)
        item = {"trajectory": step.trajectory_id, "turn": step.turn.index, "alternatives": len(found), "wanted": self._count}
        if not found:
            return unchosen(step), Failure("synth", "has_step_too_few_alternatives", "0 alternatives, and 1 is needed", item)
        writer = rng.choice([name for name, _ in found])
        taken = self._proposers[writer].taken(step)
        if taken is None:
            reason = f"the {writer} did not rewrite the action taken"
            return unchosen(step), Failure("synth", "has_step_not_written_anew", reason, item)
        options = [taken, *(option for _, option in found)]
        rng.shuffle(options)
        return Decision(step, tuple(options), options.index(taken)), None

    def _alternatives(self, step: Step, rng: random.Random) -> list[tuple[str, Option]]:
        found: list[tuple[str, Option]] = []
        for name, wanted in self._orders(rng):
            known = {describe(step.turn).action, *(option.action for _, option in found)}
            proposed = self._proposers[name].propose(step, min(wanted, self._count - len(found)), known, rng)
            found += [(name, option) for option in proposed]
            if len(found) == self._count:
                break
        return found

    def _orders(self, rng: random.Random) -> Iterator[tuple[str, int]]:
        """Proposers and counts to ask for: first a random draw by share, then each for the remainder."""
        names = list(self._proposers)
        if len(names) > 1:
            drawn = rng.choices(names, self._shares, k=self._count)
            yield from ((name, drawn.count(name)) for name in names if name in drawn)
        yield from ((name, self._count) for name in names)


def decisions(trajectory: Trajectory, question: str, mixture: _Mixture, rng: random.Random) -> tuple[DecisionRecord, list[Failure]]:
    """Decision record of a trajectory, and failures for steps without a choice; the taken option's position is uniform."""
    made = [mixture.decision(step, rng) for step in steps_of(trajectory, question)]
    judged = None if trajectory.outcome is None else trajectory.outcome is Outcome.SUCCESS
    record = DecisionRecord(question, tuple(decision for decision, _ in made), judged, trajectory.id)
    return record, [failure for _, failure in made if failure is not None]


def _example(record: DecisionRecord, config: HasConfig, wheel_turn: int) -> Example:
    parts = RENDERINGS[config.rendering](record)
    identifier = f"has-{identity(record.trajectory_id, parts=parts)}"
    return Example(identifier, "has", parts, (record.trajectory_id,), wheel_turn)
