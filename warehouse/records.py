"""Records that all stages read and write.

Each is a frozen value named like its table in the lake, in the singular; stages exchange data only through them. Token ids are the record
of what a policy did; text is a view of them. An outcome has three values, since a fault of a tool, an engine or a judge says nothing about
the policy: such a trajectory is *invalid*, never a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import chain, pairwise
from typing import Any

from warehouse.digests import digest

Triple = tuple[str, str, str]
"""One knowledge projection, `(subject, relation, object)`: variables `V@name`, constants `C@text`, the target `?`."""
NOT_RUN = "not_run"
"""`tool_outcome` of a further call in one message that was not executed."""
RERENDERED = "rerendered_tokens"
"""Key in a trajectory's provenance: tokens of replies that stand in its contexts as an agent repeated them, instead of as sampled."""
ANSWER = "answer"
"""Tool that ends a trajectory."""
OFFERED = "offered"
"""Key in a trajectory's provenance: names of the tools that the policy could call."""
TRAINED_SPLITS = ("train", "demonstration")
"""Splits of training tasks; all others are suites."""


class Outcome(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    INVALID = "invalid"


class StopReason(StrEnum):
    """Why a trajectory ended: its answer, the limit of that name, a token that cannot be continued, or a fault."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    MAX_TOTAL_ACTION_TOKENS = "max_total_action_tokens"
    MAX_TOTAL_OBSERVATION_TOKENS = "max_total_observation_tokens"
    MAX_SECONDS = "max_seconds"
    PLACEHOLDER = "placeholder"
    """The policy wrote the placeholder token of an image; there is no image to continue from."""
    LEFT = "left"
    """An external agent stopped requesting; its use of the last action is unknown."""
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Fact:
    """An edge of the knowledge graph, with the documents that state it; `source` is a world or file, as in `Document`."""

    subject: str
    relation: str
    object: str
    documents: tuple[str, ...] = ()
    source: str = ""


class DocumentSplit(StrEnum):
    """Tasks whose searches find a document: training tasks, suite tasks, or both."""

    TRAIN = "train"
    HELD_OUT = "heldout"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Document:
    """A text of the corpus; `source` is the world or file it came from."""

    id: str
    title: str
    text: str
    source: str
    split: DocumentSplit = DocumentSplit.ALL


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its accepted answers; `key` is stable, `digest` follows the content."""

    key: str
    environment: str
    question: str
    answers: tuple[str, ...]
    formula: tuple[Triple, ...] = ()
    split: str = "train"
    hops: int = 1
    constraints: int = 1
    layers: int = 1
    provenance: dict[str, Any] = field(default_factory=dict)
    proofs: dict[str, Any] = field(default_factory=dict)

    @property
    def is_trained_on(self) -> bool:
        """Whether it is a training task; all others belong to suites."""
        return self.split in TRAINED_SPLITS

    @property
    def digest(self) -> str:
        """Digest of question and accepted answers with their attributes, without provenance and proofs."""
        return digest([self.environment, self.question, self.answers, self.formula, self.split, self.hops, self.constraints, self.layers])


@dataclass(frozen=True, slots=True)
class Image:
    """An image shown to a policy, as encoded bytes; `digest` is their SHA-256, sizes are in pixels."""

    digest: str
    media_type: str
    width: int
    height: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call and its result.

    `observation` is the tool's output before truncation to the context limits. `outcome` is None for an answer, and for a call whose
    trajectory ended before it returned. `latency_seconds` is None if not measured; `retries` counts failed tries; `figures` are measured by
    the tool.
    """

    tool: str
    arguments: str | None
    outcome: str | None
    observation: str = ""
    latency_seconds: float | None = None
    retries: int = 0
    reward: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """An action of the policy and the response.

    `action_ids` and `action_logprobs` (natural logarithms) have equal length and are as sampled by the engine. `observation_ids` were
    appended to the context after the action (empty if the trajectory ended). `latency` is in seconds, None if a foreign run did not record
    it; foreign runs have no token ids. `policy_version` is that of the first token; `policy_versions` has one per token, empty if all are
    equal. An action may hold several calls: `tool`, `arguments` and `tool_outcome` are those of the first, `observation` is the text of all
    results. `reward` is the sum of the calls' rewards during sampling and, in RL, the turn's part of the composed reward, None if no part
    falls on turns. `images` are those whose placeholders are in `observation_ids`, in order. `context_ids` are the ids that the action
    continues if these are not what came before: a history that was rewritten, a branch, a sub-agent; else empty.
    """

    index: int
    action_ids: tuple[int, ...]
    action_logprobs: tuple[float, ...]
    action: str
    tool: str | None
    arguments: str | None
    observation_ids: tuple[int, ...]
    observation: str
    reward: float | None
    tool_outcome: str | None
    latency: float | None
    policy_version: int
    policy_versions: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    images: tuple[Image, ...] = ()
    context_ids: tuple[int, ...] = ()

    @property
    def is_readable(self) -> bool:
        """Whether the action was parsed as calls or an answer."""
        return bool(self.calls)

    @property
    def tool_calls(self) -> tuple[Call, ...]:
        """Executed tool calls, without answers."""
        return tuple(call for call in self.calls if call.tool != ANSWER and call.outcome != NOT_RUN)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run of a policy on a task.

    `stage` is its origin: `demonstration`, `rl`, `eval`, `eval_beside` (during training), `rollout`, `continuation` (of options of a stored
    step, see `provenance`), `serve` (a conversation) or `import`. `suite` is the evaluation suite, `step` the RL step or, for an evaluation
    beside training, the weight version it started with, `wheel_turn` the iteration (from 1), `sample` the index within the task's group.
    `started` is UTC, `seconds` a duration. `reward` is the verifier's value, or the composed reward in RL; None without a verdict or if the
    outcome is invalid. Imported runs have no token ids, None for unrecorded times, and 0 for horizon and seed; their `provenance` holds the
    origin and data beyond a trajectory (system prompt, available tools).
    """

    id: str
    task_key: str
    policy: str
    stage: str
    horizon: int
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    outcome: Outcome | None
    reward: float | None
    seed: int
    started: datetime | None
    seconds: float | None
    wheel_turn: int = 1
    step: int | None = None
    suite: str | None = None
    sample: int = 0
    error: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for turn in self.turns for image in turn.images)

    @property
    def segments(self) -> list[tuple[tuple[int, ...], tuple[Turn, ...]]]:
        """Contexts that were only appended to: the first ids and the turns of each. All but the first begin with a turn's `context_ids`."""
        starts = [place for place, turn in enumerate(self.turns) if turn.context_ids]
        bounds = pairwise([0, *starts, len(self.turns)])
        return [(self.turns[start].context_ids or self.prompt_ids, self.turns[start:end]) for start, end in bounds if start < end]

    def context_of(self, index: int) -> tuple[int, ...]:
        """Ids that the action of turn `index` continued; empty if the first of them are unknown."""
        start = max((place for place in range(index + 1) if self.turns[place].context_ids), default=0)
        first = self.turns[start].context_ids or self.prompt_ids
        before = (ids for turn in self.turns[start:index] for ids in (turn.action_ids, turn.observation_ids))
        return (*first, *chain.from_iterable(before)) if first else ()

    @property
    def answer(self) -> str | None:
        """Text of the policy's answer action, or None."""
        last = next((turn for turn in reversed(self.turns) if turn.tool_outcome != NOT_RUN), None)
        if last is None or last.tool == ANSWER:
            return None if last is None else last.arguments
        return next((call.arguments for call in last.calls if call.tool == ANSWER), None)


