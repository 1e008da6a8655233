"""The records that every stage reads and writes.

Each is a frozen value with the same name as its table in the lake, in the singular. Stages speak to each other through
these alone. Token ids are the record of what a policy did; text is a view of them. An outcome has three values, because a
fault of a tool, an engine or a judge says nothing about the policy: such a trajectory is *invalid*, never a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from warehouse.digests import digest

Triple = tuple[str, str, str]
"""One knowledge projection, `(subject, relation, object)`: variables `V@name`, constants `C@text`, the target `?`."""

NOT_RUN = "not_run"
"""The `tool_outcome` of a call that a policy wrote behind another in one message, and that was never run."""

ANSWER = "answer"
"""The tool that ends a trajectory."""

TRAINED_SPLITS = ("train", "demonstration")
"""The splits of tasks that are trained on; every other is a suite."""


class Outcome(StrEnum):
    """What a trajectory came to."""

    SUCCESS = "success"
    FAILURE = "failure"
    INVALID = "invalid"


class StopReason(StrEnum):
    """Why a trajectory ended: by its answer, by the limit of that name, by a token that nothing can follow, or by a fault."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    MAX_TOTAL_ACTION_TOKENS = "max_total_action_tokens"
    MAX_TOTAL_OBSERVATION_TOKENS = "max_total_observation_tokens"
    MAX_SECONDS = "max_seconds"
    PLACEHOLDER = "placeholder"
    """The policy wrote the token that stands for an image in its prompts; there is no image behind it to go on from."""
    LEFT = "left"
    """An outside agent asked for no more; what it made of the last action is not known here."""
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Fact:
    """One edge of the knowledge graph, with the documents that state it; `source` names the world or the file, as in `Document`."""

    subject: str
    relation: str
    object: str
    documents: tuple[str, ...] = ()
    source: str = ""


class DocumentSplit(StrEnum):
    """Which tasks find a document when they search: those that are trained on, those of suites, or both."""

    TRAIN = "train"
    HELD_OUT = "heldout"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Document:
    """One text of the corpus; `source` names the world or the file that it came from, `split` says whose searches may find it."""

    id: str
    title: str
    text: str
    source: str
    split: DocumentSplit = DocumentSplit.ALL


@dataclass(frozen=True, slots=True)
class Task:
    """A question with the answers that are accepted; `key` is stable, `digest` follows the content."""

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
        """Whether it is for training; every other task is a suite's."""
        return self.split in TRAINED_SPLITS

    @property
    def digest(self) -> str:
        """Digest of what the task asks and accepts; provenance and proofs do not enter it."""
        return digest([self.environment, self.question, self.answers, self.formula, self.split, self.hops, self.constraints, self.layers])


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a policy was shown, in the encoded bytes that a tool gave; `digest` is their SHA-256, sizes are in pixels."""

    digest: str
    media_type: str
    width: int
    height: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool: what was asked, and what came of it.

    `observation` is what the tool gave, before it was cut to the limits of the context. `outcome` is None for an answer, and for a call
    whose trajectory ended before it came back. `latency_seconds` is None where it was not measured; `retries` counts the tries that
    failed before; `figures` are what the tool measured.
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
    """One action of the policy and what came back.

    `action_ids` and `action_logprobs` have equal length: what the engine sampled, natural logarithms. `observation_ids` are
    what was appended to the context after the action (empty where the trajectory ended). `latency` is in seconds, None where
    a foreign run did not record it; such a run has no token ids either. `policy_version` is that of the first token;
    `policy_versions` those of all of them, and empty where they are the same. An action may hold several calls: `tool`, `arguments`
    and `tool_outcome` are those of the first, `observation` is the text of all that came back. `reward` is what the turn earned: the sum
    of its calls' rewards as it was sampled, and in RL what the composed reward gives it, None where no part of that falls on turns.
    `images` are those whose placeholders stand among `observation_ids`, in their order.
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

    @property
    def is_readable(self) -> bool:
        """Whether the action could be read as calls or an answer."""
        return bool(self.calls)

    @property
    def tool_calls(self) -> tuple[Call, ...]:
        """The calls of tools that were run; an answer is none."""
        return tuple(call for call in self.calls if call.tool != ANSWER and call.outcome != NOT_RUN)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run of a policy on a task.

    `stage` is what made it: `demonstration`, `rl`, `eval`, `eval_beside` (during training), `rollout`, `continuation` (of a stored step's
    options: `provenance` names them) or `import`. `suite` names the
    evaluation suite, `step` the RL step, or the version of the weights that an evaluation beside training was begun under,
    `wheel_turn` the turn of the wheel (from 1), `sample` the place within the group of trajectories of one task.
    `started` is UTC, `seconds` a duration. `reward` is the verifier's value, and in RL the composed reward; None where no verifier has
    spoken or the outcome is invalid. A foreign run (`import`) has no token ids, None for times that it did not record and 0 for horizon
    and seed; `provenance` says where it was read and holds what its format has beyond a trajectory (a system prompt, the tools on offer).
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
        """The images that the policy was shown, in the order of their placeholders."""
        return tuple(image for turn in self.turns for image in turn.images)

    @property
    def answer(self) -> str | None:
        """The text of the policy's own answer action, or None where it gave none."""
        last = next((turn for turn in reversed(self.turns) if turn.tool_outcome != NOT_RUN), None)
        if last is None or last.tool == ANSWER:
            return None if last is None else last.arguments
        return next((call.arguments for call in last.calls if call.tool == ANSWER), None)


