"""Higher-order action synthesis (AgentFounder, arXiv 2509.13310): stored trajectories as decision records.

At each step of a trajectory other actions are proposed, none of which is executed; they are listed with the one that was taken, the
choice is stated, and the real response follows. The end is a verdict. Successes and failures both serve: what is learnt is
deciding, and judging the outcome, rather than one path. Where the oracle can tell which action leads on, contrastive records say so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from rl.engines.config import Temperature
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.has.contrasts import ActionOracle, contrasts
from synth.has.decisions import RENDERINGS, Decision, DecisionRecord, Option, Rendering, Step, describe, steps_of
from synth.has.proposers import OracleProposer, Proposer
from synth.parts import identity
from synth.questions.paths import Retrieve
from warehouse.digests import seed_from
from warehouse.errors import RequestError
from warehouse.records import Example, Failure, Outcome, Task, Trajectory
from warehouse.settings import Section


class HasConfig(Section):
    """Higher-order action synthesis: alternatives per step, who proposes them, and how records are written."""

    n_alternatives: int = Field(default=2, ge=1, le=20)
    """Alternatives to the action taken at each step; fewer where the proposers have no more."""
    mixture: dict[str, float] = Field(default_factory=lambda: {"oracle": 1.0})
    """Share of the alternatives by proposer: `oracle`, `others` (actions of other runs), `teacher`, `policy`."""
    policy_temperature: Temperature = Field(default=1.0, gt=0)
    """Sampling temperature of the policy's alternatives."""
    rendering: Rendering = "thought"
    """`thought`: all options in one thought, then the call; `listing`: one line per option, as in the paper."""
    unjudged: Literal["drop", "open"] = "drop"
    """Trajectories without a verdict: drop them, or render them without one."""
    contrasts: int = Field(default=0, ge=0)
    """Maximum contrastive records per trajectory; the graph must know the question's path."""

    @field_validator("mixture")
    @classmethod
    def _check(cls, mixture: dict[str, float]) -> dict[str, float]:
        if any(share < 0 for share in mixture.values()) or sum(mixture.values()) <= 0:
            raise ValueError("mixture has a share above 0 and none below")
        return mixture


class HasExamples(NamedTuple):
    """What trajectories came to: the examples, what was left out, and the records that the examples write."""

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
) -> HasExamples:
    """One example for each usable trajectory, in their order, with its contrasts behind it; the others as failures.

    A step that has too few alternatives, or whose action could not be written anew, is a failure of its own.

    Args:
        graph: what the oracle knows; None for runs without a graph of their own.
        tasks: by key; the questions are there.
        retrieve: the search that the trajectories used, to know which document a response showed; without it titles serve.
        proposers: by their names in the mixture; the oracle is there already where there is a graph.
        allowed: which entities of the graph the oracle may name unasked, as in `build_questions`.

    Raises:
        RequestError: the mixture names a proposer that is not there.
    """
    known: dict[str, Proposer] = {} if graph is None else {"oracle": OracleProposer(graph, retrieve, allowed)}
    mixture = _Mixture(known | dict(proposers or {}), config)
    oracle = ActionOracle(graph, retrieve) if graph is not None and config.contrasts else None
    usable, failures = _sort_out(trajectories, tasks, config)
    failures += mixture.prepare([step for trajectory in usable for step in steps_of(trajectory, tasks[trajectory.task_key].question)])
    examples: list[Example] = []
    records: list[DecisionRecord] = []
    for trajectory in usable:
        task = tasks[trajectory.task_key]
        rng = random.Random(seed_from("has", seed, trajectory.id))
        record, left_out = decisions(trajectory, task.question, mixture, rng)
        failures += left_out
        if not any(decision.is_choice for decision in record.steps):
            failures.append(Failure("synth", "has_no_alternative", "no step has alternatives enough", trajectory.id))
            continue
        records.append(record)
        examples.append(_example(record, config, wheel_turn))
        examples += contrasts(oracle, task, record, config.contrasts, rng, wheel_turn) if oracle is not None else []
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
    """Why a trajectory makes no decision record, in a word."""
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
    """Several proposers as one, each with its share of the alternatives."""

    def __init__(self, proposers: Mapping[str, Proposer], config: HasConfig) -> None:
        missing = sorted(config.mixture.keys() - proposers.keys())
        if missing:
            there = ", ".join(sorted(proposers)) or "none"
            raise RequestError(f"synth.has.mixture names {', '.join(missing)}, but the proposers that are at hand are: {there}.")
        self._proposers = {name: proposers[name] for name in config.mixture}
        self._shares = list(config.mixture.values())
        self._count = config.n_alternatives

    def prepare(self, steps: Sequence[Step]) -> list[Failure]:
        return [failure for proposer in self._proposers.values() for failure in proposer.prepare(steps, self._count)]

    def decision(self, step: Step, rng: random.Random) -> tuple[Decision, Failure | None]:
        """The step as a choice; or as what happened, with the reason why it is none."""
        found = self._alternatives(step, rng)
        item = {"trajectory": step.trajectory_id, "turn": step.turn.index, "alternatives": len(found), "wanted": self._count}
        if not found:
            reason = "0 alternatives, and 1 is needed"
            return _no_choice(step), Failure("synth", "has_step_too_few_alternatives", reason, item)
        writer = rng.choice([name for name, _ in found])
        taken = self._proposers[writer].taken(step)
        if taken is None:
            reason = f"the {writer} did not write the action that was taken anew"
            return _no_choice(step), Failure("synth", "has_step_not_written_anew", reason, item)
        options = [taken, *(option for _, option in found)]
        rng.shuffle(options)
        return Decision(step, tuple(options), options.index(taken)), None

    def _alternatives(self, step: Step, rng: random.Random) -> list[tuple[str, Option]]:
        """Alternatives to what was done, all different, each with who proposed it."""
        found: list[tuple[str, Option]] = []
        for name, wanted in self._orders(rng):
            known = {describe(step.turn).action, *(option.action for _, option in found)}
            proposed = self._proposers[name].propose(step, min(wanted, self._count - len(found)), known, rng)
            found += [(name, option) for option in proposed]
            if len(found) == self._count:
                break
        return found

    def _orders(self, rng: random.Random) -> Iterator[tuple[str, int]]:
        """Whom to ask for how many: each for its draw of the alternatives, then each for whatever is still lacking."""
        names = list(self._proposers)
        if len(names) > 1:
            drawn = rng.choices(names, self._shares, k=self._count)
            yield from ((name, drawn.count(name)) for name in names if name in drawn)
        yield from ((name, self._count) for name in names)


def _no_choice(step: Step) -> Decision:
    return Decision(step, (describe(step.turn),), 0)


def decisions(trajectory: Trajectory, question: str, mixture: _Mixture, rng: random.Random) -> tuple[DecisionRecord, list[Failure]]:
    """The decision record of one trajectory, and why steps are no choice; the place of the action taken is uniform among the options."""
    made = [mixture.decision(step, rng) for step in steps_of(trajectory, question)]
    judged = None if trajectory.outcome is None else trajectory.outcome is Outcome.SUCCESS
    record = DecisionRecord(question, tuple(decision for decision, _ in made), judged, trajectory.id)
    return record, [failure for _, failure in made if failure is not None]


def _example(record: DecisionRecord, config: HasConfig, wheel_turn: int) -> Example:
    parts = RENDERINGS[config.rendering](record)
    identifier = f"has-{identity(record.trajectory_id, parts=parts)}"
    return Example(identifier, "has", parts, (record.trajectory_id,), wheel_turn)
