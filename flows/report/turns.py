"""The turns of the wheel side by side: what each made, sampled and cost."""

from __future__ import annotations

from dataclasses import dataclass

from flows.report.rows import rows
from warehouse import Lake


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """One turn of the wheel: what its stages took in seconds, made and sampled. Counts are of what the lake holds of the turn."""

    wheel_turn: int
    seconds: dict[str, float]
    """Seconds of the completed runs of each stage."""
    examples: int
    sampled: int
    """Trajectories of the turn's RL runs."""
    evaluated: int
    invalid: int
    action_tokens: int
    observation_tokens: int

    @property
    def trajectories(self) -> int:
        """All of the turn."""
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


def read_turns(lake: Lake) -> tuple[TurnFacts, ...]:
    """Each turn that has run or left trajectories."""
    found = rows(lake, _TURNS)
    spent = [{part["stage"]: part["seconds"] for part in row.pop("ran") or ()} for row in found]
    return tuple(TurnFacts(seconds=seconds, **row) for row, seconds in zip(found, spent, strict=True))
