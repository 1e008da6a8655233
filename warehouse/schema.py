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
    "Edges of the knowledge graph; `source` names the world or the file that they came from.",
    Fact,
    ("source", "subject", "relation", "object"),
    (
        Column("subject", TEXT, "Entity that the fact is about."),
        Column("relation", TEXT, "Name of the relation."),
        Column("object", TEXT, "Entity or value that the relation leads to."),
        Column("documents", TEXTS, "Ids of the documents that state the fact."),
        Column("source", TEXT, "World or file that the fact came from."),
    ),
)
DOCUMENTS = Table(
    "documents",
    "Texts of the corpus that search tools read.",
    Document,
    ("id",),
    (
        Column("id", TEXT, "Identity of the document."),
        Column("title", TEXT, "Title."),
        Column("text", TEXT, "Whole text."),
        Column("source", TEXT, "World or file that the document came from."),
        Column("split", enumeration(DocumentSplit), "Which tasks find it when they search: train, heldout (suites), or all."),
    ),
)
TASKS = Table(
    "tasks",
    "Questions with the answers that are accepted.",
    Task,
    ("key",),
    (
        Column("key", TEXT, "Stable identity."),
        Column("digest", TEXT, "Digest of what the task asks and accepts."),
        Column("environment", TEXT, "Environment that it is played in."),
        Column("question", TEXT, "What the policy is asked."),
        Column("answers", TEXTS, "Answers that are accepted."),
        Column("formula", TRIPLES, "Knowledge projections [subject, relation, object] as JSON; the target is ?."),
        Column("split", TEXT, "train, demonstration, import, webshaper, or the name of a held-out suite."),
        Column("hops", INTEGER, "Relations between what is named and what is asked."),
        Column("constraints", INTEGER, "Conditions that the answer meets."),
        Column("layers", INTEGER, "Expansions that built the question."),
        Column("provenance", JSON, "JSON: how and from what it was made."),
        Column("proofs", JSON, "JSON: what was proven of the question when it was built."),
    ),
)
TRAJECTORIES = Table(
    "trajectories",
    "Runs of a policy on a task, one row each; their actions are in turns, their tool calls in tool_calls.",
    Trajectory,
    ("id",),
    (
        Column("id", TEXT, "Identity, given by the caller."),
        Column("task_key", TEXT, "tasks.key."),
        Column("policy", TEXT, "policies.id, or the name of a foreign agent."),
        Column("stage", TEXT, "What made it: demonstration, rl, eval, eval_beside, rollout, continuation or import."),
        Column(
            "outcome",
            enumeration(Outcome),
            "success, failure, invalid, or NULL where nothing has judged it.",
        ),
        Column("stop_reason", enumeration(StopReason), "answered, fault, placeholder, or the limit that ended it."),
        Column("horizon", INTEGER, "Turns that were allowed."),
        Column("n_turns", INTEGER, "Turns that were taken.", lambda trajectory: len(trajectory.turns)),
        Column("n_calls", INTEGER, "Tool calls that were made, answers left out.", _n_calls),
        Column("prompt_tokens", INTEGER, "Tokens of the prompt.", lambda trajectory: len(trajectory.prompt_ids)),
        Column("action_tokens", INTEGER, "Tokens that the policy wrote.", _action_tokens),
        Column("observation_tokens", INTEGER, "Tokens that were appended after its actions.", _observation_tokens),
        Column("reward", REAL, "Reward of the whole; NULL where nothing has judged it or it is invalid."),
        Column("wheel_turn", INTEGER, "Turn of the wheel, from 1."),
        Column("step", INTEGER, "RL step, of eval_beside the version that it was begun under, NULL elsewhere."),
        Column("suite", TEXT, "Evaluation suite, NULL elsewhere."),
        Column("sample", INTEGER, "Place among the trajectories of one task."),
        Column("prompt_ids", INTEGERS, "Token ids of the prompt."),
        Column("seed", INTEGER, "Seed of its sampling."),
        Column("started", TIME, "When it started, UTC."),
        Column("seconds", REAL, "Wall time from start to end."),
        Column("answer", TEXT, "Text of its answer action, NULL where it gave none."),
        Column("error", TEXT, "What broke it, where it is invalid."),
        Column("provenance", JSON, "JSON: where a foreign run was read."),
    ),
)
TURNS = Table(
    "turns",
    "Actions of a policy and what came back, in the order of index.",
    Turn,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        _turn_column("index", INTEGER, "Place in the trajectory, from 0."),
        _turn_column("action", TEXT, "Text of the action."),
        _turn_column("tool", TEXT, "Tool of its first call, NULL where it has none."),
        _turn_column("arguments", TEXT, "Arguments of its first call."),
        _turn_column("observation", TEXT, "Text of all that came back."),
        _turn_column("tool_outcome", TEXT, "Outcome of its first call; unparsable where the action is no call."),
        _turn_column(
            "reward", REAL, "RL: its part of the composed reward; otherwise the sum of its calls' rewards; NULL where there is none."
        ),
        _turn_column("latency", REAL, "Seconds from action to observation."),
        _turn_column("policy_version", INTEGER, "Version of the weights that sampled its first token."),
        _turn_column("policy_versions", INTEGERS, "Those of all its tokens; empty where they are the same."),
        _turn_column("action_ids", INTEGERS, "Token ids as sampled."),
        _turn_column("action_logprobs", REALS, "Natural logarithm of each sampled token's probability."),
        _turn_column("observation_ids", INTEGERS, "Token ids that were appended after the action."),
        Column("images", TEXTS, "images.digest of each image among them, in order.", _digests, part="turn"),
    ),
)
IMAGES = Table(
    "images",
    "Images that tools returned and policies were shown, each once; turns name them.",
    Image,
    ("digest",),
    (
        Column("digest", TEXT, "SHA-256 of the encoded bytes."),
        Column("media_type", TEXT, "How they are encoded, such as image/png."),
        Column("width", INTEGER, "Pixels across."),
        Column("height", INTEGER, "Pixels down."),
        Column("data", BYTES, "The encoded bytes, as the tool gave them."),
    ),
)
TOOL_CALLS = Table(
    "tool_calls",
    "Calls of tools, one row each; a turn may hold several.",
    Call,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("turn_index", INTEGER, "turns.index."),
        Column("call_index", INTEGER, "Place in the turn, from 0."),
        Column("is_first", FLAG, "Whether no call before it in the trajectory had its tool and outcome."),
        _call_column("tool", TEXT, "Name of the tool; answer ends a trajectory."),
        _call_column("arguments", TEXT, "What the tool was asked."),
        _call_column("outcome", TEXT, "ok, or what went wrong; NULL for an answer and for a call that did not come back."),
        _call_column("observation", TEXT, "What the tool gave, before it was cut to the limits of the context."),
        _call_column("latency_seconds", REAL, "Seconds that the call took, NULL where not measured."),
        _call_column("retries", INTEGER, "Tries that failed before."),
        _call_column("reward", REAL, "Reward that the tool gave, if any."),
        _call_column("figures", JSON, "JSON: what the tool measured."),
    ),
)
SCORES = Table(
    "scores",
    "Judgements of verifiers; a trajectory keeps those of every verifier and version.",
    Score,
    ("trajectory_id", "verifier", "version"),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("verifier", TEXT, "Name of the verifier."),
        Column("version", TEXT, "Its version."),
        Column("value", REAL, "Value, NULL where it could not judge."),
        Column("verdict", enumeration(Outcome), "success, failure or invalid."),
        Column("error", TEXT, "Why it could not judge."),
        Column("read", TEXT, "What it read as the answer, cut to 1,000 characters; NULL where it could read none."),
    ),
)
REWARD_PARTS = Table(
    "reward_parts",
    "What a reward is made of, part by part.",
    RewardPart,
    ("trajectory_id", "name"),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("name", TEXT, "Name of the part."),
        Column("weight", REAL, "Its weight in the sum."),
        Column("value", REAL, "Its value before the weight, NULL where it could not be had."),
        Column("turns", REALS, "Its value turn by turn, where it has one for each."),
        Column("error", TEXT, "Why it could not be had."),
    ),
)
SEARCH_COUNTS = Table(
    "search_counts",
    "How trajectories searched, counted once by `warehouse.upkeep`; search_habits has those that wait for it too.",
    SearchCounts,
    ("trajectory_id",),
    (
        Column("trajectory_id", TEXT, "trajectories.id."),
        Column("searches", INTEGER, "Searches that were run."),
        Column("in_vain", INTEGER, "Those that found nothing, or nothing that has all of their words."),
        Column("retried", INTEGER, "Those in vain after which the next one looked for the same."),
        Column("same", INTEGER, "Searches in the words of an earlier one, on the same page."),
        Column("pages", INTEGER, "Searches in the words of an earlier one, on another page."),
        Column("words", INTEGER, "Searches for the same in other words."),
        Column("checks", INTEGER, "Searches after the first one that showed the answer."),
    ),
)
BATCHES = Table(
    "batches",
    "What RL steps learnt from, where rollouts run ahead of the learner or trajectories are used again.",
    Batch,
    ("run_id", "step"),
    (
        Column("run_id", TEXT, "runs.id."),
        Column("step", INTEGER, "Step that learnt from them."),
        Column("trajectories", TEXTS, "trajectories.id of each, in order."),
        Column("reused", TEXTS, "Those of them that an earlier step had learnt from."),
    ),
)
EXAMPLES = Table(
    "examples",
    "Pieces of training data as structure, which a policy's dialect writes in tokens.",
    Example,
    ("id",),
    (
        Column("id", TEXT, "Identity, from the content."),
        Column("kind", TEXT, "document, fas_plan, fas_reason, has, has_contrast or trajectory."),
        Column("parts", PARTS, "What is said and done, in order: its kind, its text, whether SFT learns it, the tool, ids as sampled."),
        Column("sources", TEXTS, "Ids of the tasks, documents and trajectories that it was made from."),
        Column("wheel_turn", INTEGER, "Turn of the wheel that it was made for."),
    ),
)
CHECKS = Table(
    "checks",
    "What checkers said of synthetic samples, kept or not.",
    Check,
    ("sample", "checker", "version"),
    (
        Column("sample", TEXT, "examples.id, or the id that it would have had."),
        Column("kind", TEXT, "Kind of the sample."),
        Column("checker", TEXT, "index, teacher or verifier."),
        Column("version", TEXT, "Teacher and prompt, or the checker's version."),
        Column("accepted", FLAG, "Whether the checker accepted the sample."),
        Column("reason", TEXT, "Why it did not."),
    ),
)
COMPLETIONS = Table(
    "completions",
    "What teachers wrote.",
    Completion,
    ("id",),
    (
        Column("id", TEXT, "Digest of the teacher's name and the request."),
        Column("teacher", TEXT, "Name of the teacher."),
        Column("request", JSON, "JSON: the request."),
        Column("text", TEXT, "What it wrote."),
        Column("ending", TEXT, "stop or length."),
        Column("prompt_tokens", INTEGER, "Tokens of the request, by the teacher's count."),
        Column("completion_tokens", INTEGER, "Tokens of the text, by the teacher's count."),
        Column("attempts", INTEGER, "Requests that it took, failed ones included."),
        Column("seconds", REAL, "Time of the last request."),
    ),
)
POLICIES = Table(
    "policies",
    "Sets of weights and where they come from.",
    Policy,
    ("id",),
    (
        Column("id", TEXT, "Identity, also the name of its folder."),
        Column("parent", TEXT, "policies.id that it was trained from, NULL for the first."),
        Column("stage", TEXT, "init, cpt, sft or rl."),
        Column("path", TEXT, "Folder of the weights, relative to the home."),
        Column("weights_digest", TEXT, "Digest of the weights."),
        Column("snapshot", INTEGER, "Snapshot of the lake that it was trained on."),
        Column("wheel_turn", INTEGER, "Turn of the wheel that made it."),
        Column("promoted", FLAG, "Whether it passed the gate."),
    ),
)
RUNS = Table(
    "runs",
    "Executions of stages.",
    Run,
    ("id",),
    (
        Column("id", TEXT, "Identity of the run."),
        Column("stage", TEXT, "Stage that was run."),
        Column("wheel_turn", INTEGER, "Turn of the wheel."),
        Column("config", JSON, "JSON: its configuration."),
        Column("config_digest", TEXT, "Digest of the configuration, less what says only how a home is run."),
        Column("snapshot_before", INTEGER, "Snapshot that it read; none where it was refused before its first step."),
        Column("snapshot_after", INTEGER, "Snapshot that it left."),
        Column("state", TEXT, "running, paused, completed or failed."),
        Column("started", TIME, "When it started, UTC."),
        Column("finished", TIME, "When it ended, UTC."),
        Column("figures", JSON, "JSON: what it measured."),
    ),
)
METRICS = Table(
    "metrics",
    "Figures of stages, step by step: what curves are drawn from.",
    Metric,
    ("run_id", "stage", "name", "step"),
    (
        Column("run_id", TEXT, "runs.id."),
        Column("stage", TEXT, "Stage of the run."),
        Column("wheel_turn", INTEGER, "Turn of the wheel."),
        Column("step", INTEGER, "Step of the stage."),
        Column("name", TEXT, "Name of the figure."),
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
        Column("stage", TEXT, "Where it happened."),
        Column("kind", TEXT, "What kind of fault."),
        Column("reason", TEXT, "Why, in words."),
        Column("item", JSON, "JSON: what it was."),
    ),
)
PINS = Table(
    "pins",
    "Snapshots kept by name; one with a query is a dataset, its digest that of the rows.",
    Pin,
    ("name",),
    (
        Column("name", TEXT, "Name of the pin."),
        Column("snapshot", INTEGER, "Snapshot that it keeps."),
        Column("query", TEXT, "SELECT that makes the dataset, NULL where the pin keeps a snapshot alone."),
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