@dataclass(frozen=True, slots=True)
class Score:
    """A verifier's judgement of one trajectory: a value, or an error and no value.

    `read` is what the verifier took for the answer, cut to 1,000 characters; None where it found none, or reads no answers.
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
    """One part of the reward that a trajectory was trained on: it counts `weight` times `value`.

    It is no `Score`: it judges nothing, and what a trajectory came to does not follow from it. `turns` holds its value turn by turn where
    it falls on turns, and then sums up to `value`. Where it could not be computed there is an error and no value.
    """

    trajectory_id: str
    name: str
    weight: float
    value: float | None
    turns: tuple[float, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How one trajectory searched, counted once: the view `search_habits` says what each count means."""

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
    """What an RL step was given to learn from, where this does not follow from the step alone: ids of trajectories, in order.

    `reused` are those of them that an earlier step had learnt from. It is stored before the step learns, so that the step can be made
    again on the same trajectories.
    """

    run_id: str
    step: int
    trajectories: tuple[str, ...]
    reused: tuple[str, ...] = ()


class PartKind(StrEnum):
    """What one part of an example is. How it stands in tokens is the business of the policy's dialect."""

    TOOLS = "tools"
    """The schemas of the tools on offer, as JSON; before the question."""
    QUESTION = "question"
    THOUGHT = "thought"
    """What is thought before a call or an answer."""
    CALL = "call"
    """The arguments of a call of `tool`, as plain text or as JSON."""
    RESULT = "result"
    """What a call gave; right behind the question, what the environment shows beside it."""
    ANSWER = "answer"
    DOCUMENT = "document"
    """A text to be read."""
    TEXT = "text"
    """Plain text of any other kind."""
    TOKENS = "tokens"
    """Token ids as they were sampled or appended; the text is a view of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an example: `learnt` says whether supervised fine-tuning learns it, `ids` are there for tokens alone."""

    kind: PartKind
    text: str
    learnt: bool = False
    tool: str = ""
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A piece of training data as structure: what was said and done, which the dialect of a policy writes in its own tokens.

    `kind` is `document`, `fas_plan`, `fas_reason`, `has`, `has_contrast` or `trajectory`; `sources` are the ids it was made from.
    """

    id: str
    kind: str
    parts: tuple[Part, ...]
    sources: tuple[str, ...]
    wheel_turn: int = 1

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions that it asks."""
        return tuple(part.text for part in self.parts if part.kind is PartKind.QUESTION)

    @property
    def text(self) -> str:
        """What it says, a line a part, without any markup; the schemas of tools are left out."""
        return "\n".join(part.text for part in self.parts if part.kind is not PartKind.TOOLS)


@dataclass(frozen=True, slots=True)
class Check:
    """What one checker said of a synthetic sample, one that was kept or one that was not.

    `sample` is the id that the sample has, or would have had, as an `Example`; `kind` its kind. `checker` is `index`, `teacher` or
    `verifier`, `version` names the teacher and the prompt. `reason` says why it was not accepted.
    """

    sample: str
    kind: str
    checker: str
    version: str
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a teacher wrote for a request; `id` is the digest of the teacher's name and the request.

    `ending` is `stop` or `length`. The token counts are the teacher's own; `attempts` counts the requests that it took, failed ones
    included, and `seconds` is the time of the last.
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


@dataclass(frozen=True, slots=True)
class Policy:
    """A set of weights with its parent, the stage that made it (`init`, `cpt`, `sft`, `rl`) and the snapshot it was trained on."""

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
    """One execution of a stage. `state` is `running`, `completed`, `paused` or `failed`; `figures` are what the stage measured."""

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
    """One figure of a stage at one of its steps: what the curves are drawn from."""

    run_id: str
    stage: str
    wheel_turn: int
    step: int
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Something dropped, retried or quarantined: where, what kind, and the reason; `item` is what it was, as JSON-able data."""

    stage: str
    kind: str
    reason: str
    item: Any = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot kept by name. With a `query` it is a dataset: the rows of that SELECT at that snapshot, their number and digest."""

    name: str
    snapshot: int
    query: str | None = None
    n_rows: int | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a teacher is asked. Equal requests have equal digests, and a cached one is not asked twice.

    `max_tokens` bounds the completion alone. `stop` are texts at which it ends; they are not part of it. Differing seeds ask for
    differing samples of one prompt. `form` is a JSON schema, as JSON, that the completion is held to where the teacher can do that.
    `tools` are the schemas on offer, as JSON; a completion writes a call as `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.
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
        """The request as JSON-able data."""
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        rest = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed, "stop": list(self.stop)}
        optional = {"form": self.form, "tools": self.tools}
        return {"messages": messages, **rest, **{name: value for name, value in optional.items() if value is not None}}

    @property
    def digest(self) -> str:
        """Digest of all that is asked; the teacher's name does not enter it."""
        return digest(self.content)


def user(
    text: str,
    system: str = "",
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    stop: tuple[str, ...] = (),
    form: str | None = None,
    examples: Sequence[tuple[str, str]] = (),
) -> Request:
    """A request of one user message, after a system message where there is one; worked `examples`, each what was asked and what was
    replied, are turns before it."""
    shown = tuple(message for asked, replied in examples for message in (Message("user", asked), Message("assistant", replied)))
    messages = ((Message("system", system),) if system else ()) + shown + (Message("user", text),)
    return Request(messages, max_tokens, temperature, seed, stop, form)