@dataclass(frozen=True, slots=True)
class Score:
    """A verifier's judgement of one trajectory: a value, or an error without one.

    `read` is the answer as the verifier extracted it, at most 1,000 characters; None if it found none or reads no answers.
    """

    trajectory_id: str
    verifier: str
    version: str
    value: float | None
    verdict: Outcome
    error: str | None = None
    read: str | None = None


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One part of the reward a trajectory was trained on; contributes `weight` times `value`.

    Unlike a `Score`, it does not judge the outcome. `turns` holds its value per turn, summing to `value`, if it falls on turns. If it could
    not be computed, `error` is set and `value` is None.
    """

    trajectory_id: str
    name: str
    weight: float
    value: float | None
    turns: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """Search statistics of one trajectory; the view `search_habits` defines each count."""

    trajectory_id: str
    searches: int
    in_vain: int
    retried: int
    same: int
    pages: int
    words: int
    checks: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectory ids that an RL step learns from, in order, if they do not follow from the step itself.

    `reused` are those used by an earlier step. A batch is stored before the step, so that the step can be repeated on the same
    trajectories.
    """

    run_id: str
    step: int
    trajectories: tuple[str, ...]
    reused: tuple[str, ...] = ()


class PartKind(StrEnum):
    """Kind of an example's part; the policy's dialect defines its tokens."""

    TOOLS = "tools"
    """JSON schemas of the available tools; before the question."""
    QUESTION = "question"
    THOUGHT = "thought"
    """Reasoning before a call or answer."""
    CALL = "call"
    """Arguments of a call of `tool`, as plain text or JSON."""
    RESULT = "result"
    """Result of a call; directly after the question, what the environment shows with it."""
    ANSWER = "answer"
    DOCUMENT = "document"
    TEXT = "text"
    TOKENS = "tokens"
    """Token ids as sampled or appended; the text is a view of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an example. `learnt`: whether SFT includes it in the loss; `ids` is set for TOKENS only."""

    kind: PartKind
    text: str
    learnt: bool = False
    tool: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """Structured training data, which a policy's dialect renders in its own tokens.

    `kind` is `document`, `fas_plan`, `fas_reason`, `has`, `has_contrast` or `trajectory`; `sources` are the ids it was made from.
    """

    id: str
    kind: str
    parts: tuple[Part, ...]
    sources: tuple[str, ...]
    wheel_turn: int = 1

    @property
    def questions(self) -> tuple[str, ...]:
        return tuple(part.text for part in self.parts if part.kind is PartKind.QUESTION)

    @property
    def text(self) -> str:
        """Texts of all parts except TOOLS, one line per part, without markup."""
        return "\n".join(part.text for part in self.parts if part.kind is not PartKind.TOOLS)


