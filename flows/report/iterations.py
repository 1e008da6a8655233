"""The iterations of the wheel side by side: what each made, sampled and cost, its frontier, its tool use, and the lineage of its policies.

The frontier says which training tasks of each depth the policy solved in all of its attempts, in some, or in none. Only what is solved
sometimes teaches RL anything; where the wheel turns well, the share of such tasks moves to deeper ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.plan import WHEEL_ROLLOUTS
from warehouse import Lake


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of the wheel: what its stages took in seconds, made and sampled. Counts are of what the lake holds of it."""

    wheel_turn: int
    seconds: dict[str, float]
    """Seconds of the completed runs of each stage."""
    examples: int
    sampled: int
    """Trajectories of its RL runs."""
    evaluated: int
    invalid: int
    action_tokens: int
    observation_tokens: int

    @property
    def trajectories(self) -> int:
        """All of the iteration."""
        return self.sampled + self.evaluated


_TURNS = """
WITH numbers AS (SELECT DISTINCT wheel_turn FROM runs UNION SELECT DISTINCT wheel_turn FROM trajectories WHERE stage IN ('rl', 'eval')),
ran AS (
    SELECT wheel_turn, stage, sum(epoch(finished - started)) AS seconds FROM runs WHERE state = 'completed' GROUP BY ALL
), made AS (
    SELECT wheel_turn, count(*) AS examples FROM examples GROUP BY ALL
), rolled AS (
    SELECT t.wheel_turn, count(*) FILTER (t.stage = 'rl') AS sampled, count(*) FILTER (t.stage = 'eval') AS evaluated,
        count(*) FILTER (o.outcome = 'invalid') AS invalid, sum(t.action_tokens)::BIGINT AS action_tokens,
        sum(t.observation_tokens)::BIGINT AS observation_tokens
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id WHERE t.stage IN ('rl', 'eval') GROUP BY ALL
)
SELECT n.wheel_turn, (SELECT list({'stage': stage, 'seconds': seconds} ORDER BY stage) FROM ran WHERE ran.wheel_turn = n.wheel_turn) AS ran,
    coalesce(m.examples, 0) AS examples, coalesce(r.sampled, 0) AS sampled, coalesce(r.evaluated, 0) AS evaluated,
    coalesce(r.invalid, 0) AS invalid, coalesce(r.action_tokens, 0) AS action_tokens,
    coalesce(r.observation_tokens, 0) AS observation_tokens
FROM numbers n LEFT JOIN made m USING (wheel_turn) LEFT JOIN rolled r USING (wheel_turn) WHERE n.wheel_turn > 0 ORDER BY n.wheel_turn
"""


def read_iterations(lake: Lake) -> tuple[Iteration, ...]:
    """Each iteration that has run or left trajectories."""
    found = lake.query(_TURNS).to_pylist()
    spent = [{part["stage"]: part["seconds"] for part in row.pop("ran") or ()} for row in found]
    return tuple(Iteration(seconds=seconds, **row) for row, seconds in zip(found, spent, strict=True))


@dataclass(frozen=True, slots=True)
class FrontierDepth:
    """Tasks of one depth that RL drew in one turn and that had at least two valid attempts there, by how many of these solved them."""

    wheel_turn: int
    hops: int
    never: int
    sometimes: int
    always: int

    @property
    def tasks(self) -> int:
        """All of them."""
        return self.never + self.sometimes + self.always


_DEPTHS = f"""
WITH solved AS (
    SELECT t.wheel_turn, k.hops, avg((t.outcome = 'success')::INT) AS rate
    FROM (SELECT * FROM outcomes WHERE {WHEEL_ROLLOUTS} AND outcome <> 'invalid') t JOIN tasks k ON k.key = t.task_key
    GROUP BY t.wheel_turn, t.task_key, k.hops HAVING count(*) >= 2
)
SELECT wheel_turn, hops, count(*) FILTER (rate = 0) AS never, count(*) FILTER (rate > 0 AND rate < 1) AS sometimes,
    count(*) FILTER (rate = 1) AS always
FROM solved GROUP BY ALL ORDER BY ALL
"""


def read_frontier(lake: Lake) -> tuple[FrontierDepth, ...]:
    """The frontier of each turn, by depth."""
    return tuple(FrontierDepth(**row) for row in lake.query(_DEPTHS).to_pylist())


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Calls of one tool by the trajectories of one stage in one turn of the wheel.

    `ok` calls gave what was asked for; `retries` counts tries before. `p50` and `p95` are seconds, None where no call was timed.
    """

    wheel_turn: int
    stage: str
    tool: str
    trajectories: int
    """All of the stage in the turn, those without a call included."""
    calls: int
    ok: int
    retries: int
    p50: float | None
    p95: float | None

    @property
    def calls_each(self) -> float:
        """Calls a trajectory."""
        return self.calls / self.trajectories


_TOOLS = """
WITH made AS (SELECT wheel_turn, stage, count(*) AS trajectories FROM trajectories GROUP BY ALL)
SELECT t.wheel_turn, t.stage, c.tool, any_value(m.trajectories) AS trajectories, count(*) AS calls,
    count(*) FILTER (c.outcome = 'ok') AS ok, sum(c.retries)::BIGINT AS retries,
    quantile_cont(c.latency_seconds, 0.5) AS p50, quantile_cont(c.latency_seconds, 0.95) AS p95
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id JOIN made m ON (m.wheel_turn, m.stage) = (t.wheel_turn, t.stage)
WHERE c.tool <> 'answer' GROUP BY t.wheel_turn, t.stage, c.tool ORDER BY 1, 2, 3
"""


def read_tools(lake: Lake) -> tuple[ToolUse, ...]:
    """The use of tools by turn and stage."""
    return tuple(ToolUse(**row) for row in lake.query(_TOOLS).to_pylist())


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
    """What the gate decided at the end of a turn, and why, in a sentence."""

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
SELECT r.wheel_turn, coalesce(r.figures->>'candidate', '') AS candidate, r.figures->>'champion' AS champion,
    coalesce((r.figures->>'promoted')::BOOL, false) AS promoted, r.figures->>'reason' AS reason
FROM runs r WHERE r.stage = 'gate' AND r.state = 'completed' ORDER BY r.wheel_turn
"""


def read_lineage(lake: Lake) -> Lineage:
    """All policies and decisions of a lake."""
    items: dict[str, list[tuple[str, int]]] = {}
    for row in lake.query(_ITEMS).to_pylist():
        items.setdefault(row["policy"], []).append((row["kind"], row["items"]))
    found = [{**row, "items": tuple(items.get(row["id"], ()))} for row in lake.query(_POLICIES).to_pylist()]
    decisions = {row["wheel_turn"]: Decision(**row) for row in lake.query(_DECISIONS).to_pylist()}
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
