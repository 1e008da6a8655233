"""Tables of the lake, which map columns to record fields.

A table is named like its record in the plural and has a commented column per field. Derived columns (digests, counts) serve SQL and are not
read back. Every table also has `recorded`, the UTC time of the commit that wrote the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from warehouse.columns import (
    BYTES,
    FLAG,
    INTEGER,
    INTEGERS,
    JSON,
    PARTS,
    REAL,
    REALS,
    TEXT,
    TEXTS,
    TIME,
    TRIPLES,
    Column,
    ColumnType,
    Table,
    enumeration,
    to_json,
)
from warehouse.digests import digest
from warehouse.records import (
    ANSWER,
    Batch,
    Call,
    Check,
    Completion,
    Document,
    DocumentSplit,
    Example,
    Fact,
    Failure,
    Image,
    Metric,
    Outcome,
    Pin,
    Policy,
    RewardPart,
    Run,
    Score,
    SearchCounts,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

Record = (
    Fact
    | Document
    | Task
    | Trajectory
    | Image
    | Score
    | RewardPart
    | SearchCounts
    | Batch
    | Example
    | Check
    | Completion
    | Policy
    | Run
    | Metric
    | Failure
    | Pin
)
"""Records that a lake stores; turns are part of their trajectory, calls and images of their turn."""


class OwnedTurn(NamedTuple):
    """A turn with its trajectory id: the source of a row of `turns`."""

    trajectory_id: str
    turn: Turn


class OwnedCall(NamedTuple):
    """A call with its position, and whether it is the first with its tool and outcome: the source of a row of `tool_calls`."""

    trajectory_id: str
    turn_index: int
    call_index: int
    is_first: bool
    call: Call


def owned_turns(trajectories: Iterable[Trajectory]) -> list[OwnedTurn]:
    return [OwnedTurn(trajectory.id, turn) for trajectory in trajectories for turn in trajectory.turns]


def owned_calls(trajectories: Iterable[Trajectory]) -> list[OwnedCall]:
    calls: list[OwnedCall] = []
    for trajectory in trajectories:
        seen: set[tuple[str, str | None]] = set()
        for turn in trajectory.turns:
            for place, call in enumerate(turn.calls):
                kind = (call.tool, call.outcome)
                calls.append(OwnedCall(trajectory.id, turn.index, place, kind not in seen, call))
                seen.add(kind)
    return calls


def owned_images(trajectories: Iterable[Trajectory]) -> dict[tuple[str], Image]:
    return {(image.digest,): image for trajectory in trajectories for turn in trajectory.turns for image in turn.images}


def _digests(turn: Turn) -> list[str]:
    return [image.digest for image in turn.images] if turn.images else []


def _turn_column(name: str, kind: ColumnType, comment: str) -> Column:
    return Column(name, kind, comment, part="turn")


def _call_column(name: str, kind: ColumnType, comment: str) -> Column:
    return Column(name, kind, comment, part="call")


def _n_calls(trajectory: Trajectory) -> int:
    return sum([call.tool != ANSWER for turn in trajectory.turns for call in turn.calls])


def _action_tokens(trajectory: Trajectory) -> int:
    return sum([len(turn.action_ids) for turn in trajectory.turns])


def _observation_tokens(trajectory: Trajectory) -> int:
    return sum([len(turn.observation_ids) for turn in trajectory.turns])


def _failure_id(failure: Failure) -> str:
    return digest([failure.stage, failure.kind, failure.reason, to_json(failure.item)])


FACTS = Table(
    "facts",
    "Edges of the knowledge graph.",
    Fact,
    ("source", "subject", "relation", "object"),
    (
        Column("subject", TEXT, "Subject entity."),
        Column("relation", TEXT, "Name of the relation."),
        Column("object", TEXT, "Object: entity or value."),
        Column("documents", TEXTS, "Ids of the documents that state it."),
        Column("source", TEXT, "World or file of the fact."),
    ),
)
DOCUMENTS = Table(
    "documents",
    "Documents of the corpus, which search tools index.",
    Document,
    ("id",),
    (
        Column("id", TEXT, "Document id."),
        Column("title", TEXT, "Title."),
        Column("text", TEXT, "Full text."),
        Column("source", TEXT, "World or file of the document."),
        Column("split", enumeration(DocumentSplit), "Tasks whose searches find it: train, heldout (suites) or all."),
    ),
)
TASKS = Table(
    "tasks",
    "Tasks: questions with their accepted answers.",
    Task,
    ("key",),
    (
        Column("key", TEXT, "Stable key."),
        Column("digest", TEXT, "Digest of question and accepted answers."),
        Column("environment", TEXT, "Environment."),
        Column("question", TEXT, "Question put to the policy."),
        Column("answers", TEXTS, "Accepted answers."),
        Column("formula", TRIPLES, "JSON: knowledge projections [subject, relation, object]; the target is ?."),
        Column("split", TEXT, "train, demonstration, import, webshaper, or the name of a held-out suite."),
        Column("hops", INTEGER, "Relations between the named entities and the target."),
        Column("constraints", INTEGER, "Number of conditions on the answer."),
        Column("layers", INTEGER, "Number of expansions that built the question."),
        Column("provenance", JSON, "JSON: how it was made and from what."),
        Column("proofs", JSON, "JSON: what was proven when it was built."),
    ),
)
TRAJECTORIES = Table(
    "trajectories",
    "Runs of a policy on a task, one row each; actions are in turns, tool calls in tool_calls.",
    Trajectory,
    ("id",),
    (
        Column("id", TEXT, "Trajectory id."),
        Column("task_key", TEXT, "tasks.key."),
        Column("policy", TEXT, "policies.id, or the name of a foreign agent."),
        Column("stage", TEXT, "demonstration, rl, eval, eval_beside (alongside training), rollout, continuation, serve or import."),
        Column(
            "outcome",
            enumeration(Outcome),
            "success, failure or invalid, NULL if not judged.",
        ),
        Column("stop_reason", enumeration(StopReason), "answered, fault, placeholder, or the limit that ended it."),
        Column("horizon", INTEGER, "Maximum turns."),
        Column("n_turns", INTEGER, "Turns taken.", lambda trajectory: len(trajectory.turns)),
        Column("n_calls", INTEGER, "Tool calls, without answers.", _n_calls),
        Column("prompt_tokens", INTEGER, "Tokens of the prompt.", lambda trajectory: len(trajectory.prompt_ids)),
        Column("action_tokens", INTEGER, "Tokens sampled from the policy.", _action_tokens),
        Column("observation_tokens", INTEGER, "Tokens appended after its actions.", _observation_tokens),
        Column("reward", REAL, "Total reward, NULL if not judged or invalid."),
        Column("wheel_turn", INTEGER, "Iteration, from 1."),
        Column("step", INTEGER, "RL step; for eval_beside the version it started with; NULL elsewhere."),
        Column("suite", TEXT, "Evaluation suite, NULL elsewhere."),
        Column("sample", INTEGER, "Index among the trajectories of the task."),
        Column("prompt_ids", INTEGERS, "Token ids of the prompt."),
        Column("seed", INTEGER, "Sampling seed."),
        Column("started", TIME, "Start, UTC."),
        Column("seconds", REAL, "Wall time in seconds."),
        Column("answer", TEXT, "Final answer, NULL if it gave none."),
        Column("error", TEXT, "Error that made it invalid."),
        Column("provenance", JSON, "JSON: source of an imported run."),
    ),
)
TURNS = Table(
    "turns",
    "Actions of a policy and their observations, by index.",
    Turn,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        _turn_column("index", INTEGER, "Index within the trajectory, from 0."),
        _turn_column("action", TEXT, "Text of the action."),
        _turn_column("tool", TEXT, "Tool of the first call, NULL without a call."),
        _turn_column("arguments", TEXT, "Arguments of the first call."),
        _turn_column("observation", TEXT, "Text of the observation."),
        _turn_column("tool_outcome", TEXT, "Outcome of the first call; unparsable if the action is not a valid call."),
        _turn_column(
            "reward", REAL, "In RL the turn's part of the composed reward, otherwise the sum of its calls' rewards; NULL without one."
        ),
        _turn_column("latency", REAL, "Seconds from action to observation."),
        _turn_column("policy_version", INTEGER, "Version of the weights that sampled the first token."),
        _turn_column("policy_versions", INTEGERS, "Version per token; empty if all are the same."),
        _turn_column("action_ids", INTEGERS, "Token ids as sampled."),
        _turn_column("action_logprobs", REALS, "Log-probability of each sampled token (natural logarithm)."),
        _turn_column("observation_ids", INTEGERS, "Token ids appended after the action."),
        _turn_column("context_ids", INTEGERS, "Token ids that the action continues if these are not what came before; else empty."),
        Column("images", TEXTS, "images.digest of each image in the observation, in order.", _digests, part="turn"),
    ),
)
IMAGES = Table(
    "images",
    "Images returned by tools and shown to policies, stored once each; turns refer to them.",
    Image,
    ("digest",),
    (
        Column("digest", TEXT, "SHA-256 of the encoded bytes."),
        Column("media_type", TEXT, "Media type, such as image/png."),
        Column("width", INTEGER, "Width in pixels."),
        Column("height", INTEGER, "Height in pixels."),
        Column("data", BYTES, "Encoded bytes as the tool returned them."),
    ),
)
TOOL_CALLS = Table(
    "tool_calls",
    "Tool calls, one row each; a turn may have several.",
    Call,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("turn_index", INTEGER, "turns.index."),
        Column("call_index", INTEGER, "Index within the turn, from 0."),
        Column("is_first", FLAG, "Whether it is the trajectory's first call with this tool and outcome."),
        _call_column("tool", TEXT, "Name of the tool; `answer` ends a trajectory."),
        _call_column("arguments", TEXT, "Arguments as written."),
        _call_column("outcome", TEXT, "ok or the kind of failure, NULL for an answer and for a call without a result."),
        _call_column("observation", TEXT, "Result of the tool before truncation to the context's limits."),
        _call_column("latency_seconds", REAL, "Duration in seconds, NULL if not measured."),
        _call_column("retries", INTEGER, "Failed attempts before it."),
        _call_column("reward", REAL, "Reward given by the tool, if any."),
        _call_column("figures", JSON, "JSON: figures measured by the tool."),
    ),
)
SCORES = Table(
    "scores",
    "Verdicts of verifiers; a trajectory keeps one per verifier and version.",
    Score,
    ("trajectory_id", "verifier", "version"),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("verifier", TEXT, "Name of the verifier."),
        Column("version", TEXT, "Version of the verifier."),
        Column("value", REAL, "Score, NULL if undecided."),
        Column("verdict", enumeration(Outcome), "success, failure or invalid."),
        Column("error", TEXT, "Why it is undecided."),
        Column("read", TEXT, "Answer it read, at most 1,000 characters, NULL if it found none."),
    ),
)
REWARD_PARTS = Table(
    "reward_parts",
    "Parts of composed rewards.",
    RewardPart,
    ("trajectory_id", "name"),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("name", TEXT, "Name of the part."),
        Column("weight", REAL, "Weight in the sum."),
        Column("value", REAL, "Value before weighting, NULL if it could not be computed."),
        Column("turns", REALS, "Value per turn, if it has one."),
        Column("error", TEXT, "Why it could not be computed."),
    ),
)
SEARCH_COUNTS = Table(
    "search_counts",
    "Search statistics of trajectories, counted once by `warehouse.upkeep`; the view search_habits includes those not counted yet.",
    SearchCounts,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("searches", INTEGER, "Number of searches."),
        Column("in_vain", INTEGER, "Searches that found no document with all of their words."),
        Column("retried", INTEGER, "Searches in vain whose next search looked for the same thing."),
        Column("same", INTEGER, "Searches with the words of an earlier one, same page."),
        Column("pages", INTEGER, "Searches with the words of an earlier one, another page."),
        Column("words", INTEGER, "Searches for the same thing in other words."),
        Column("checks", INTEGER, "Searches after the answer was first shown."),
    ),
)
BATCHES = Table(
    "batches",
    "Trajectories of each RL step, recorded when rollouts run ahead of the learner or trajectories are reused.",
    Batch,
    ("run_id", "step"),
    (
        Column("run_id", TEXT, "runs.id."),
        Column("step", INTEGER, "RL step that trained on them."),
        Column("trajectories", TEXTS, "trajectories.id of each, in order."),
        Column("reused", TEXTS, "Those that an earlier step had already trained on."),
    ),
)
EXAMPLES = Table(
    "examples",
    "Training examples as structured parts; a policy's dialect renders them to tokens.",
    Example,
    ("id",),
    (
        Column("id", TEXT, "Identity, from the content."),
        Column("kind", TEXT, "document, fas_plan, fas_reason, has, has_contrast or trajectory."),
        Column("parts", PARTS, "Parts in order: kind, text, whether SFT trains on it, tool, token ids as sampled."),
        Column("sources", TEXTS, "Ids of the tasks, documents and trajectories it was made from."),
        Column("wheel_turn", INTEGER, "Iteration it was made for."),
    ),
)
CHECKS = Table(
    "checks",
    "Verdicts of checkers on synthetic samples, kept or rejected.",
    Check,
    ("sample", "checker", "version"),
    (
        Column("sample", TEXT, "examples.id, or the id that a rejected sample would have had."),
        Column("kind", TEXT, "Kind of the sample."),
        Column("checker", TEXT, "index, teacher or verifier."),
        Column("version", TEXT, "Teacher and prompt, or the checker's version."),
        Column("accepted", FLAG, "Whether the checker accepted the sample."),
        Column("reason", TEXT, "Why it was rejected."),
    ),
)
COMPLETIONS = Table(
    "completions",
    "Replies of teachers.",
    Completion,
    ("id",),
    (
        Column("id", TEXT, "Digest of the teacher's name and the request."),
        Column("teacher", TEXT, "Name of the teacher."),
        Column("request", JSON, "JSON: the request."),
        Column("text", TEXT, "Text of the reply."),
        Column("ending", TEXT, "stop or length."),
        Column("prompt_tokens", INTEGER, "Tokens of the request, by the teacher's count."),
        Column("completion_tokens", INTEGER, "Tokens of the text, by the teacher's count."),
        Column("attempts", INTEGER, "Requests sent, failed ones included."),
        Column("seconds", REAL, "Time of the last request."),
        Column("usd", REAL, "Price in US dollars by the teacher's prices; null without."),
    ),
)
POLICIES = Table(
    "policies",
    "Policies (sets of weights) and their lineage.",
    Policy,
    ("id",),
    (
        Column("id", TEXT, "Policy id, also the name of its folder."),
        Column("parent", TEXT, "policies.id it was trained from, NULL for the first."),
        Column("stage", TEXT, "init, cpt, sft or rl."),
        Column("path", TEXT, "Folder of the weights, relative to the home."),
        Column("weights_digest", TEXT, "Digest of the weights."),
        Column("snapshot", INTEGER, "Snapshot of the lake it was trained on."),
        Column("wheel_turn", INTEGER, "Iteration that made it."),
        Column("promoted", FLAG, "Whether it passed the gate."),
    ),
)
RUNS = Table(
    "runs",
    "Attempts of stages.",
    Run,
    ("id",),
    (
        Column("id", TEXT, "Run id."),
        Column("stage", TEXT, "Stage."),
        Column("wheel_turn", INTEGER, "Iteration."),
        Column("config", JSON, "JSON: configuration."),
        Column("config_digest", TEXT, "Digest of the configuration, without settings that only say how the home is run."),
        Column("snapshot_before", INTEGER, "Snapshot it read, NULL if it was refused before its first step."),
        Column("snapshot_after", INTEGER, "Snapshot it left."),
        Column("state", TEXT, "running, paused, completed or failed."),
        Column("started", TIME, "Start, UTC."),
        Column("finished", TIME, "End, UTC."),
        Column("figures", JSON, "JSON: figures of the stage."),
    ),
)
METRICS = Table(
    "metrics",
    "Metrics of stages by step.",
    Metric,
    ("run_id", "stage", "name", "step"),
    (
        Column("run_id", TEXT, "runs.id."),
        Column("stage", TEXT, "Stage of the run."),
        Column("wheel_turn", INTEGER, "Iteration."),
        Column("step", INTEGER, "Step of the stage."),
        Column("name", TEXT, "Name of the metric."),
        Column("value", REAL, "Its value."),
    ),
)
FAILURES = Table(
    "failures",
    "What was dropped, retried or quarantined, and why.",
    Failure,
    ("id",),
    (
        Column("id", TEXT, "Digest of the row.", _failure_id),
        Column("stage", TEXT, "Stage or part where it happened."),
        Column("kind", TEXT, "Kind of the failure."),
        Column("reason", TEXT, "Reason in words."),
        Column("item", JSON, "JSON: the item."),
    ),
)
PINS = Table(
    "pins",
    "Named snapshots; a pin with a query is a dataset.",
    Pin,
    ("name",),
    (
        Column("name", TEXT, "Name of the pin."),
        Column("snapshot", INTEGER, "Pinned snapshot."),
        Column("query", TEXT, "SELECT of the dataset, NULL for a pin of a snapshot alone."),
        Column("n_rows", INTEGER, "Rows of the dataset."),
        Column("digest", TEXT, "Digest of the dataset's columns and rows."),
    ),
)

TABLES: tuple[Table[Any], ...] = (
    FACTS, DOCUMENTS, TASKS, TRAJECTORIES, TURNS, TOOL_CALLS, IMAGES, SCORES, REWARD_PARTS, SEARCH_COUNTS, BATCHES, EXAMPLES, CHECKS,
    COMPLETIONS, POLICIES, RUNS, METRICS, FAILURES, PINS,
)  # fmt: skip
"""All tables of the lake."""

TABLE_OF: dict[type, Table[Any]] = {table.record: table for table in TABLES if table not in (TURNS, TOOL_CALLS)}
