"""Tool use: how often the trajectories of each stage call each tool, what comes of it, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from flows.report.rows import rows
from warehouse import Lake


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
    return tuple(ToolUse(**row) for row in rows(lake, _TOOLS))
