"""Views on how persistent a policy is when it searches: does it try again, read on, and look further before it answers?

A search is made again where an earlier one of the trajectory looked for the same: in the same words on the same page (`same`), on another
page (`pages`), or in words of which one search has all that the other has (`words`). It was in vain where it found nothing, or nothing that
has all of its words of three letters and more: what a policy can see for itself, while a namesake or a stub passes. A check is a search
after the first one that showed the answer which was given in the end.

To count takes the words of every observation, minutes of a processor for a million trajectories. So `warehouse.upkeep` does it once for
each, and a view counts those alone that still wait for that. Another way of counting needs another version of the lake.
"""

from __future__ import annotations

from warehouse.views.definitions import View

_PAGE = r"'^(.*\S) page ([1-9]\d?)$'"
_WORDS = r"'[\p{L}\p{N}_]+'"
_TELLING = r"'[\p{L}\p{N}_]{3,}'"
_ANY = "(SELECT (SELECT count(*) FROM trajectories) > (SELECT count(*) FROM search_counts))"
"""Whether the two tables differ in length: the catalogue knows that, and a million ids need not be compared where none waits."""


def _uncounted(where: str) -> str:
    return f"""
SELECT t.id AS trajectory_id, t.answer FROM (FROM trajectories WHERE {where}) t
    ANTI JOIN (FROM search_counts WHERE {where}) c ON c.trajectory_id = t.id
"""


UNCOUNTED = _uncounted("TRUE")
"""The trajectories that wait to be counted."""


def counts_of(trajectories: str) -> str:
    """The SELECT of the rows of `search_counts` of some trajectories, which a SELECT of their ids and answers names."""
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
        "How often did each trajectory search, in vain, again (same words, another page, other words), and after it saw its answer?",
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
        "How often does a policy search for something a second time, read a further page, ask in other words, or look on after it saw its "
        "answer? Shares of the valid trajectories; retried is the share of the searches in vain after which the next one tried again.",
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
