"""How hard a task is: what its formula shows, and how often a policy has solved it.

A pass rate is measured over valid trajectories alone. Where there is none, it is unknown, which is not zero. The deepest tasks are chosen
in the spirit of BrowseComp (Wei et al. 2025, arXiv 2504.12516): a short answer, proven to be the only one, is checked at once, and found
with difficulty where the way to it is long and no single search shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synth.formulas.triples import is_constant, unknowns
from warehouse.lake import Lake
from warehouse.records import Task, Triple


@dataclass(frozen=True, slots=True)
class PassRate:
    """Trajectories of a task that could be judged, and the successes among them."""

    judged: int = 0
    successes: int = 0

    @property
    def rate(self) -> float | None:
        """Share of successes; None where nothing was judged."""
        return self.successes / self.judged if self.judged else None


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What makes a task hard.

    Attributes:
        hops: documents that must be read.
        layers: longest way from the target to a leaf of the formula.
        constraints: constants of the formula.
        branching: most projections that meet in one unknown, the one that leads on to the target not counted; 1 for a chain.
        measured: how a policy, or all of them, fared.
    """

    hops: int
    layers: int
    constraints: int
    branching: int
    measured: PassRate = PassRate()


def difficulty_of(task: Task, measured: PassRate | None = None) -> Difficulty:
    """The difficulty of one task."""
    return Difficulty(task.hops, task.layers, task.constraints, branching(task.formula), measured or PassRate())


def branching(formula: Sequence[Triple]) -> int:
    """The widest branching of a formula's tree, seen from the target; 0 for no formula."""
    touching = Counter(node for triple in formula for node in {triple[0], triple[2]} if not is_constant(node))
    toward_target = {node: int(node != "?") for node in unknowns(formula)}
    return max((touching[node] - toward_target[node] for node in touching), default=0)


def pass_rates(lake: Lake, policy: str | None = None, at: int | None = None) -> dict[str, PassRate]:
    """By task key, for one policy or for all together, from the verdicts in the lake; a task that nobody tried is absent.

    Args:
        at: snapshot of the lake; the present one without it.
    """
    rows = lake.query(
        "SELECT task_key, sum(valid)::INT AS judged, sum(successes)::INT AS successes FROM pass_rate "
        "WHERE $policy IS NULL OR policy = $policy GROUP BY task_key ORDER BY task_key",
        {"policy": policy},
        at=at,
    )
    return {row["task_key"]: PassRate(row["judged"], row["successes"]) for row in rows.to_pylist()}


def by_difficulty(tasks: Iterable[Task], rates: dict[str, PassRate]) -> dict[str, Difficulty]:
    """The difficulty of each task, by key."""
    return {task.key: difficulty_of(task, rates.get(task.key)) for task in tasks}


def deepest(tasks: Iterable[Task], number: int | None = None) -> list[Task]:
    """The `number` deepest proven tasks (all without one), the deepest first: most hops, then layers, then constraints.

    Left out are tasks with several answers, those without a proof of how they are found, and those whose own wording, given to the search,
    brings a document of the answer on top.
    """
    hard = [task for task in tasks if len(task.answers) == 1 and task.proofs.get("easy") is False]
    hard.sort(key=lambda task: (-task.hops, -task.layers, -task.constraints, task.key))
    return hard[:number]
