"""Texts of CPT, and messages of SFT with what of them is trained on, as datasets for others; rows are traced to their sources."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rl.renderers.base import NotExpressible, Schema
from rl.renderers.tags import tagged_text
from synth.exporters.messages import messages_of, parts_of, system_of
from synth.parts import CPT_KINDS, SFT_KINDS
from synth.questions.text_comparison import near_duplicates
from warehouse.exporters.dataset import UNTRACED, Dataset, Row
from warehouse.lake import Lake
from warehouse.records import Example, Failure, PartKind, Task, Trajectory


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
        ("messages", pa.list_(pa.json_())),
        ("tools", pa.list_(pa.json_())),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int32())),
        ("sources", pa.list_(pa.string())),
        ("wheel_turn", pa.int64()),
    ]
)
_SFT_COLUMNS = {
    "messages": "the conversation in OpenAI's form: role, content, `tool_calls` with arguments as objects, `tool_call_id` of results; "
    "a thought stands in `<think>` before content or calls; `weight` of the assistant's messages is 1 where they are learned",
    "tools": "the schemas of the tools on offer, in OpenAI's form",
    "token_ids": "the ids as an engine sampled them, where it was sampled; they win over the text",
    "loss_mask": "1 where a token is trained on, for `token_ids`",
}


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Which examples: of one turn or all, and the Jaccard index from which on a near-duplicate is left out (None: all stay)."""

    turn: int | None = None
    near_duplicates: float | None = None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What the home's own runs were offered and told: the tools of its environment, and the system prompt of its dialect."""

    tools: Sequence[Schema] = ()
    system: str | None = None


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


def sft_dataset(lake: Lake, at: int, options: TextOptions, chat: ChatOptions) -> Dataset:
    """The trajectories of the cold start as messages; what messages cannot hold is left out with its reason."""
    examples, filters, failures = _chosen(lake, at, SFT_KINDS, options)
    runs, questions = _runs(lake, at, examples)
    rows: list[Row] = []
    for example in examples:
        try:
            rows.append(_sft_row(example, runs, questions, chat))
        except NotExpressible as error:
            failures.append(Failure("export", "not_expressible", str(error), {"id": example.id}))
    return Dataset(
        kind="sft",
        about="Trajectories for supervised fine-tuning, as messages with tool calls in OpenAI's form.",
        schema=_SFT_SCHEMA,
        columns=_COMMON | _SFT_COLUMNS,
        splits={"train": rows} if rows else {},
        sources=Sources.read(lake, at).count(row["sources"] for row in rows),
        filters=filters,
        snapshot=at,
        failures=failures,
    )


def _sft_row(example: Example, runs: Mapping[str, Trajectory], questions: Mapping[str, str], chat: ChatOptions) -> Row:
    run = next((runs[source] for source in example.sources if source in runs), None)
    parts = parts_of(example, run, None if run is None else questions.get(run.task_key))
    shown = next((part.text for part in parts if part.kind is PartKind.TOOLS), None)
    tools = list(chat.tools) if shown is None else json.loads(shown)
    system = system_of(run) if run is not None and run.stage == "import" else chat.system
    return {
        "id": example.id,
        "messages": messages_of(parts, tools, system),
        "tools": tools,
        "token_ids": [token for part in example.parts for token in part.ids],
        "loss_mask": [int(part.learnt) for part in example.parts for _ in part.ids],
        "sources": list(example.sources),
        "wheel_turn": example.wheel_turn,
    }


def _runs(lake: Lake, at: int, examples: Sequence[Example]) -> tuple[dict[str, Trajectory], dict[str, str]]:
    """The stored runs that examples were made from, by their ids, and the questions of their tasks."""
    ids = list({source for example in examples for source in example.sources})
    runs = {run.id: run for run in lake.trajectories("id IN (SELECT unnest(?))", [ids], at=at)}
    tasks = lake.read(Task, "key IN (SELECT unnest(?))", [list({run.task_key for run in runs.values()})], at)
    return runs, {task.key: task.question for task in tasks}


def _chosen(lake: Lake, at: int, kinds: Sequence[str], options: TextOptions) -> tuple[list[Example], list[str], list[Failure]]:
    examples = lake.examples(kinds, at=at, turn=options.turn)
    filters = [f"kinds: {', '.join(kinds)}"]
    if options.turn is not None:
        filters.append(f"turn {options.turn} of the wheel alone")
    if options.near_duplicates is None:
        return examples, filters, []
    doubled = list(near_duplicates(((example.id, example.text) for example in examples), options.near_duplicates))
    left_out = {identity for identity, _, _ in doubled}
    filters.append(f"no near-duplicates (Jaccard index of three-word shingles {options.near_duplicates} or more)")
    failures = [Failure("export", "near_duplicate", f"{one} is nearly {other}", {"id": one, "of": other}) for one, other, _ in doubled]
    return [example for example in examples if example.id not in left_out], filters, failures
