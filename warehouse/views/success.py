"""Views on how well policies do: outcomes, rates with intervals, the frontier, and what tells success from failure.

An invalid trajectory is counted in a column of its own and takes part in no rate, mean or interval. What a trajectory came to is the
verdict of its latest score, else the outcome it was stored with; of scores committed together the first counts.
"""

from __future__ import annotations

from warehouse.views.definitions import View, wilson

_COUNTS = """count(*) FILTER (o.outcome = 'success') AS successes, count(*) FILTER (o.outcome = 'invalid') AS invalid,
    count(*) FILTER (o.outcome IN ('success', 'failure')) AS valid"""

OUTCOMES = View(
    "outcomes",
    "What did each trajectory come to, by the latest verdict on it?",
    """
SELECT t.id AS trajectory_id, coalesce(s.verdict, t.outcome) AS outcome,
    CASE WHEN coalesce(s.verdict, t.outcome) = 'invalid' THEN NULL ELSE coalesce(s.value, t.reward) END AS reward
FROM trajectories t LEFT JOIN (
    SELECT trajectory_id, verdict, value FROM scores WHERE NOT starts_with(verifier, 'unsupervised:')
    QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY recorded DESC, rowid) = 1
) s ON s.trajectory_id = t.id
""",
)

PASS_RATE = View(
    "pass_rate",
    "How often does each policy solve each task?",
    f"""
WITH counted AS (
    SELECT t.task_key, t.policy, count(*) AS attempts, {_COUNTS}
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id GROUP BY t.task_key, t.policy
)
SELECT c.task_key, k.environment, k.hops, c.policy, c.attempts, c.successes, c.invalid, c.successes / nullif(c.valid, 0) AS rate
FROM counted c LEFT JOIN tasks k ON k.key = c.task_key
""",
)

PASS_RATE_BY_HORIZON = View(
    "pass_rate_by_horizon",
    "How does success depend on the depth of the task and on the turns that were allowed?",
    f"""
WITH counted AS (
    SELECT t.stage, t.policy, t.suite, k.hops, t.horizon, count(*) AS trajectories, {_COUNTS}
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id LEFT JOIN tasks k ON k.key = t.task_key
    GROUP BY t.stage, t.policy, t.suite, k.hops, t.horizon
)
SELECT stage, policy, suite, hops, horizon, trajectories, invalid, successes, successes / nullif(valid, 0) AS success,
    {wilson("successes", "valid", "-")} AS low, {wilson("successes", "valid", "+")} AS high
FROM counted
""",
)

FRONTIER = View(
    "frontier",
    "Which tasks does a policy solve in 20 to 80 % of at least four valid attempts?",
    """
SELECT task_key, environment, hops, policy, attempts, successes, rate FROM pass_rate
WHERE attempts - invalid >= 4 AND rate BETWEEN 0.2 AND 0.8
""",
)

CONTRASTS = View(
    "contrasts",
    "Where did one policy at one step both solve and fail a task, and in which trajectories?",
    """
SELECT t.task_key, t.policy, t.stage, t.step, count(*) FILTER (o.outcome = 'success') AS successes,
    count(*) FILTER (o.outcome = 'failure') AS failures, min(t.id) FILTER (o.outcome = 'success') AS success,
    min(t.id) FILTER (o.outcome = 'failure') AS failure
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
GROUP BY t.task_key, t.policy, t.stage, t.step
HAVING count(*) FILTER (o.outcome = 'success') > 0 AND count(*) FILTER (o.outcome = 'failure') > 0
""",
)

EVALUATIONS = View(
    "evaluations",
    "How good is each policy on each suite? hops is NULL in the row for all depths; low and high hold 95 %.",
    f"""
WITH counted AS (
    SELECT coalesce(p.wheel_turn, t.wheel_turn) AS turn, p.stage, t.policy, t.suite, k.hops,
        count(DISTINCT t.task_key) AS tasks, count(*) AS trajectories, {_COUNTS}
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
    JOIN tasks k ON k.key = t.task_key LEFT JOIN policies p ON p.id = t.policy
    WHERE t.stage = 'eval'
    GROUP BY GROUPING SETS (
        (coalesce(p.wheel_turn, t.wheel_turn), p.stage, t.policy, t.suite, k.hops),
        (coalesce(p.wheel_turn, t.wheel_turn), p.stage, t.policy, t.suite)
    )
)
SELECT turn, stage, policy, suite, hops, tasks, invalid, successes / nullif(valid, 0) AS success,
    {wilson("successes", "valid", "-")} AS low, {wilson("successes", "valid", "+")} AS high, trajectories, successes
FROM counted
""",
)

INVALID_BY_KIND = View(
    "invalid_by_kind",
    "What made trajectories invalid? kind is what their errors begin with; share is of all trajectories of that stage and policy.",
    """
WITH told AS (
    SELECT t.wheel_turn AS turn, t.stage, t.policy, t.stop_reason, o.outcome,
        CASE WHEN o.outcome = 'invalid' THEN coalesce(nullif(regexp_extract(t.error, '^[^:(]{1,60}'), ''), 'judged invalid') END AS kind,
        t.error
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
), counted AS (
    SELECT turn, stage, policy, stop_reason, kind, count(*) AS trajectories, any_value(error) AS example FROM told GROUP BY ALL
)
SELECT turn, stage, policy, stop_reason, kind, trajectories, share, example
FROM (SELECT *, trajectories / sum(trajectories) OVER (PARTITION BY turn, stage, policy) AS share FROM counted) WHERE kind IS NOT NULL
""",
)

VIEWS = (OUTCOMES, PASS_RATE, PASS_RATE_BY_HORIZON, FRONTIER, CONTRASTS, EVALUATIONS, INVALID_BY_KIND)
