"""Views on training and rollouts: curves over steps, rewards and their parts, cost, tool use and tool failures."""

from __future__ import annotations

from warehouse.views.definitions import Macro, View

VIEWS = (
    View(
        "learning_curve",
        "What did each stage measure, step by step?",
        "SELECT wheel_turn AS turn, stage, run_id AS run, step, name AS metric, value FROM metrics",
    ),
    View(
        "loss_curve",
        "Loss by step; smooth is the mean over the last ten recorded steps.",
        """
SELECT wheel_turn AS turn, stage, run_id AS run, step, value AS loss,
    avg(value) OVER (PARTITION BY run_id, stage ORDER BY step ROWS 9 PRECEDING) AS smooth
FROM metrics WHERE name = 'loss'
""",
    ),
    View(
        "horizon_curve",
        "How do horizon, turns, tool calls and success change over the steps of RL?",
        """
SELECT wheel_turn AS turn, policy, step, horizon, count(*) AS trajectories, count(*) FILTER (outcome = 'invalid') AS invalid,
    avg(n_turns) FILTER (outcome IS DISTINCT FROM 'invalid') AS mean_turns,
    avg(CASE outcome WHEN 'success' THEN 1 WHEN 'failure' THEN 0 END) AS success, avg(reward) AS reward,
    avg(n_calls) FILTER (outcome IS DISTINCT FROM 'invalid') AS tool_calls
FROM outcomes WHERE stage = 'rl' GROUP BY wheel_turn, policy, step, horizon
""",
    ),
    View(
        "reward_summary",
        "What were rewards made of? One row per part of the reward, per verifier and version (unless a part is its value), for the "
        "environment's turn rewards, and for the total.",
        """
WITH parts AS (
    SELECT trajectory_id, name AS part, value FROM reward_parts WHERE value IS NOT NULL
    UNION ALL
    SELECT s.trajectory_id, verifier || ' ' || version AS part, value FROM scores s  -- an outcome among the parts is this verdict's
    ANTI JOIN (SELECT trajectory_id FROM reward_parts WHERE name IN ('outcome', 'signed_outcome')) r USING (trajectory_id)
    WHERE value IS NOT NULL
    UNION ALL
    SELECT trajectory_id, 'turns', sum(reward) FROM turns WHERE reward IS NOT NULL GROUP BY trajectory_id
    UNION ALL
    SELECT id, 'total', reward FROM trajectories WHERE reward IS NOT NULL
)
SELECT t.wheel_turn AS turn, t.policy, t.stage, p.part, count(*) AS trajectories, avg(p.value) AS mean,
    stddev_samp(p.value) AS deviation, min(p.value) AS lowest, max(p.value) AS highest
FROM parts p JOIN trajectories t ON t.id = p.trajectory_id AND t.outcome IS DISTINCT FROM 'invalid'
GROUP BY t.wheel_turn, t.policy, t.stage, p.part
""",
    ),
    View(
        "cost",
        "What did rollouts and teachers cost in tokens, calls, seconds and US dollars? "
        "For a teacher, policy is its name and a trajectory a completion.",
        """
SELECT wheel_turn AS turn, stage, policy, count(*) AS trajectories, sum(n_turns)::BIGINT AS turns, sum(n_calls)::BIGINT AS calls,
    sum(prompt_tokens)::BIGINT AS prompt_tokens, sum(action_tokens)::BIGINT AS action_tokens,
    sum(observation_tokens)::BIGINT AS observation_tokens,
    sum(seconds) AS seconds, NULL::DOUBLE AS usd
FROM trajectories GROUP BY wheel_turn, stage, policy
UNION ALL
SELECT NULL, 'teacher', teacher, count(*), NULL, sum(attempts)::BIGINT, sum(prompt_tokens)::BIGINT, sum(completion_tokens)::BIGINT, NULL,
    sum(seconds), sum(usd)
FROM completions GROUP BY teacher
""",
    ),
    View(
        "tool_use",
        "Which tools does each policy call, and with what outcomes?",
        """
SELECT t.wheel_turn AS turn, t.policy, t.stage, c.tool, c.outcome, count(*) AS calls,
    count(*) FILTER (c.is_first) AS trajectories, avg(c.latency_seconds) AS mean_latency, sum(c.retries)::BIGINT AS retries,
    avg(c.reward) AS mean_reward
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id
GROUP BY t.wheel_turn, t.policy, t.stage, c.tool, c.outcome
""",
    ),
    View(
        "tool_latency",
        "How long do the calls of each tool take, in seconds? The quantiles are approximate (t-digest).",
        """
SELECT tool, count(*) AS calls, avg(latency_seconds) AS mean, approx_quantile(latency_seconds, 0.5) AS p50,
    approx_quantile(latency_seconds, 0.95) AS p95, approx_quantile(latency_seconds, 0.99) AS p99, max(latency_seconds) AS longest
FROM tool_calls WHERE latency_seconds IS NOT NULL GROUP BY tool
""",
    ),
    View(
        "tool_failures",
        "How often does each tool answer with something other than ok? Answers are excluded.",
        """
SELECT tool, outcome, calls, calls / sum(calls) OVER (PARTITION BY tool) AS share, retries, example
FROM (
    SELECT tool, outcome, count(*) AS calls, sum(retries)::BIGINT AS retries, any_value(trajectory_id) AS example
    FROM tool_calls WHERE outcome IS NOT NULL GROUP BY tool, outcome
)
""",
    ),
)

