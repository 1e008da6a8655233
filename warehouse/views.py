"""Views over the lake, stored in its catalogue so that every DuckDB client sees them.

An invalid trajectory is counted in a column of its own and takes part in no rate, mean or interval. What a trajectory came
to is the verdict of its latest score, else the outcome it was stored with; of scores committed together the first counts. A score
that looked at no accepted answer (its verifier's name begins with `unsupervised:`) is no verdict.
"""

from __future__ import annotations

_OUTCOMES = """
SELECT t.id AS trajectory_id, coalesce(s.verdict, t.outcome) AS outcome,
    CASE WHEN coalesce(s.verdict, t.outcome) = 'invalid' THEN NULL ELSE coalesce(s.value, t.reward) END AS reward
FROM trajectories t LEFT JOIN (
    SELECT trajectory_id, verdict, value FROM scores WHERE NOT starts_with(verifier, 'unsupervised:')
    QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY recorded DESC, rowid) = 1
) s ON s.trajectory_id = t.id
"""

_PASS_RATE = """
SELECT t.task_key, k.environment, k.hops, t.policy, count(*) AS attempts,
    count(*) FILTER (o.outcome = 'success') AS successes, count(*) FILTER (o.outcome = 'invalid') AS invalid,
    count(*) FILTER (o.outcome = 'success') / nullif(count(*) FILTER (o.outcome IN ('success', 'failure')), 0) AS rate
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id LEFT JOIN tasks k ON k.key = t.task_key
GROUP BY t.task_key, k.environment, k.hops, t.policy
"""

_LEARNING_CURVE = """
SELECT wheel_turn AS turn, stage, run_id AS run, step, name AS metric, value FROM metrics
"""

_HORIZON_CURVE = """
WITH calls AS (
    SELECT trajectory_id, count(*) FILTER (tool <> 'answer') AS tool_calls FROM tool_calls GROUP BY trajectory_id
)
SELECT t.wheel_turn AS turn, t.policy, t.step, t.horizon, count(*) AS trajectories, count(*) FILTER (o.outcome = 'invalid') AS invalid,
    avg(t.n_turns) FILTER (o.outcome IS DISTINCT FROM 'invalid') AS mean_turns,
    avg(CASE o.outcome WHEN 'success' THEN 1 WHEN 'failure' THEN 0 END) AS success, avg(o.reward) AS reward,
    avg(coalesce(c.tool_calls, 0)) FILTER (o.outcome IS DISTINCT FROM 'invalid') AS tool_calls
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id LEFT JOIN calls c ON c.trajectory_id = t.id
WHERE t.stage = 'rl' GROUP BY t.wheel_turn, t.policy, t.step, t.horizon
"""

_TOOL_USE = """
SELECT t.wheel_turn AS turn, t.policy, t.stage, c.tool, c.outcome, count(*) AS calls,
    count(DISTINCT t.id) AS trajectories, avg(c.latency_seconds) AS mean_latency, sum(c.retries) AS retries, avg(c.reward) AS mean_reward
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id
GROUP BY t.wheel_turn, t.policy, t.stage, c.tool, c.outcome
"""

_LINEAGE = """
WITH RECURSIVE line AS (
    SELECT id AS policy, id AS ancestor, parent, 0 AS distance FROM policies
    UNION ALL
    SELECT l.policy, p.id, p.parent, l.distance + 1 FROM line l JOIN policies p ON p.id = l.parent WHERE l.distance < 10000
), ancestry AS (
    SELECT policy, max(distance) AS depth, list(ancestor ORDER BY distance) AS ancestors FROM line GROUP BY policy
)
SELECT p.id AS policy, p.parent, p.stage, p.wheel_turn AS turn, a.depth, a.ancestors, p.snapshot, p.promoted
FROM policies p JOIN ancestry a ON a.policy = p.id
"""

