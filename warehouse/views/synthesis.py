"""Views on synthesis: what was kept and what was removed, and how the checkers agree."""

from __future__ import annotations

from warehouse.views.definitions import View

SYNTHESIS_OUTCOMES = View(
    "synthesis_outcomes",
    "How many samples of each kind were kept, and why were the others removed?",
    """
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
""",
)

CHECK_AGREEMENT = View(
    "check_agreement",
    "How often do the index and the teacher agree on a sample?",
    """
SELECT i.kind, t.version AS teacher, count(*) AS samples, count(*) FILTER (i.accepted = t.accepted) / count(*) AS agreement,
    count(*) FILTER (i.accepted AND t.accepted) AS both, count(*) FILTER (i.accepted AND NOT t.accepted) AS index_alone,
    count(*) FILTER (t.accepted AND NOT i.accepted) AS teacher_alone, count(*) FILTER (NOT i.accepted AND NOT t.accepted) AS neither
FROM checks i JOIN checks t ON t.sample = i.sample AND t.checker = 'teacher' WHERE i.checker = 'index' GROUP BY i.kind, t.version
""",
)

VIEWS = (SYNTHESIS_OUTCOMES, CHECK_AGREEMENT)
