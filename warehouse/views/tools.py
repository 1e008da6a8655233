"""Views on tools: how often they are called, how long they take, how they fail."""

from __future__ import annotations

from warehouse.views.definitions import View

TOOL_USE = View(
    "tool_use",
    "Which tools does each policy call, and what comes of the calls?",
    """
SELECT t.wheel_turn AS turn, t.policy, t.stage, c.tool, c.outcome, count(*) AS calls,
    count(*) FILTER (c.is_first) AS trajectories, avg(c.latency_seconds) AS mean_latency, sum(c.retries)::BIGINT AS retries,
    avg(c.reward) AS mean_reward
FROM tool_calls c JOIN trajectories t ON t.id = c.trajectory_id
GROUP BY t.wheel_turn, t.policy, t.stage, c.tool, c.outcome
""",
)

TOOL_LATENCY = View(
    "tool_latency",
    "How long do the calls of each tool take, in seconds? The quantiles are approximate (t-digest).",
    """
SELECT tool, count(*) AS calls, avg(latency_seconds) AS mean, approx_quantile(latency_seconds, 0.5) AS p50,
    approx_quantile(latency_seconds, 0.95) AS p95, approx_quantile(latency_seconds, 0.99) AS p99, max(latency_seconds) AS longest
FROM tool_calls WHERE latency_seconds IS NOT NULL GROUP BY tool
""",
)

TOOL_FAILURES = View(
    "tool_failures",
    "How often does each tool answer with something other than ok? An answer has no outcome and is left out.",
    """
SELECT tool, outcome, calls, calls / sum(calls) OVER (PARTITION BY tool) AS share, retries, example
FROM (
    SELECT tool, outcome, count(*) AS calls, sum(retries)::BIGINT AS retries, any_value(trajectory_id) AS example
    FROM tool_calls WHERE outcome IS NOT NULL GROUP BY tool, outcome
)
""",
)

VIEWS = (TOOL_USE, TOOL_LATENCY, TOOL_FAILURES)
