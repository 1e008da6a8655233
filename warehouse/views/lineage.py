"""Views and macros on where a policy comes from: ancestors, what it was trained on, back to facts and forward to scores.

What a stage trains on follows from the wheel: CPT and SFT read the examples of their turn, RL the trajectories that it sampled.
"""

from __future__ import annotations

from warehouse.views.definitions import Macro, View

LINEAGE = View(
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
)

TRAINING_ITEMS = View(
    "training_items",
    "Which examples and trajectories was each policy trained on? item is examples.id, or trajectories.id where kind is rollout.",
    """
SELECT p.id AS policy, p.stage, p.wheel_turn AS turn, p.snapshot, e.kind, e.id AS item
FROM policies p JOIN examples e ON e.wheel_turn = p.wheel_turn AND p.stage = CASE e.kind WHEN 'trajectory' THEN 'sft' ELSE 'cpt' END
UNION ALL
SELECT p.id, p.stage, p.wheel_turn, p.snapshot, 'rollout', t.id
FROM policies p JOIN trajectories t ON t.policy = p.id AND t.stage = 'rl' WHERE p.stage = 'rl'
""",
)

TRAINED_ON = Macro(
    "trained_on",
    "wanted",
    "What were a policy and its ancestors trained on, nearest first?",
    """
SELECT i.policy, i.stage, i.turn, i.snapshot, i.kind, count(*) AS items
FROM training_items i
WHERE i.policy IN (SELECT unnest(ancestors) FROM lineage WHERE policy = wanted)
GROUP BY i.policy, i.stage, i.turn, i.snapshot, i.kind ORDER BY i.turn DESC, i.snapshot DESC, items DESC
""",
)

FACTS_BEHIND = Macro(
    "facts_behind",
    "wanted",
    "Which facts stand behind what a policy was trained on: stated by its documents, or on the path of its tasks?",
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
)

SCORES_AFTER = Macro(
    "scores_after",
    "wanted",
    "How did a policy, and those that descend from it, do on every suite?",
    """
SELECT l.depth, e.policy, e.turn, e.stage, e.suite, e.tasks, e.invalid, e.success, e.low, e.high
FROM evaluations e JOIN lineage l ON l.policy = e.policy
WHERE e.hops IS NULL AND list_contains(l.ancestors, wanted) ORDER BY l.depth, e.suite
""",
)

VIEWS = (LINEAGE, TRAINING_ITEMS)
MACROS = (TRAINED_ON, FACTS_BEHIND, SCORES_AFTER)
