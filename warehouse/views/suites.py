"""Views on evaluation suites: coverage, each task, figures by k, by turns, cost, and policies side by side.

They count over the latest verdicts, as `outcomes` does. A task belongs to the suite that its split names.
"""

from __future__ import annotations

from warehouse.views.definitions import View, wilson

_JUDGED = "count(*) FILTER (outcome IN ('success', 'failure'))"

SUITE_COVERAGE = View(
    "suite_coverage",
    "Of the attempts that a suite asks for, how many are judged, invalid and missing? is_result: none missing, at most 2 % invalid.",
    f"""
WITH sizes AS (
    SELECT split AS suite, count(*) AS tasks FROM tasks GROUP BY split
), settings AS (
    SELECT config->>'$.suite.name' AS suite, max(CAST(config->>'$.suite.samples' AS BIGINT)) AS samples
    FROM runs WHERE stage = 'eval' GROUP BY ALL
), made AS (
    SELECT policy, suite, {_JUDGED} AS judged, count(*) FILTER (outcome = 'invalid') AS invalid
    FROM outcomes WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite
), counted AS (
    SELECT m.policy, m.suite, s.tasks, s.tasks * coalesce(c.samples, 1) AS wanted, m.judged, m.invalid,
        s.tasks * coalesce(c.samples, 1) - m.judged - m.invalid AS missing
    FROM made m JOIN sizes s ON s.suite = m.suite LEFT JOIN settings c ON c.suite = m.suite
)
SELECT *, invalid / wanted AS invalid_share, missing = 0 AND invalid <= 0.02 * wanted AS is_result FROM counted
""",
)

SUITE_TASKS = View(
    "suite_tasks",
    "How did each policy do on each task of a suite? n judged attempts, c of them successes.",
    f"""
SELECT policy, suite, task_key, {_JUDGED} AS n, count(*) FILTER (outcome = 'success') AS c,
    count(*) FILTER (outcome = 'invalid') AS invalid
FROM outcomes WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite, task_key
""",
)

SUITE_AT_K = View(
    "suite_at_k",
    "What are pass@k and pass^k of each policy on each suite, for k up to 128, over the tasks with k judged attempts or more? Unbiased.",
    """
WITH steps AS (
    SELECT policy, suite, n, c, unnest(range(1, least(n, 128) + 1)) AS k FROM suite_tasks
), estimated AS (
    SELECT policy, suite, k, lgamma(n + 1) - lgamma(n - k + 1) AS all_ways,
        CASE WHEN n - c < k THEN NULL ELSE lgamma(n - c + 1) - lgamma(n - c - k + 1) END AS ways_to_fail,
        CASE WHEN c < k THEN NULL ELSE lgamma(c + 1) - lgamma(c - k + 1) END AS ways_to_succeed
    FROM steps
)
SELECT policy, suite, k, count(*) AS tasks, avg(1 - coalesce(exp(ways_to_fail - all_ways), 0)) AS pass_at_k,
    avg(coalesce(exp(ways_to_succeed - all_ways), 0)) AS pass_hat_k
FROM estimated GROUP BY policy, suite, k
""",
)

SUITE_BY_TURNS = View(
    "suite_by_turns",
    "How does success on a suite depend on the turns that an attempt took? low and high hold 95 %, as if attempts were independent.",
    f"""
WITH counted AS (
    SELECT policy, suite, n_turns AS turns, {_JUDGED} AS valid, count(*) FILTER (outcome = 'success') AS successes
    FROM outcomes WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite, n_turns
)
SELECT policy, suite, turns, valid AS attempts, successes, successes / nullif(valid, 0) AS success,
    {wilson("successes", "valid", "-")} AS low, {wilson("successes", "valid", "+")} AS high
FROM counted
""",
)

SUITE_COST = View(
    "suite_cost",
    "What does an attempt of each policy at a suite cost, on average, in turns, calls, tokens and seconds?",
    """
SELECT policy, suite, count(*) AS attempts, avg(n_turns) AS turns, avg(n_calls) AS calls, avg(prompt_tokens) AS prompt_tokens,
    avg(action_tokens) AS action_tokens, avg(observation_tokens) AS observation_tokens, avg(seconds) AS seconds
FROM trajectories WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite
""",
)

SUITE_PAIRS = View(
    "suite_pairs",
    "Two policies on the tasks that both were judged on, once each: how many both, only a, only b and neither solved.",
    """
WITH s AS MATERIALIZED (SELECT suite, policy, task_key, c FROM suite_tasks WHERE n = 1)
SELECT a.suite, a.policy AS a, b.policy AS b, count(*) AS tasks, count(*) FILTER (a.c = 1 AND b.c = 1) AS both,
    count(*) FILTER (a.c = 1 AND b.c = 0) AS only_a, count(*) FILTER (a.c = 0 AND b.c = 1) AS only_b,
    count(*) FILTER (a.c = 0 AND b.c = 0) AS neither, avg(b.c) - avg(a.c) AS difference
FROM s a JOIN s b ON b.suite = a.suite AND b.task_key = a.task_key AND a.policy < b.policy
GROUP BY a.suite, a.policy, b.policy
""",
)

VIEWS = (SUITE_COVERAGE, SUITE_TASKS, SUITE_AT_K, SUITE_BY_TURNS, SUITE_COST, SUITE_PAIRS)
