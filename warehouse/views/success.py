"""Views on how well policies do: outcomes, rates with intervals, the frontier, and what tells success from failure.

An invalid trajectory is counted in a column of its own and takes part in no rate, mean or interval. What a trajectory came to is the
verdict of its latest score, else the outcome it was stored with; of scores committed together the first counts. Most trajectories have
one score: those alone that have several are put in order, which is a third less work over a million.
"""

from __future__ import annotations

from warehouse.views.definitions import View, wilson

_COUNTS = """count(*) FILTER (o.outcome = 'success') AS successes, count(*) FILTER (o.outcome = 'invalid') AS invalid,
    count(*) FILTER (o.outcome IN ('success', 'failure')) AS valid"""

OUTCOMES = View(
    "outcomes",
    "What did each trajectory come to, by the latest verdict on it? With what most questions group by.",
    """
WITH judged AS (
    SELECT trajectory_id, verdict, value, recorded, rowid AS place FROM scores WHERE NOT starts_with(verifier, 'unsupervised:')
), several AS (
    SELECT trajectory_id FROM judged GROUP BY trajectory_id HAVING count(*) > 1
), latest AS (
    SELECT trajectory_id, verdict, value FROM judged ANTI JOIN several USING (trajectory_id)
    UNION ALL
    SELECT trajectory_id, verdict, value FROM judged SEMI JOIN several USING (trajectory_id)
    QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY recorded DESC, place) = 1
)
SELECT t.id AS trajectory_id, coalesce(s.verdict, t.outcome) AS outcome,
    CASE WHEN coalesce(s.verdict, t.outcome) = 'invalid' THEN NULL ELSE coalesce(s.value, t.reward) END AS reward,
    t.task_key, t.policy, t.stage, t.suite, t.wheel_turn, t.step, t.horizon, t.n_turns, t.n_calls, t.stop_reason, t.error
FROM trajectories t LEFT JOIN latest s ON s.trajectory_id = t.id
""",
)

PASS_RATE = View(
    "pass_rate",
    "How often does each policy solve each task?",
    f"""
WITH counted AS (
    SELECT o.task_key, o.policy, count(*) AS attempts, {_COUNTS} FROM outcomes o GROUP BY o.task_key, o.policy
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
    SELECT o.stage, o.policy, o.suite, k.hops, o.horizon, count(*) AS trajectories, {_COUNTS}
    FROM outcomes o LEFT JOIN tasks k ON k.key = o.task_key
    GROUP BY o.stage, o.policy, o.suite, k.hops, o.horizon
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
SELECT task_key, policy, stage, step, count(*) FILTER (outcome = 'success') AS successes,
    count(*) FILTER (outcome = 'failure') AS failures, min(trajectory_id) FILTER (outcome = 'success') AS success,
    min(trajectory_id) FILTER (outcome = 'failure') AS failure
FROM outcomes GROUP BY task_key, policy, stage, step
HAVING count(*) FILTER (outcome = 'success') > 0 AND count(*) FILTER (outcome = 'failure') > 0
""",
)

EVALUATIONS = View(
    "evaluations",
    "How good is each policy on each suite? hops is NULL in the row for all depths; low and high hold 95 %.",
    f"""
WITH counted AS (
    SELECT coalesce(p.wheel_turn, o.wheel_turn) AS turn, p.stage, o.policy, o.suite, k.hops,
        count(DISTINCT o.task_key) AS tasks, count(*) AS trajectories, {_COUNTS}
    FROM outcomes o JOIN tasks k ON k.key = o.task_key LEFT JOIN policies p ON p.id = o.policy
    WHERE o.stage = 'eval'
    GROUP BY GROUPING SETS (
        (coalesce(p.wheel_turn, o.wheel_turn), p.stage, o.policy, o.suite, k.hops),
        (coalesce(p.wheel_turn, o.wheel_turn), p.stage, o.policy, o.suite)
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
    SELECT wheel_turn AS turn, stage, policy, stop_reason, error,
        CASE WHEN outcome = 'invalid' THEN coalesce(nullif(regexp_extract(error, '^[^:(]{1,60}'), ''), 'judged invalid') END AS kind
    FROM outcomes
), counted AS (
    SELECT turn, stage, policy, stop_reason, kind, count(*) AS trajectories, any_value(error) AS example FROM told GROUP BY ALL
)
SELECT turn, stage, policy, stop_reason, kind, trajectories, share, example
FROM (SELECT *, trajectories / sum(trajectories) OVER (PARTITION BY turn, stage, policy) AS share FROM counted) WHERE kind IS NOT NULL
""",
)

VIEWS = (OUTCOMES, PASS_RATE, PASS_RATE_BY_HORIZON, FRONTIER, CONTRASTS, EVALUATIONS, INVALID_BY_KIND)
