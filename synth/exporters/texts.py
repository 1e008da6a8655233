"""Texts of CPT, and messages of SFT with what of them is trained on, as datasets for others; rows are traced to their sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rl.renderers.tags import tagged_text
from synth.parts import CPT_KINDS, SFT_KINDS
from synth.questions.text_comparison import near_duplicates
from warehouse.exporters.dataset import UNTRACED, Dataset, Row
from warehouse.lake import Lake
from warehouse.records import Example, Failure, Part, PartKind, Task


@dataclass(frozen=True, slots=True)
class Sources:
    """The source of every document, task and trajectory of a lake at one snapshot, by id."""

    of: Mapping[str, str]

    @classmethod
    def read(cls, lake: Lake, at: int) -> Sources:
        """What the lake knows at snapshot `at`."""
        documents = lake.query("SELECT id, source FROM documents", at=at)
        tried = lake.query("SELECT id, task_key FROM trajectories", at=at)
        known: dict[str, str] = dict(zip(documents.column("id").to_pylist(), documents.column("source").to_pylist(), strict=True))
        known |= {task.key: source for task in lake.tasks(at=at) if (source := source_of(task))}
        pairs = zip(tried.column("id").to_pylist(), tried.column("task_key").to_pylist(), strict=True)
        known |= {trajectory: known[task] for trajectory, task in pairs if task in known}
        return cls(known)

    def count(self, rows: Iterable[Iterable[str]]) -> Counter[str]:
        """How many rows come from each source, by the ids that each row names."""
        counts: Counter[str] = Counter()
        for ids in rows:
            counts.update({self.of[identity] for identity in ids if identity in self.of} or {UNTRACED})
        return counts


def source_of(task: Task) -> str:
    """The world or file that a task is about; empty where it does not say."""
    return str(task.provenance.get("source", ""))


_CALL = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(_CALL)), ("train", pa.bool_())])
_COMMON = {
    "id": "id of the example in the lake",
    "kind": "what made it",
    "wheel_turn": "turn of the wheel",
    "sources": "ids it was made from",
}
_CPT_SCHEMA = pa.schema(
    [("id", pa.string()), ("kind", pa.string()), ("text", pa.string()), ("sources", pa.list_(pa.string())), ("wheel_turn", pa.int64())]
)
_SFT_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
        ("tools", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int32())),
        ("sources", pa.list_(pa.string())),
        ("wheel_turn", pa.int64()),
    ]
)
_SFT_COLUMNS = {
    "messages": "role, content, calls with their arguments, and whether it is trained on; of a sampled run, its text as it was written",
    "tools": "the schemas of the tools on offer, as JSON; empty where none are known",
    "token_ids": "the ids as an engine sampled them, where it was sampled; they win over the text",
    "loss_mask": "1 where a token is trained on, for `token_ids`",
}


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Which examples: of one turn or all, and the Jaccard index from which on a near-duplicate is left out (None: all stay)."""

    turn: int | None = None
    near_duplicates: float | None = None


def cpt_dataset(lake: Lake, at: int, options: TextOptions) -> Dataset:
    """The texts of continual pre-training; every token of them is trained on."""
    examples, filters, failures = _chosen(lake, at, CPT_KINDS, options)
    rows = [
        {"id": e.id, "kind": e.kind, "text": tagged_text(e.parts), "sources": list(e.sources), "wheel_turn": e.wheel_turn} for e in examples
    ]
    return Dataset(
        kind="cpt",
        about="Texts for agentic continual pre-training: documents, plans (FAS), reasoning (FAS) and decisions (HAS).",
        schema=_CPT_SCHEMA,
        columns=_COMMON | {"text": "the whole text"},
        splits={"train": rows},
        sources=Sources.read(lake, at).count(example.sources for example in examples),
        filters=filters,
        snapshot=at,
        failures=failures,
    )


