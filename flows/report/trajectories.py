"""Trajectories to read: a sample of successes, failures and invalid ones of each stage and turn, cut into their parts.

The sample is drawn by the digest of the trajectory's id, so the same lake shows the same trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.report.data import rows
from warehouse import Lake

AT_MOST = 60
"""Trajectories shown in all."""
_TEXT_AT_MOST = 6_000
"""Characters of one part that the page carries; the lake holds the rest."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of tokens of one kind: `prompt`, `action` (trained) or `observation` (masked out); `note` is what it did."""

    kind: str
    text: str
    tokens: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One trajectory as it is read: who made it, what came of it, and its parts in order."""

    id: str
    question: str
    accepted: tuple[str, ...]
    stage: str
    wheel_turn: int
    hops: int | None
    outcome: str
    stop_reason: str
    horizon: int
    n_turns: int
    reward: float | None
    step: int | None
    error: str | None
    parts: tuple[Part, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all parts."""
        return sum(part.tokens for part in self.parts)


_SAMPLE = """
WITH placed AS (
    SELECT t.id, t.wheel_turn, t.stop_reason, t.horizon, t.n_turns, t.step, t.error, t.prompt_ids, o.reward, k.question, k.answers, k.hops,
        CASE WHEN t.stage = 'eval' THEN 'eval after ' || coalesce(p.stage, 'import') ELSE t.stage END AS shown_stage,
        coalesce(o.outcome, 'unjudged') AS verdict
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
    LEFT JOIN tasks k ON k.key = t.task_key LEFT JOIN policies p ON p.id = t.policy
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY wheel_turn, shown_stage, verdict ORDER BY md5(id)) AS place FROM placed
)
SELECT id, question, answers, shown_stage, wheel_turn, hops, verdict, stop_reason, horizon, n_turns, reward, step, error,
    len(prompt_ids) AS prompt_tokens
FROM ranked WHERE place = 1 OR verdict <> 'invalid' ORDER BY place, md5(id) LIMIT ?
"""

_TURNS = """
SELECT trajectory_id, action, tool, tool_outcome, observation, len(action_ids) AS action_tokens, len(observation_ids) AS observation_tokens
FROM turns WHERE list_contains(?, trajectory_id) ORDER BY trajectory_id, "index"
"""


def read_trajectories(lake: Lake, at_most: int = AT_MOST) -> tuple[Reading, ...]:
    """Up to `at_most` trajectories, evenly over turns, stages and outcomes, in the order of the wheel."""
    sample = rows(lake, _SAMPLE, [at_most])
    parts: dict[str, list[Part]] = {row["id"]: [_prompt(row)] for row in sample}
    for turn in rows(lake, _TURNS, [list(parts)]):
        parts[turn["trajectory_id"]].extend(_parts(turn))
    readings = [_reading(row, tuple(parts[row["id"]])) for row in sample]
    return tuple(sorted(readings, key=lambda reading: (reading.wheel_turn, _place(reading.stage), reading.hops or 0, reading.id)))


def _reading(row: dict[str, Any], parts: tuple[Part, ...]) -> Reading:
    return Reading(
        id=row["id"],
        question=row["question"] or "(the task is not in the lake)",
        accepted=tuple(row["answers"] or ()),
        stage=row["shown_stage"],
        wheel_turn=row["wheel_turn"],
        hops=row["hops"],
        outcome=row["verdict"],
        stop_reason=row["stop_reason"],
        horizon=row["horizon"],
        n_turns=row["n_turns"],
        reward=row["reward"],
        step=row["step"],
        error=row["error"],
        parts=parts,
    )


def _prompt(row: dict[str, Any]) -> Part:
    return Part("prompt", row["question"] or "", row["prompt_tokens"])


def _parts(turn: dict[str, Any]) -> list[Part]:
    tool = turn["tool"] or "no tool"
    parts = [Part("action", _cut(turn["action"]), turn["action_tokens"], tool)]
    if turn["observation_tokens"]:
        outcome = turn["tool_outcome"] or ""
        parts.append(Part("observation", _cut(turn["observation"]), turn["observation_tokens"], f"{tool}: {outcome}" if outcome else tool))
    return parts


def _cut(text: str) -> str:
    if len(text) <= _TEXT_AT_MOST:
        return text
    return f"{text[:_TEXT_AT_MOST]}\n… {len(text) - _TEXT_AT_MOST:,} more characters in the lake"


_ORDER = ("demonstration", "eval after init", "eval after cpt", "eval after sft", "rl", "eval after rl")


def _place(stage: str) -> int:
    return _ORDER.index(stage) if stage in _ORDER else len(_ORDER)
