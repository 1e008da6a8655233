"""Views and macros on lineage: from policies back to facts and forward to scores, and what synthesis kept and removed.

A stage's training data follows from the iteration: CPT and SFT read the iteration's examples present when they ended, RL its valid
trajectories. Data removed from the lake since is not listed; `AT (VERSION => …)` the policy's snapshot includes it.
"""

from __future__ import annotations

from warehouse.views.definitions import Macro, View

VIEWS = (
    View(
        "lineage",
        "Which policies does each policy descend from, nearest first, and on which snapshot was it trained?",
        """
WITH RECURSIVE line AS (
    SELECT id AS policy, id AS ancestor, parent, 0 AS distance FROM policies
    UNION ALL
    SELECT l.policy, p.id, p.parent, l.distance + 1 FROM line l JOIN policies p ON p.id = l.parent WHERE l.distance < 10000
), ancestry AS (
    SELECT policy, max(distance) AS depth, list(ancestor ORDER BY distance) AS ancestors FROM line GROUP BY policy
)
SELECT p.id AS policy, p.parent, p.stage, p.wheel_turn AS turn, a.depth, a.ancestors, p.snapshot, p.promoted
FROM policies p JOIN ancestry a ON a.policy = p.id
""",
    ),
    View(
        "training_items",
        "Which examples and trajectories was each policy trained on? item is examples.id, or trajectories.id where kind is rollout.",
        """
SELECT p.id AS policy, p.stage, p.wheel_turn AS turn, p.snapshot, e.kind, e.id AS item
FROM policies p LEFT JOIN runs r ON r.id = p.id
JOIN examples e ON e.wheel_turn = p.wheel_turn AND p.stage = CASE e.kind WHEN 'trajectory' THEN 'sft' ELSE 'cpt' END
    AND e.recorded <= coalesce(r.finished, e.recorded)
UNION ALL
SELECT p.id, p.stage, p.wheel_turn, p.snapshot, 'rollout', t.id
FROM policies p JOIN trajectories t ON t.policy = p.id AND t.stage = 'rl' AND t.outcome IS DISTINCT FROM 'invalid' WHERE p.stage = 'rl'
""",
    ),
    View(
        "synthesis_outcomes",
        "How many samples of each kind were kept, and why were the others rejected? Failures of whole batches and stages are excluded.",
        """
WITH removed AS (
    SELECT CASE WHEN stage <> 'synth' THEN stage
            WHEN regexp_matches(kind, '^(no_demonstration|demonstration_of_other_tries|rejection_of_images)$|^cold_start_')
                THEN 'trajectory'
            ELSE coalesce(nullif(regexp_extract(kind, '^(fas_plan|fas_reason|has_step|has|proposal|verdict)_', 1), ''), 'question')
            END AS kind,
        regexp_replace(kind, '^(fas_plan|fas_reason|has_step|has|proposal|verdict)_', '') AS reason
    FROM failures WHERE stage IN ('synth', 'teacher', 'rewording', 'expander', 'extraction', 'seeds', 'decontamination')
        AND NOT regexp_matches(kind, '^(retried|budget)_|^(shortfall|unanswered|judge_unfit|worker_died|direct_engine_fault)$')
), counted AS (
    SELECT kind, 'kept' AS outcome, NULL AS reason, count(*) AS samples FROM examples GROUP BY kind
    UNION ALL
    SELECT 'question', 'kept', NULL, count(*) FROM tasks WHERE json_array_length(formula) > 0 HAVING count(*) > 0
    UNION ALL
    SELECT kind, 'removed', reason, count(*) FROM removed GROUP BY kind, reason
)
SELECT kind, outcome, reason, samples, samples / sum(samples) OVER (PARTITION BY kind) AS share FROM counted
""",
    ),
    View(
        "synthesis_yields",
        "What did each part of synthesis ask of a teacher, keep and drop?",
        """
SELECT run_id AS run, wheel_turn AS turn, regexp_extract(name, '^(?:count\\.[a-z_]+|made|dropped)\\.(.*)$', 1) AS part,
    regexp_extract(name, '^(?:count\\.)?([a-z_]+)\\.', 1) AS figure, sum(value) AS value
FROM metrics WHERE stage = 'synth' AND regexp_matches(name, '^(count\\.[a-z_]+|made|dropped)\\.') GROUP BY ALL
""",
    ),
    View(
        "unproven",
        "What could not be proven of which question? Only questions that a model wrote or changed over documents.",
        """
SELECT key AS task_key, split, coalesce(provenance->>'expander', provenance->>'seeded_by') AS teacher,
    coalesce(provenance->>'expanded_by', provenance->>'shape') AS structure,
    unnest(from_json(proofs->'unproven', '["VARCHAR"]')) AS proof
FROM tasks WHERE json_array_length(proofs, '$.unproven') > 0
""",
    ),
    View(
        "check_agreement",
        "How often do the index and the teacher agree on a sample?",
        """
SELECT i.kind, t.version AS teacher, count(*) AS samples, count(*) FILTER (i.accepted = t.accepted) / count(*) AS agreement,
    count(*) FILTER (i.accepted AND t.accepted) AS both_accepted, count(*) FILTER (i.accepted AND NOT t.accepted) AS index_alone,
    count(*) FILTER (t.accepted AND NOT i.accepted) AS teacher_alone, count(*) FILTER (NOT i.accepted AND NOT t.accepted) AS neither
FROM checks i JOIN checks t ON t.sample = i.sample AND t.checker = 'teacher' WHERE i.checker = 'index' GROUP BY i.kind, t.version
""",
    ),
)