@dataclass(frozen=True, slots=True)
class Check:
    """A checker's verdict on a synthetic sample, kept or not.

    `sample` is the id of the sample as an `Example`, and `kind` its kind. `checker` is `index`, `teacher` or `verifier`; `version` names
    teacher and prompt. `reason` says why it was rejected.
    """

    sample: str
    kind: str
    checker: str
    version: str
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """A teacher's completion of a request; `id` is the digest of teacher name and request.

    `ending` is `stop` or `length`. Token counts are the teacher's own; `attempts` includes failed tries, and `seconds` is the time of the
    last. `usd` is None if the teacher has no prices.
    """

    id: str
    teacher: str
    request: dict[str, Any]
    text: str
    ending: str
    prompt_tokens: int
    completion_tokens: int
    attempts: int = 1
    seconds: float = 0.0
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A set of weights with its parent, stage (`init`, `cpt`, `sft`, `rl`) and training snapshot."""

    id: str
    parent: str | None
    stage: str
    path: str
    weights_digest: str
    snapshot: int | None
    wheel_turn: int = 1
    promoted: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a stage. `state` is `running`, `completed`, `paused` or `failed`; `figures` are the stage's measurements."""

    id: str
    stage: str
    wheel_turn: int
    config: dict[str, Any]
    config_digest: str
    snapshot_before: int | None
    snapshot_after: int | None
    state: str
    started: datetime
    finished: datetime | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a stage at one of its steps; a point of a curve."""

    run_id: str
    stage: str
    wheel_turn: int
    step: int
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A dropped, retried or quarantined item: stage, kind, reason, and the item as JSON-serialisable data."""

    stage: str
    kind: str
    reason: str
    item: Any = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A named snapshot. With a `query` it is a dataset: the rows of that SELECT at that snapshot, with their number and digest."""

    name: str
    snapshot: int
    query: str | None = None
    n_rows: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation; `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a teacher. Equal requests have equal digests, and a cached one is not sent again.

    `max_tokens` limits the completion. `stop` are texts that end it and are not part of it. Different seeds request different samples.
    `form` is a JSON schema, as JSON text, that constrains the completion if the teacher supports it. `tools` are tool schemas, as JSON
    text; a completion writes a call as `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    form: str | None = None
    tools: str | None = None

    @property
    def content(self) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        rest = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed, "stop": list(self.stop)}
        optional = {"form": self.form, "tools": self.tools}
        return {"messages": messages, **rest, **{name: value for name, value in optional.items() if value is not None}}

    @property
    def digest(self) -> str:
        """Digest of the request, without the teacher's name."""
        return digest(self.content)


def user(
    text: str, system: str = "", max_tokens: int = 512, temperature: float = 0.0, seed: int = 0, stop: tuple[str, ...] = (),
    form: str | None = None, examples: Sequence[tuple[str, str]] = (),
) -> Request:  # fmt: skip
    """A request with one user message, after the `system` message and worked `examples` (prompt and reply, as turns), if any."""
    shown = tuple(message for asked, replied in examples for message in (Message("user", asked), Message("assistant", replied)))
    messages = ((Message("system", system),) if system else ()) + shown + (Message("user", text),)
    return Request(messages, max_tokens, temperature, seed, stop, form)