MACROS = (
    Macro(
        "cost_per_success",
        "wanted",
        "What did each success of a policy cost, by stage and suite? NULL is every policy. The tokens, calls and seconds of all its "
        "trajectories, failed and invalid ones included, by its successes; NULL without a success. tokens are those of prompts, actions "
        "and observations, each counted once; seconds are added up over trajectories that ran side by side.",
        """
SELECT t.policy, t.stage, t.suite, count(*) AS trajectories, count(*) FILTER (o.outcome = 'invalid') AS invalid,
    count(*) FILTER (o.outcome = 'success') AS successes,
    sum(t.prompt_tokens + t.action_tokens + t.observation_tokens) / nullif(successes, 0) AS tokens_per_success,
    sum(t.action_tokens) / nullif(successes, 0) AS action_tokens_per_success,
    sum(t.n_calls) / nullif(successes, 0) AS calls_per_success, sum(t.seconds) / nullif(successes, 0) AS seconds_per_success
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id WHERE wanted IS NULL OR t.policy = wanted
GROUP BY t.policy, t.stage, t.suite ORDER BY t.policy, t.stage, t.suite
""",
    ),
    Macro(
        "tokens_trained",
        "wanted",
        "How many tokens was a policy trained on, in its own stage? NULL is every policy. tokens went through the learner, trained_tokens "
        "had a loss; each counts once, however many epochs there were. In RL these are of the valid trajectories that no filter left out.",
        """
SELECT p.id AS policy, p.stage, p.wheel_turn AS turn, (r.figures->>'tokens')::BIGINT AS tokens,
    (r.figures->>'trained_tokens')::BIGINT AS trained_tokens
FROM policies p JOIN runs r ON r.id = p.id WHERE p.stage IN ('cpt', 'sft') AND (wanted IS NULL OR p.id = wanted)
UNION ALL
SELECT p.id, p.stage, p.wheel_turn, sum(t.prompt_tokens + t.action_tokens + t.observation_tokens)::BIGINT, sum(t.action_tokens)::BIGINT
FROM policies p JOIN trajectories t ON t.policy = p.id AND t.stage = 'rl' AND t.outcome IN ('success', 'failure')
ANTI JOIN (SELECT item->>'trajectory' AS id FROM failures WHERE starts_with(kind, 'filter_')) f ON f.id = t.id
WHERE p.stage = 'rl' AND (wanted IS NULL OR p.id = wanted) GROUP BY p.id, p.stage, p.wheel_turn ORDER BY turn, policy
""",
    ),
)
