"""Where policies come from: the tree of all of them, the line of the promoted one, and what the gate said at each turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.report.rows import parsed, rows
from warehouse import Lake


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One policy; `depth` is its distance from the first ancestor, `items` how much of each kind it was trained on."""

    id: str
    parent: str | None
    stage: str
    wheel_turn: int
    snapshot: int | None
    promoted: bool
    depth: int
    items: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate decided at the end of a turn; `reason` is why a candidate was kept back."""

    wheel_turn: int
    candidate: str
    champion: str | None
    promoted: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """All policies, each after its parent, and the gate's decisions in the order of turns."""

    policies: tuple[Ancestor, ...]
    decisions: tuple[Decision, ...]

    @property
    def champion(self) -> Ancestor | None:
        """The policy that was promoted last."""
        promoted = [policy for policy in self.policies if policy.promoted]
        return max(promoted, key=lambda policy: (policy.wheel_turn, policy.depth), default=None)

    @property
    def line(self) -> tuple[Ancestor, ...]:
        """The champion's line from its first ancestor on; empty where nothing was promoted."""
        by_id = {policy.id: policy for policy in self.policies}
        line, here = list[Ancestor](), self.champion
        while here is not None and here not in line:
            line.append(here)
            here = by_id.get(here.parent) if here.parent else None
        return tuple(reversed(line))


_POLICIES = "SELECT id, parent, stage, wheel_turn, snapshot, promoted FROM policies ORDER BY wheel_turn, id"

_ITEMS = "SELECT policy, kind, count(*) AS items FROM training_items GROUP BY policy, kind ORDER BY policy, items DESC, kind"

_DECISIONS = """
SELECT r.wheel_turn, r.figures, f.reason FROM runs r
LEFT JOIN (SELECT item, reason, kind FROM failures WHERE stage = 'gate') f ON starts_with(f.reason, (r.figures->>'candidate') || ' ')
WHERE r.stage = 'gate' AND r.state = 'completed' ORDER BY r.wheel_turn, f.reason
"""


def read_lineage(lake: Lake) -> Lineage:
    """All policies and decisions of a lake."""
    items: dict[str, list[tuple[str, int]]] = {}
    for row in rows(lake, _ITEMS):
        items.setdefault(row["policy"], []).append((row["kind"], row["items"]))
    found = [{**row, "items": tuple(items.get(row["id"], ()))} for row in rows(lake, _POLICIES)]
    decisions = {row["wheel_turn"]: _decision(row) for row in rows(lake, _DECISIONS)}
    return Lineage(_ordered(found), tuple(decisions.values()))


def _ordered(found: list[dict[str, Any]]) -> tuple[Ancestor, ...]:
    """The policies, each after its parent."""
    known = {row["id"] for row in found}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for row in found:
        children.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)
    ordered: list[Ancestor] = []
    pending = [(row, 0) for row in reversed(children.get(None, []))]
    while pending:
        row, depth = pending.pop()
        ordered.append(Ancestor(**row, depth=depth))
        pending.extend((child, depth + 1) for child in reversed(children.get(row["id"], [])))
    return tuple(ordered)


def _decision(row: dict[str, Any]) -> Decision:
    figures = parsed(row["figures"])
    promoted = bool(figures.get("promoted"))
    return Decision(row["wheel_turn"], figures.get("candidate", ""), figures.get("champion"), promoted, None if promoted else row["reason"])
