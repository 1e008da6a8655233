"""Lakes as earlier versions of this program left them: their tables as they were then, each with a row or two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from warehouse.connections import attach_statement, connect_to_files, cursor_in_lake
from warehouse.records import Example, Part, PartKind
from warehouse.storage import Place

BEFORE_VERSIONS = (
    "CREATE TABLE facts (subject VARCHAR, relation VARCHAR, object VARCHAR, documents VARCHAR[], source VARCHAR, recorded TIMESTAMP)",
    "CREATE TABLE documents (id VARCHAR, title VARCHAR, text VARCHAR, source VARCHAR, recorded TIMESTAMP)",
    "CREATE TABLE tasks (key VARCHAR, digest VARCHAR, environment VARCHAR, question VARCHAR, answers VARCHAR[], formula JSON, "
    "split VARCHAR, hops BIGINT, constraints BIGINT, layers BIGINT, provenance JSON, recorded TIMESTAMP)",
    "CREATE TABLE trajectories (id VARCHAR, task_key VARCHAR, policy VARCHAR, stage VARCHAR, outcome VARCHAR, stop_reason VARCHAR, "
    "horizon BIGINT, n_turns BIGINT, reward DOUBLE, wheel_turn BIGINT, step BIGINT, suite VARCHAR, sample BIGINT, prompt_ids INTEGER[], "
    "seed BIGINT, started TIMESTAMP, seconds DOUBLE, answer VARCHAR, error VARCHAR, recorded TIMESTAMP)",
    'CREATE TABLE turns (trajectory_id VARCHAR, "index" BIGINT, action VARCHAR, tool VARCHAR, arguments VARCHAR, observation VARCHAR, '
    "tool_outcome VARCHAR, reward DOUBLE, latency DOUBLE, policy_version BIGINT, action_ids INTEGER[], action_logprobs DOUBLE[], "
    "observation_ids INTEGER[], recorded TIMESTAMP)",
    "CREATE TABLE scores (trajectory_id VARCHAR, verifier VARCHAR, version VARCHAR, value DOUBLE, verdict VARCHAR, error VARCHAR, "
    "recorded TIMESTAMP)",
    "CREATE TABLE examples (id VARCHAR, kind VARCHAR, segments STRUCT(text VARCHAR, trained BOOLEAN)[], sources VARCHAR[], "
    "wheel_turn BIGINT, token_ids INTEGER[], loss_mask INTEGER[], recorded TIMESTAMP)",
    "CREATE TABLE policies (id VARCHAR, parent VARCHAR, stage VARCHAR, path VARCHAR, weights_digest VARCHAR, snapshot BIGINT, "
    "wheel_turn BIGINT, promoted BOOLEAN, recorded TIMESTAMP)",
    "CREATE TABLE runs (id VARCHAR, stage VARCHAR, wheel_turn BIGINT, config JSON, config_digest VARCHAR, snapshot_before BIGINT, "
    "snapshot_after BIGINT, state VARCHAR, started TIMESTAMP, finished TIMESTAMP, figures JSON, recorded TIMESTAMP)",
    "CREATE TABLE metrics (run_id VARCHAR, stage VARCHAR, wheel_turn BIGINT, step BIGINT, name VARCHAR, value DOUBLE, recorded TIMESTAMP)",
    "CREATE TABLE failures (id VARCHAR, stage VARCHAR, kind VARCHAR, reason VARCHAR, item JSON, recorded TIMESTAMP)",
    "CREATE VIEW tool_use AS SELECT tool, count(*) AS calls FROM turns GROUP BY tool",
)
"""The first lakes: no checks, no calls, and a view that has other columns today."""

VERSION_1 = (
    *BEFORE_VERSIONS,
    "CREATE TABLE checks (sample VARCHAR, kind VARCHAR, checker VARCHAR, version VARCHAR, accepted BOOLEAN, reason VARCHAR, "
    "recorded TIMESTAMP)",
    "CREATE TABLE completions (id VARCHAR, teacher VARCHAR, request JSON, text VARCHAR, ending VARCHAR, prompt_tokens BIGINT, "
    "completion_tokens BIGINT, attempts BIGINT, seconds DOUBLE, recorded TIMESTAMP)",
    "ALTER TABLE tasks ADD COLUMN proofs JSON",
    "ALTER TABLE trajectories ADD COLUMN provenance JSON",
)
"""The lakes from before calls had rows; no table told the version either."""

ROWS = (
    "INSERT INTO tasks (key, digest, environment, question, answers, formula, split, hops, constraints, layers, provenance) "
    "VALUES ('t1', 'd', 'search', 'Who?', ['one'], '[]', 'train', 1, 1, 1, '{}')",
    "INSERT INTO trajectories (id, task_key, policy, stage, outcome, stop_reason, horizon, n_turns, reward, wheel_turn, sample, "
    "prompt_ids, seed, started, seconds, answer) VALUES ('a', 't1', 'p', 'rl', 'success', 'answered', 3, 3, 1.0, 1, 0, [9, 8], 7, "
    "TIMESTAMP '2026-01-01', 0.5, 'one')",
    "INSERT INTO turns VALUES "
    "('a', 0, '<search>x</search>', 'search', 'x', 'found', 'ok', NULL, 0.25, 1, [1, 2], [-0.5, -0.25], [3, 4, 5], "
    "TIMESTAMP '2026-01-01'), "
    "('a', 1, 'hm', NULL, NULL, '', 'unparsable', NULL, 0.25, 1, [1], [-0.5], [3], TIMESTAMP '2026-01-01'), "
    "('a', 2, '<answer>one</answer>', 'answer', 'one', '', NULL, NULL, 0.25, 1, [6], [-0.5], [], TIMESTAMP '2026-01-01')",
    "INSERT INTO examples (id, kind, segments, sources, wheel_turn, token_ids, loss_mask) VALUES "
    "('document', 'document', [{'text': '<information> Amber Stone\nA < /information>.</information>', 'trained': true}], "
    "['d1'], 1, [], []), "
    "('has', 'has', [{'text': '<question> Who?</question><think> options: 1. search x I will choose option 1</think><search> x</search>"
    "<information> found</information><answer> one</answer> My decision is Correct', 'trained': true}], ['a'], 1, NULL, NULL), "
    "('sampled', 'trajectory', [{'text': '<search>x</search>', 'trained': true}, {'text': 'found', 'trained': false}, "
    "{'text': '<answer>one</answer>', 'trained': true}, {'text': '', 'trained': false}], ['a'], 2, "
    "[9, 8, 1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 0, 0, 1]), "
    "('shown', 'trajectory', [{'text': '<question> Who?</question>', 'trained': false}, {'text': '<search> x</search>', 'trained': true}, "
    "{'text': '<information> found\nmore</information>', 'trained': false}, "
    "{'text': '<think> so</think><answer> one</answer>', 'trained': true}], ['t1'], 1, [], []), "
    "('unmasked', 'trajectory', [], ['a'], 2, [7, 8], [])",
)
EXAMPLES = (
    Example("document", "document", (Part(PartKind.DOCUMENT, "Amber Stone\nA < /information>.", True),), ("d1",)),
    Example(
        "has",
        "has",
        (
            Part(PartKind.QUESTION, "Who?", True),
            Part(PartKind.THOUGHT, "options: 1. search x I will choose option 1", True),
            Part(PartKind.CALL, "x", True, "search"),
            Part(PartKind.RESULT, "found", True),
            Part(PartKind.ANSWER, "one", True),
            Part(PartKind.TEXT, " My decision is Correct", True),
        ),
        ("a",),
    ),
    Example(
        "sampled",
        "trajectory",
        (
            Part(PartKind.TOKENS, "", ids=(9, 8)),
            Part(PartKind.TOKENS, "<search>x</search>", True, ids=(1, 2)),
            Part(PartKind.TOKENS, "found", ids=(3, 4, 5)),
            Part(PartKind.TOKENS, "<answer>one</answer>", True, ids=(6,)),
        ),
        ("a",),
        2,
    ),
    Example(
        "shown",
        "trajectory",
        (
            Part(PartKind.QUESTION, "Who?"),
            Part(PartKind.CALL, "x", True, "search"),
            Part(PartKind.RESULT, "found\nmore"),
            Part(PartKind.THOUGHT, "so", True),
            Part(PartKind.ANSWER, "one", True),
        ),
        ("t1",),
    ),
    Example("unmasked", "trajectory", (Part(PartKind.TOKENS, "", True, ids=(7, 8)),), ("a",), 2),
)
"""What the examples among `ROWS` are today."""


def make_old_lake(home: Path, statements: Sequence[str]) -> int:
    """Makes the lake of `home` with plain statements, fills it, and returns its latest snapshot."""
    place = Place(home)
    place.data.mkdir(parents=True)
    with connect_to_files(place) as connection:
        connection.execute(attach_statement(place, read_only=False))
        with cursor_in_lake(connection) as cursor:
            for statement in (*statements, *ROWS):
                cursor.execute(statement)
            return int(cursor.execute("SELECT id FROM ducklake_current_snapshot('lake')").fetchall()[0][0])
