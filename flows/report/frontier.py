"""The frontier: which training tasks of each depth the turn's policy solved in all of its attempts, in some, or in none.

Only what is solved sometimes teaches RL anything. Where the wheel turns well, the share of such tasks moves to deeper ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from flows.plan import WHEEL_ROLLOUTS
from flows.report.rows import rows
from warehouse import Lake


@dataclass(frozen=True, slots=True)
class Depth:
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


def read_frontier(lake: Lake) -> tuple[Depth, ...]:
    """The frontier of each turn, by depth."""
    return tuple(Depth(**row) for row in rows(lake, _DEPTHS))
