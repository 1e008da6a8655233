"""Views on search persistence: whether a policy retries, reads further pages, and verifies before answering.

A search repeats an earlier one of the trajectory if it has the same words on the same page (`same`), the same words on another page
(`pages`), or words of which one search contains all of the other's (`words`). It was in vain if it found nothing, or nothing that contains
all of its words of three or more letters: only what a policy can see itself, so a namesake or stub counts as found. A check is a search
after the first one that showed the final answer.

Counting reads the words of every observation, minutes of CPU time for a million trajectories. `warehouse.upkeep` therefore counts each
trajectory once, and the view counts only the remaining ones. A different definition requires a new lake version.
"""

from __future__ import annotations

from warehouse.views.definitions import View

_PAGE = r"'^(.*\S) page ([1-9]\d?)$'"
_WORDS = r"'[\p{L}\p{N}_]+'"
_TELLING = r"'[\p{L}\p{N}_]{3,}'"
_ANY = "(SELECT (SELECT count(*) FROM trajectories) > (SELECT count(*) FROM search_counts))"
"""Whether the tables differ in length, which the catalogue knows, so that ids are compared only if some are uncounted."""


def _uncounted(where: str) -> str:
    return f"""
SELECT t.id AS trajectory_id, t.answer FROM (FROM trajectories WHERE {where}) t
    ANTI JOIN (FROM search_counts WHERE {where}) c ON c.trajectory_id = t.id
"""


UNCOUNTED = _uncounted("TRUE")


def counts_of(trajectories: str) -> str:
    """SELECT of the rows of `search_counts` for the trajectories (id and answer) selected by `trajectories`."""
    return rf"""
WITH chosen AS MATERIALIZED ({trajectories}), asked AS (
    SELECT trajectory_id, turn_index, call_index, outcome, coalesce(observation, '') AS observation,
        lower(trim(regexp_replace(
            coalesce(CASE WHEN json_valid(arguments) THEN (arguments::JSON->>'$.query') END, arguments, ''), '\s+', ' ', 'g'
        ))) AS said
    FROM tool_calls SEMI JOIN chosen USING (trajectory_id) WHERE tool = 'search' AND outcome IS DISTINCT FROM 'not_run'
), parted AS (
    SELECT *, coalesce(nullif(regexp_extract(said, {_PAGE}, 1), ''), said) AS query,
        coalesce(try_cast(regexp_extract(said, {_PAGE}, 2) AS INTEGER), 1) AS page
    FROM asked
), searches AS (
    SELECT trajectory_id, query, page, regexp_extract_all(query, {_WORDS}) AS words,
        outcome IS DISTINCT FROM 'ok'
            OR NOT list_has_all(regexp_extract_all(lower(observation), {_WORDS}), regexp_extract_all(query, {_TELLING})) AS in_vain,
        row_number() OVER (PARTITION BY trajectory_id ORDER BY turn_index, call_index) AS place,
        lower(observation) AS seen
    FROM parted
), again AS (
    SELECT l.trajectory_id, l.place,
        max(CASE WHEN e.query = l.query AND e.page = l.page THEN 3 WHEN e.query = l.query THEN 2 ELSE 1 END) AS how
    FROM searches l JOIN searches e ON e.trajectory_id = l.trajectory_id AND e.place < l.place
    WHERE len(l.words) > 0 AND len(e.words) > 0 AND (list_has_all(l.words, e.words) OR list_has_all(e.words, l.words))
    GROUP BY l.trajectory_id, l.place
), answered AS (
    SELECT s.trajectory_id, min(s.place) AS place FROM searches s JOIN chosen t ON t.trajectory_id = s.trajectory_id
    WHERE trim(t.answer) <> '' AND contains(s.seen, lower(trim(t.answer))) GROUP BY s.trajectory_id
)
SELECT t.trajectory_id, count(s.place) AS searches, count(*) FILTER (s.in_vain) AS in_vain,
    count(*) FILTER (s.in_vain AND n.how IS NOT NULL) AS retried, count(*) FILTER (a.how = 3) AS same,
    count(*) FILTER (a.how = 2) AS pages, count(*) FILTER (a.how = 1) AS words, count(*) FILTER (s.place > w.place) AS checks
FROM chosen t LEFT JOIN searches s ON s.trajectory_id = t.trajectory_id
    LEFT JOIN again a ON a.trajectory_id = s.trajectory_id AND a.place = s.place
    LEFT JOIN again n ON n.trajectory_id = s.trajectory_id AND n.place = s.place + 1
    LEFT JOIN answered w ON w.trajectory_id = s.trajectory_id
GROUP BY t.trajectory_id
"""


VIEWS = (
    View(
        "search_habits",
        "How often did each trajectory search, in vain, again (same words, another page, other words), and after it saw the answer?",
        f"""
WITH counted AS (
    SELECT * EXCLUDE (recorded) FROM search_counts UNION ALL BY NAME SELECT * FROM ({counts_of(_uncounted(_ANY))})
)
SELECT o.trajectory_id, o.task_key, o.wheel_turn AS turn, o.policy, o.stage, o.suite, o.step, o.outcome, o.n_turns,
    c.searches, c.in_vain, c.retried, c.same, c.pages, c.words, c.checks
FROM outcomes o LEFT JOIN counted c ON c.trajectory_id = o.trajectory_id
""",
    ),
    View(
        "persistence",
        "How often does a policy repeat a search, open a further page, rephrase a query, or keep searching after it saw the answer? "
        "Shares of valid trajectories; retried is the share of searches in vain that were followed by another try.",
        """
WITH told AS (SELECT *, same + pages + words > 0 AS again FROM search_habits WHERE outcome IN ('success', 'failure'))
SELECT turn, stage, policy, suite, count(*) AS trajectories, avg(searches) AS searches, avg(again::INTEGER) AS second_search,
    avg((pages > 0)::INTEGER) AS read_on, avg((words > 0)::INTEGER) AS other_words, avg((same > 0)::INTEGER) AS same_again,
    avg((checks > 0)::INTEGER) AS checked, sum(retried) / nullif(sum(in_vain), 0) AS retried,
    avg((outcome = 'success')::INTEGER) FILTER (again) AS success_with,
    avg((outcome = 'success')::INTEGER) FILTER (NOT again) AS success_without
FROM told GROUP BY turn, stage, policy, suite
""",
    ),
)
