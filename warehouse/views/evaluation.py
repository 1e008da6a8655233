"""Views on policy performance: outcomes, rates with intervals, the frontier, suites, and what separates success from failure.

Invalid trajectories are counted in their own column and excluded from rates, means and intervals. A trajectory's outcome is the verdict of
its latest score, else its stored outcome; of scores committed together the first counts. `reward` was used in training, `value` belongs to
the verdict. A task's suite is its split.

Only trajectories with several scores are sorted, which saves a third of the work over a million. They are identified by id hashes, which
group faster than long texts; a collision only sorts both trajectories.
"""

from __future__ import annotations

from warehouse.views.definitions import View, wilson

_COUNTS = """count(*) FILTER (o.outcome = 'success') AS successes, count(*) FILTER (o.outcome = 'invalid') AS invalid,
    count(*) FILTER (o.outcome IN ('success', 'failure')) AS valid"""
_JUDGED = "count(*) FILTER (outcome IN ('success', 'failure'))"

VIEWS = (
    View(
        "outcomes",
        "Outcome of each trajectory by its latest verdict, with the columns most queries group by.",
        """
WITH judged AS (
    SELECT trajectory_id, verdict, value, recorded, rowid AS place FROM scores WHERE NOT starts_with(verifier, 'unsupervised:')
), several AS (
    SELECT hash(trajectory_id) AS mark FROM judged GROUP BY mark HAVING count(*) > 1
), latest AS (
    SELECT trajectory_id, verdict, value FROM judged ANTI JOIN several ON mark = hash(trajectory_id)
    UNION ALL
    SELECT trajectory_id, verdict, value FROM judged SEMI JOIN several ON mark = hash(trajectory_id)
    QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY recorded DESC, place) = 1
)
SELECT t.id AS trajectory_id, coalesce(s.verdict, t.outcome) AS outcome,
    CASE WHEN coalesce(s.verdict, t.outcome) = 'invalid' THEN NULL ELSE coalesce(t.reward, s.value) END AS reward,
    CASE WHEN coalesce(s.verdict, t.outcome) = 'invalid' THEN NULL ELSE s.value END AS value,
    t.task_key, t.policy, t.stage, t.suite, t.wheel_turn, t.step, t.horizon, t.n_turns, t.n_calls, t.stop_reason, t.error
FROM trajectories t LEFT JOIN latest s ON s.trajectory_id = t.id
""",
    ),
    View(
        "pass_rate",
        "How often does each policy solve each task? Evaluations alongside training are excluded.",
        f"""
WITH counted AS (
    SELECT o.task_key, o.policy, count(*) AS attempts, {_COUNTS} FROM outcomes o WHERE o.stage IS DISTINCT FROM 'eval_beside'
    GROUP BY o.task_key, o.policy
)
SELECT c.task_key, k.environment, k.hops, c.policy, c.attempts, c.valid, c.successes, c.invalid, c.successes / nullif(c.valid, 0) AS rate
FROM counted c LEFT JOIN tasks k ON k.key = c.task_key
""",
    ),
    View(
        "pass_rate_by_horizon",
        "How does success depend on the depth of the task and on the maximum turns?",
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
    ),
    View(
        "frontier",
        "Which tasks does a policy solve in 20 to 80 % of at least four valid attempts?",
        """
SELECT task_key, environment, hops, policy, attempts, successes, rate FROM pass_rate
WHERE valid >= 4 AND rate BETWEEN 0.2 AND 0.8
""",
    ),
    View(
        "contrasts",
        "Where did one policy at one step both solve and fail a task, and in which trajectories?",
        """
WITH judged AS MATERIALIZED (  -- it is read twice
    SELECT trajectory_id, outcome, task_key, policy, stage, step FROM outcomes WHERE outcome IN ('success', 'failure')
), mixed AS (  -- few groups are: the ids of these alone are compared
    SELECT task_key, policy, stage, step, count(*) FILTER (outcome = 'success') AS successes,
        count(*) FILTER (outcome = 'failure') AS failures
    FROM judged GROUP BY task_key, policy, stage, step HAVING successes > 0 AND failures > 0
)
SELECT m.task_key, m.policy, m.stage, m.step, m.successes, m.failures, min(j.trajectory_id) FILTER (j.outcome = 'success') AS success,
    min(j.trajectory_id) FILTER (j.outcome = 'failure') AS failure
FROM mixed m JOIN judged j ON j.task_key = m.task_key AND j.policy = m.policy AND j.stage = m.stage AND j.step IS NOT DISTINCT FROM m.step
GROUP BY m.task_key, m.policy, m.stage, m.step, m.successes, m.failures
""",
    ),
    View(
        "evaluations",
        "How good is each policy on each suite, in training order? hops is NULL in the row for all depths. low and high bound a 95 % "
        "interval, by the effective number of independent attempts (those at one task are correlated).",
        f"""
WITH tried AS (
    SELECT coalesce(p.wheel_turn, o.wheel_turn) AS turn, p.stage, o.policy, o.suite, k.hops, o.task_key, count(*) AS trajectories, {_COUNTS}
    FROM outcomes o JOIN tasks k ON k.key = o.task_key LEFT JOIN policies p ON p.id = o.policy
    WHERE o.stage = 'eval' GROUP BY ALL
), counted AS (
    SELECT turn, stage, policy, suite, hops, count(DISTINCT task_key) AS tasks, sum(trajectories)::BIGINT AS trajectories,
        sum(invalid)::BIGINT AS invalid, sum(successes)::BIGINT AS successes, sum(valid)::BIGINT AS valid,
        sum(successes * successes) AS cc, sum(successes * valid) AS cn, sum(valid * valid) AS nn, count(*) FILTER (valid > 0) AS judged
    FROM tried GROUP BY GROUPING SETS ((turn, stage, policy, suite, hops), (turn, stage, policy, suite))
), weighed AS (
    SELECT *, successes / nullif(valid, 0) AS success, CASE
            WHEN nn = valid THEN valid
            WHEN judged = 1 OR successes IN (0, valid) THEN judged
            ELSE least(valid, successes * (valid - successes) / nullif(cc - 2 * success * cn + success * success * nn, 0))
        END AS worth
    FROM counted
)
SELECT turn, stage, policy, suite, hops, tasks, invalid, success,
    {wilson("(success * worth)", "worth", "-")} AS low, {wilson("(success * worth)", "worth", "+")} AS high, trajectories, successes
FROM weighed ORDER BY suite, turn, list_position(['init', 'cpt', 'sft', 'rl'], stage), policy, hops NULLS FIRST
""",
    ),
    View(
        "evaluations_beside",
        "How good was a policy during training? version is that of the weights at the start of the evaluation, first_version to "
        "last_version those that sampled its tokens, own_tokens the share sampled by version. low and high bound a 95 % interval.",
        f"""
WITH told AS (
    SELECT wheel_turn AS turn, run_id AS run, step AS version, value,
        regexp_extract(name, '^beside/(.*)/([a-z_]+)$', ['suite', 'figure']) AS named
    FROM metrics WHERE starts_with(name, 'beside/')
), counted AS (
    SELECT turn, run, named.suite AS suite, version, max(value) FILTER (named.figure = 'tasks')::BIGINT AS tasks,
        max(value) FILTER (named.figure = 'valid')::BIGINT AS valid, max(value) FILTER (named.figure = 'invalid')::BIGINT AS invalid,
        max(value) FILTER (named.figure = 'successes')::BIGINT AS successes, max(value) FILTER (named.figure = 'success') AS success,
        max(value) FILTER (named.figure = 'first_version')::BIGINT AS first_version,
        max(value) FILTER (named.figure = 'last_version')::BIGINT AS last_version,
        max(value) FILTER (named.figure = 'own_tokens') AS own_tokens, max(value) FILTER (named.figure = 'seconds') AS seconds
    FROM told GROUP BY ALL
)
SELECT turn, run, suite, version, tasks, valid, invalid, success, {wilson("successes", "valid", "-")} AS low,
    {wilson("successes", "valid", "+")} AS high, first_version, last_version, own_tokens, seconds
FROM counted ORDER BY turn, run, suite, version
""",
    ),
    View(
        "invalid_by_kind",
        "What made trajectories invalid? kind is the start of the error; share is relative to all trajectories of the stage and policy.",
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
    ),
    View(
        "suite_coverage",
        "How many attempts of a suite are judged, invalid and missing? is_result is true if none is missing and at most 2 % are invalid.",
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
    ),
    View(
        "suite_tasks",
        "How did each policy do on each task of a suite? n judged attempts, c of them successes.",
        f"""
SELECT policy, suite, task_key, {_JUDGED} AS n, count(*) FILTER (outcome = 'success') AS c,
    count(*) FILTER (outcome = 'invalid') AS invalid
FROM outcomes WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite, task_key
""",
    ),
    View(
        "suite_at_k",
        "What are pass@k and pass^k of each policy on each suite, for k up to 128, over the tasks with k judged attempts or more? "
        "Unbiased. tried counts all tasks with an attempt; NULL if more than 2 % of them have fewer judged attempts.",
        """
WITH tasks_tried AS (
    SELECT policy, suite, n, c, count(*) OVER (PARTITION BY policy, suite) AS tried FROM suite_tasks
), steps AS (
    SELECT policy, suite, tried, n, c, unnest(range(1, least(n, 128) + 1)) AS k FROM tasks_tried
), estimated AS (
    SELECT policy, suite, tried, k, lgamma(n + 1) - lgamma(n - k + 1) AS all_ways,
        CASE WHEN n - c < k THEN NULL ELSE lgamma(n - c + 1) - lgamma(n - c - k + 1) END AS ways_to_fail,
        CASE WHEN c < k THEN NULL ELSE lgamma(c + 1) - lgamma(c - k + 1) END AS ways_to_succeed
    FROM steps
), averaged AS (
    SELECT policy, suite, k, tried, count(*) AS tasks, avg(1 - coalesce(exp(ways_to_fail - all_ways), 0)) AS pass_at_k,
        avg(coalesce(exp(ways_to_succeed - all_ways), 0)) AS pass_hat_k
    FROM estimated GROUP BY policy, suite, k, tried
)
SELECT policy, suite, k, tasks, CASE WHEN tried - tasks <= 0.02 * tried THEN pass_at_k END AS pass_at_k,
    CASE WHEN tried - tasks <= 0.02 * tried THEN pass_hat_k END AS pass_hat_k, tried
FROM averaged
""",
    ),
    View(
        "suite_by_turns",
        "How does success on a suite depend on the turns taken? low and high bound a 95 % interval, as if attempts were independent.",
        f"""
WITH counted AS (
    SELECT policy, suite, n_turns AS turns, {_JUDGED} AS valid, count(*) FILTER (outcome = 'success') AS successes
    FROM outcomes WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite, n_turns
)
SELECT policy, suite, turns, valid AS attempts, successes, successes / nullif(valid, 0) AS success,
    {wilson("successes", "valid", "-")} AS low, {wilson("successes", "valid", "+")} AS high
FROM counted
""",
    ),
    View(
        "suite_cost",
        "What does an attempt of each policy at a suite cost, on average, in turns, calls, tokens and seconds?",
        """
SELECT policy, suite, count(*) AS attempts, avg(n_turns) AS turns, avg(n_calls) AS calls, avg(prompt_tokens) AS prompt_tokens,
    avg(action_tokens) AS action_tokens, avg(observation_tokens) AS observation_tokens, avg(seconds) AS seconds
FROM trajectories WHERE stage = 'eval' AND suite IS NOT NULL GROUP BY policy, suite
""",
    ),
    View(
        "untaken_calls",
        "Which replies looked like a tool call but were read as an answer or as malformed? Reasoning is excluded.",
        r"""
WITH said AS (
    SELECT t.trajectory_id, t."index", t.tool_outcome, t.action, regexp_replace(t.action, '^.*</think>', '', 's') AS reply
    FROM turns t WHERE coalesce(t.tool, 'answer') = 'answer'
), alike AS (
    SELECT * FROM said
    WHERE (
        regexp_matches(reply, '"(name|tool|tool_name|function|function_name)"\s*:\s*["{]')
        AND regexp_matches(reply, '"(arguments|parameters|args|input|tool_input)"\s*:')
        OR regexp_matches(reply, '</?tool_calls?>|<tools>|<function=|<function_call>|<invoke |\[TOOL_CALLS\]|<(search|code)>')
    ) AND NOT regexp_matches(reply, '"name"\s*:\s*"answer"|<function=answer>|<tool_call>\s*answer\b')
)
SELECT a.trajectory_id, a."index", o.stage, o.policy, o.suite, o.wheel_turn, o.task_key, a.tool_outcome, a.action
FROM alike a JOIN trajectories o ON o.id = a.trajectory_id
""",
    ),
    View(
        "suite_pairs",
        "Two policies on the tasks both were judged on: how many did both, only a, only b and neither solve?",
        """
WITH s AS MATERIALIZED (SELECT suite, policy, task_key, c FROM suite_tasks WHERE n = 1)
SELECT a.suite, a.policy AS a, b.policy AS b, count(*) AS tasks, count(*) FILTER (a.c = 1 AND b.c = 1) AS both_solved,
    count(*) FILTER (a.c = 1 AND b.c = 0) AS only_a, count(*) FILTER (a.c = 0 AND b.c = 1) AS only_b,
    count(*) FILTER (a.c = 0 AND b.c = 0) AS neither, avg(b.c) - avg(a.c) AS difference
FROM s a JOIN s b ON b.suite = a.suite AND b.task_key = a.task_key AND a.policy < b.policy
GROUP BY a.suite, a.policy, b.policy
""",
    ),
)