_EVALUATIONS = """
WITH counted AS (
    SELECT coalesce(p.wheel_turn, t.wheel_turn) AS turn, p.stage, t.policy, t.suite, k.hops,
        count(DISTINCT t.task_key) AS tasks, count(*) AS trajectories,
        count(*) FILTER (o.outcome = 'invalid') AS invalid, count(*) FILTER (o.outcome = 'success') AS successes,
        count(*) FILTER (o.outcome IN ('success', 'failure')) AS valid
    FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
    JOIN tasks k ON k.key = t.task_key LEFT JOIN policies p ON p.id = t.policy
    WHERE t.stage = 'eval'
    GROUP BY GROUPING SETS (
        (coalesce(p.wheel_turn, t.wheel_turn), p.stage, t.policy, t.suite, k.hops),
        (coalesce(p.wheel_turn, t.wheel_turn), p.stage, t.policy, t.suite)
    )
), rates AS (
    SELECT *, successes / nullif(valid, 0) AS success, 1.959963984540054 AS z FROM counted
), wilson AS (
    SELECT *, (success + z * z / (2 * valid)) / (1 + z * z / valid) AS middle,
        z * sqrt(success * (1 - success) / valid + z * z / (4 * valid * valid)) / (1 + z * z / valid) AS half
    FROM rates
)
SELECT turn, stage, policy, suite, hops, tasks, invalid, success, CASE WHEN valid > 0 THEN greatest(middle - half, 0) END AS low,
    CASE WHEN valid > 0 THEN least(middle + half, 1) END AS high, trajectories, successes
FROM wilson
"""

_SYNTHESIS_OUTCOMES = """
WITH removed AS (
    SELECT CASE WHEN stage <> 'synth' THEN stage WHEN kind = 'no_demonstration' THEN 'trajectory'
            ELSE coalesce(nullif(regexp_extract(kind, '^(fas_plan|fas_reason|has|proposal|verdict)_', 1), ''), 'question') END AS kind,
        regexp_replace(kind, '^(fas_plan|fas_reason|has|proposal|verdict)_', '') AS reason
    FROM failures WHERE stage IN ('synth', 'teacher', 'rewording', 'expander', 'extraction', 'decontamination')
), counted AS (
    SELECT kind, 'kept' AS outcome, NULL AS reason, count(*) AS samples FROM examples GROUP BY kind
    UNION ALL
    SELECT 'question', 'kept', NULL, count(*) FROM tasks WHERE json_array_length(formula) > 0 HAVING count(*) > 0
    UNION ALL
    SELECT kind, 'removed', reason, count(*) FROM removed GROUP BY kind, reason
)
SELECT kind, outcome, reason, samples, samples / sum(samples) OVER (PARTITION BY kind) AS share FROM counted
"""

_CHECK_AGREEMENT = """
SELECT i.kind, t.version AS teacher, count(*) AS samples, count(*) FILTER (i.accepted = t.accepted) / count(*) AS agreement,
    count(*) FILTER (i.accepted AND t.accepted) AS both, count(*) FILTER (i.accepted AND NOT t.accepted) AS index_alone,
    count(*) FILTER (t.accepted AND NOT i.accepted) AS teacher_alone, count(*) FILTER (NOT i.accepted AND NOT t.accepted) AS neither
FROM checks i JOIN checks t ON t.sample = i.sample AND t.checker = 'teacher' WHERE i.checker = 'index' GROUP BY i.kind, t.version
"""

VIEWS: dict[str, str] = {
    "outcomes": _OUTCOMES,
    "pass_rate": _PASS_RATE,
    "learning_curve": _LEARNING_CURVE,
    "horizon_curve": _HORIZON_CURVE,
    "tool_use": _TOOL_USE,
    "lineage": _LINEAGE,
    "evaluations": _EVALUATIONS,
    "synthesis_outcomes": _SYNTHESIS_OUTCOMES,
    "check_agreement": _CHECK_AGREEMENT,
}
"""Name and definition of every view, each after those it is built on."""