def sft_dataset(lake: Lake, at: int, options: TextOptions) -> Dataset:
    """The trajectories of the cold start as messages with roles and masks."""
    examples, filters, failures = _chosen(lake, at, SFT_KINDS, options)
    questions = _questions(lake, at)
    return Dataset(
        kind="sft",
        about="Trajectories for supervised fine-tuning: what the policy says is trained on, questions and observations are masked.",
        schema=_SFT_SCHEMA,
        columns=_COMMON | _SFT_COLUMNS,
        splits={"train": [_sft_row(example, questions) for example in examples]},
        sources=Sources.read(lake, at).count(example.sources for example in examples),
        filters=filters,
        snapshot=at,
        failures=failures,
    )


def messages_of(example: Example, question: str | None = None) -> list[Row]:
    """An example as messages: a thought and the calls behind it are one of the assistant's.

    Args:
        question: what a sampled run was asked, whose prompt is known as token ids alone.
    """
    asked = [_message("user", question, False)] if question is not None and not example.questions else []
    rows: list[Row] = []
    for part in example.parts:
        role = _role(part)
        if role is None:
            continue
        continues = role == "assistant" and rows and rows[-1]["role"] == role and part.kind is not PartKind.THOUGHT
        row = rows[-1] if continues else _message(role, "", part.learnt)
        rows += [] if continues else [row]
        if part.kind is PartKind.CALL:
            row["tool_calls"].append({"name": part.tool, "arguments": part.text})
        else:
            row["content"] = "\n".join(filter(None, (row["content"], part.text)))
    return asked + rows


def _message(role: str, content: str, train: bool) -> Row:
    return {"role": role, "content": content, "tool_calls": [], "train": train}


def _role(part: Part) -> str | None:
    """The role of a part's message; None of what is said in no message."""
    if part.kind in (PartKind.TOOLS, PartKind.TEXT, PartKind.DOCUMENT) or not part.text:
        return None
    if part.kind is PartKind.TOKENS:
        return "assistant" if part.learnt else "tool"
    return {PartKind.QUESTION: "user", PartKind.RESULT: "tool"}.get(part.kind, "assistant")


def _sft_row(example: Example, questions: Mapping[str, str]) -> Row:
    question = next((questions[source] for source in example.sources if source in questions), None)
    return {
        "id": example.id,
        "messages": messages_of(example, question),
        "tools": next((part.text for part in example.parts if part.kind is PartKind.TOOLS), ""),
        "token_ids": [token for part in example.parts for token in part.ids],
        "loss_mask": [int(part.learnt) for part in example.parts for _ in part.ids],
        "sources": list(example.sources),
        "wheel_turn": example.wheel_turn,
    }


def _questions(lake: Lake, at: int) -> dict[str, str]:
    """What each trajectory was asked, by its id: an example of a sampled one holds its prompt as ids alone."""
    table = lake.query("SELECT t.id, k.question FROM trajectories t JOIN tasks k ON k.key = t.task_key", at=at)
    return dict(zip(table.column("id").to_pylist(), table.column("question").to_pylist(), strict=True))


def _chosen(lake: Lake, at: int, kinds: Sequence[str], options: TextOptions) -> tuple[list[Example], list[str], list[Failure]]:
    examples = lake.examples(kinds, at=at, turn=options.turn)
    filters = [f"kinds: {', '.join(kinds)}"]
    if options.turn is not None:
        filters.append(f"turn {options.turn} of the wheel alone")
    if options.near_duplicates is None:
        return examples, filters, []
    doubled = list(near_duplicates(((example.id, example.text) for example in examples), options.near_duplicates))
    left_out = {identity for identity, _, _ in doubled}
    filters.append(f"{len(doubled)} left out as near-duplicates (Jaccard index of three-word shingles {options.near_duplicates} or more)")
    failures = [Failure("export", "near_duplicate", f"{one} is nearly {other}", {"id": one, "of": other}) for one, other, _ in doubled]
    return [example for example in examples if example.id not in left_out], filters, failures