MACROS = (
    Macro(
        "ancestors_of",
        "wanted",
        "What was an example made from, back to documents and tasks? steps is 1 for its own sources; kind is that of an example, or "
        "trajectory, task or document, NULL for an id that is none of these (a demonstrated question is no task of the lake); "
        "policy is that of a trajectory.",
        """
WITH RECURSIVE edges AS (
    SELECT id, unnest(sources) AS source FROM examples UNION ALL SELECT id, task_key FROM trajectories
), line AS (
    SELECT 0 AS steps, wanted::VARCHAR AS id
    UNION ALL
    SELECT DISTINCT l.steps + 1, e.source FROM line l JOIN edges e ON e.id = l.id WHERE l.steps < 100
), behind AS (
    SELECT id, min(steps) AS steps FROM line WHERE steps > 0 AND id <> wanted GROUP BY id
)
SELECT b.steps, b.id, coalesce(e.kind, CASE WHEN t.id IS NOT NULL THEN 'trajectory' WHEN k.key IS NOT NULL THEN 'task'
    WHEN d.id IS NOT NULL THEN 'document' END) AS kind, t.policy, coalesce(d.title, k.question) AS text
FROM behind b LEFT JOIN examples e ON e.id = b.id LEFT JOIN trajectories t ON t.id = b.id
LEFT JOIN tasks k ON k.key = b.id LEFT JOIN documents d ON d.id = b.id ORDER BY b.steps, kind, b.id
""",
    ),
    Macro(
        "trained_on",
        "wanted",
        "What were a policy and its ancestors trained on, nearest first?",
        """
SELECT i.policy, i.stage, i.turn, i.snapshot, i.kind, count(*) AS items
FROM training_items i
WHERE i.policy IN (SELECT unnest(ancestors) FROM lineage WHERE policy = wanted)
GROUP BY i.policy, i.stage, i.turn, i.snapshot, i.kind ORDER BY i.turn DESC, i.snapshot DESC, items DESC
""",
    ),
    Macro(
        "facts_behind",
        "wanted",
        "Which facts are behind a policy's training data: stated by its documents or on the path of its tasks?",
        """
WITH items AS MATERIALIZED (
    SELECT kind, item FROM training_items WHERE policy = wanted
), named AS MATERIALIZED (
    SELECT DISTINCT unnest(e.sources) AS id FROM examples e SEMI JOIN items i ON i.item = e.id
    UNION SELECT item FROM items WHERE kind = 'rollout'
), behind AS MATERIALIZED (
    SELECT id AS key FROM named UNION SELECT t.task_key FROM trajectories t SEMI JOIN named n ON n.id = t.id
), paths AS (
    SELECT k.provenance->>'source' AS source, k.provenance->>'$.path[*]' AS path FROM tasks k SEMI JOIN behind b ON b.key = k.key
), edges AS (
    SELECT DISTINCT source, unnest(path[:-2]) AS subject, unnest(path[2:]) AS object FROM paths WHERE len(path) > 1
), stated AS (
    SELECT source, subject, relation, object, unnest(documents) AS document FROM facts
)
SELECT s.source, s.subject, s.relation, s.object FROM stated s SEMI JOIN named n ON n.id = s.document
UNION
SELECT f.source, f.subject, f.relation, f.object FROM facts f SEMI JOIN edges e USING (source, subject, object)
""",
    ),
    Macro(
        "scores_after",
        "wanted",
        "How did a policy and its descendants do on every suite?",
        """
SELECT l.depth, e.policy, e.turn, e.stage, e.suite, e.tasks, e.invalid, e.success, e.low, e.high
FROM evaluations e JOIN lineage l ON l.policy = e.policy
WHERE e.hops IS NULL AND list_contains(l.ancestors, wanted) ORDER BY l.depth, e.suite
""",
    ),
)
