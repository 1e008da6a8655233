"""Export trajectories as messages of OpenAI, preference pairs, ATIF 1.7, traces of verifiers v1 and sessions of the Hugging Face hub.

Messages and pairs are datasets for training: without invalid trajectories and tasks of suites. The other three hold every trajectory that
`--where` selects, and are written one at a time, since ATIF repeats the context's ids at each action.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from flows.results import judged_trajectories
from rl.renderers.base import NotExpressible, Schema
from synth.conversations import Conversation, Document, atif_of, messages_of_run, preference, session_of, verifiers_of
from synth.exporters import ChatOptions, is_of_no_suite, source_of, system_of
from warehouse import Failure, Lake, Outcome, Trajectory
from warehouse.drafts import drafted
from warehouse.errors import RequestError
from warehouse.exporters.dataset import UNTRACED, Dataset, Row, card_of, card_path, check_free, file_name
from warehouse.importers.schemas import schemas_of

READ_AT_ONCE = 200
"""Trajectories in memory."""
EVERY = "true"
"""Condition that selects every trajectory."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Trajectories of a lake at a snapshot that satisfy an SQL condition on the table `trajectories`, with the home's tools."""

    lake: Lake
    at: int
    where: str
    chat: ChatOptions

    @property
    def filters(self) -> list[str]:
        return [] if self.where == EVERY else [f"trajectories where `{self.where}`"]

    def conversations(self, failures: list[Failure], ids: Sequence[str] | None = None) -> Iterator[Conversation]:
        """The trajectories, or those with `ids`, in the order of their ids; one without a task in the lake becomes a failure."""
        tasks = {task.key: task for task in self.lake.tasks(at=self.at)}
        ids = chosen_ids(self.lake, self.where, at=self.at) if ids is None else ids
        for start in range(0, len(ids), READ_AT_ONCE):
            for run in judged_trajectories(self.lake, "id IN (SELECT unnest(?))", [ids[start : start + READ_AT_ONCE]], self.at):
                if run.task_key in tasks:
                    yield Conversation(run, tasks[run.task_key], *self._chat_of(run))
                else:
                    failures.append(_failure(run.id, NotExpressible("the lake does not have its task")))

    def _chat_of(self, run: Trajectory) -> tuple[Sequence[Schema], str | None]:
        """Tools and system prompt: an imported run's own, else the home's."""
        if run.stage != "import":
            return self.chat.tools, self.chat.system
        row = run.provenance.get("row")
        own = run.provenance.get("tools") or (schemas_of(row).tools if isinstance(row, dict) else ())
        return own, system_of(run)


def chosen_ids(lake: Lake, where: str, limit: int | None = None, at: int | None = None, some: bool = True) -> list[str]:
    """Ids of the trajectories that satisfy `where`, in order.

    Raises RequestError if the condition is invalid, or if there is none although there must be `some`.
    """
    try:
        sql = f"SELECT id FROM trajectories WHERE ({where}\n) ORDER BY id LIMIT ?"
        ids: list[str] = lake.query(sql, [limit], at=at).column("id").to_pylist()
    except RequestError as error:
        raise RequestError(f"--where {where!r:.200} is not a valid condition on the table trajectories: {error}") from error
    if some and not ids:
        raise RequestError(f"no trajectory of {lake.place.home} matches --where {where!r:.200}.")
    return ids


def _failure(identity: str, error: NotExpressible) -> Failure:
    return Failure("export", "not_expressible", str(error), {"id": identity})


def _training(selection: Selection, removed: Counter[str], failures: list[Failure]) -> Iterator[tuple[Conversation, list[Document]]]:
    """Conversations that may be trained on, as messages; counts the others by reason."""
    for conversation in selection.conversations(failures):
        if not is_of_no_suite(conversation.task):
            removed["of suites"] += 1
        elif conversation.run.outcome is Outcome.INVALID:
            removed["invalid"] += 1
        else:
            try:
                yield conversation, messages_of_run(conversation)
            except NotExpressible as error:
                failures.append(_failure(conversation.run.id, error))


_TEXT, _JSON = pa.string(), pa.list_(pa.json_())
_Columns = dict[str, tuple[pa.DataType, str]]
_MESSAGES = "in OpenAI's form: arguments as objects, thoughts in `<think>`"
_RUN_COLUMNS: _Columns = {
    "id": (_TEXT, "id of the trajectory"),
    "messages": (_JSON, f"the conversation {_MESSAGES}; `weight` is 0 for actions that are not learned"),
    "tools": (_JSON, "the schemas of the tools on offer"),
    "model": (_TEXT, "the policy"),
    "task": (_TEXT, "key of the task"),
    "answers": (pa.list_(_TEXT), "what is accepted"),
    "outcome": (_TEXT, "success or failure; null without a verdict"),
    "reward": (pa.float64(), "reward of the trajectory"),
}
_PAIR_COLUMNS: _Columns = {
    "id": (_TEXT, "ids of both trajectories"),
    "prompt": (_JSON, f"what both share, {_MESSAGES}"),
    "chosen": (_JSON, "the rest of a success, from the first action in which they differ"),
    "rejected": (_JSON, "the rest of a failure"),
    "tools": (_JSON, "the schemas of the tools on offer"),
    "model": (_TEXT, "the policy"),
    "task": (_TEXT, "key of the task"),
}


def messages_dataset(selection: Selection) -> Dataset:
    """A row per trajectory, which `flywheel import` reads."""
    removed: Counter[str] = Counter()
    failures: list[Failure] = []
    sources: Counter[str] = Counter()
    rows: list[Row] = []
    for conversation, messages in _training(selection, removed, failures):
        run, task = conversation.run, conversation.task
        sources[source_of(task) or UNTRACED] += 1
        rows.append(
            {
                "id": run.id, "messages": messages, "tools": list(conversation.tools), "model": run.policy, "task": task.key,
                "answers": list(task.answers), "outcome": run.outcome and str(run.outcome), "reward": run.reward,
            }
        )  # fmt: skip
    about = "Trajectories as messages with tool calls in OpenAI's form."
    return _dataset("openai", about, _RUN_COLUMNS, rows, sources, selection, removed, failures)


def preference_dataset(selection: Selection) -> Dataset:
    """Pairs of a success and a failure of one group of the view `contrasts`: a task, policy, stage and step. A run is in one pair."""
    removed: Counter[str] = Counter()
    failures: list[Failure] = []
    sources: Counter[str] = Counter()
    groups: dict[tuple[str, str, str, int | None], dict[Outcome | None, list[tuple[Conversation, list[Document]]]]] = {}
    for conversation, messages in _training(selection, removed, failures):
        run = conversation.run
        unweighted = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
        outcomes = groups.setdefault((run.task_key, run.policy, run.stage, run.step), {})
        outcomes.setdefault(run.outcome, []).append((conversation, unweighted))
    rows: list[Row] = []
    for outcomes in groups.values():
        good, bad = outcomes.pop(Outcome.SUCCESS, []), outcomes.pop(Outcome.FAILURE, [])
        removed["without a verdict"] += sum(map(len, outcomes.values()))
        removed["without a counterpart in their group"] += abs(len(good) - len(bad))
        for (conversation, chosen), (other, rejected) in zip(good, bad, strict=False):
            identity = f"{conversation.run.id} {other.run.id}"
            try:
                pair = preference(chosen, rejected)
            except NotExpressible as error:
                failures.append(_failure(identity, error))
                continue
            sources[source_of(conversation.task) or UNTRACED] += 1
            about = {"tools": list(conversation.tools), "model": conversation.run.policy, "task": conversation.task.key}
            rows.append({"id": identity, **pair, **about})
    text = "Pairs of a success and a failure of one policy on one task, as TRL's preference trainers read them."
    return _dataset("preferences", text, _PAIR_COLUMNS, rows, sources, selection, +removed, failures)


def _dataset(
    kind: str, about: str, columns: _Columns, rows: Sequence[Row], sources: Counter[str], selection: Selection,
    removed: Counter[str], failures: Sequence[Failure],
) -> Dataset:  # fmt: skip
    return Dataset(
        kind=kind,
        about=about,
        schema=pa.schema([(name, arrow) for name, (arrow, _) in columns.items()]),
        columns={name: text for name, (_, text) in columns.items()},
        splits={"train": rows} if rows else {},
        sources=sources,
        filters=[*selection.filters, "no tasks of suites, no invalid trajectories"],
        removed=removed,
        snapshot=selection.at,
        failures=failures,
    )


@dataclass(frozen=True, slots=True)
class TraceForm:
    """A trace format: its documents of a trajectory, and the file in a folder, where `{}` is the trajectory's id."""

    about: str
    documents: Callable[[Conversation], list[Document]]
    file: str


TRACE_FORMS = {
    "atif": TraceForm("Trajectories in the Agent Trajectory Interchange Format, version 1.7.", atif_of, "{}.json"),
    "verifiers": TraceForm("Episodes with one trace each, as verifiers v1 writes them.", verifiers_of, "traces.jsonl"),
    "hf-traces": TraceForm("Sessions for the trace viewer of the Hugging Face hub.", session_of, "{}.jsonl"),
}


def export_traces(selection: Selection, kind: str, path: Path, settings: str) -> Dataset:
    """Write trajectories to a folder with a card, or to a `.jsonl` file with a line each and the card next to it.

    Raises RequestError if `path` exists or does not fit the format, or nothing can be written.
    """
    form, in_lines = TRACE_FORMS[kind], path.suffix == ".jsonl"
    check_free(path)
    if path.suffix not in ("", ".jsonl") or (in_lines and kind == "hf-traces"):
        places = "a folder" if kind == "hf-traces" else "a folder or a .jsonl file"
        raise RequestError(f"{kind} is written to {places}, not to {path}; choose another path.")
    failures: list[Failure] = []
    sources: Counter[str] = Counter()
    ids: list[Row] = []
    with drafted(path) as draft:
        (draft.parent if in_lines else draft).mkdir(parents=True, exist_ok=True)
        for conversation in selection.conversations(failures):
            try:
                text = _text(form, conversation)
            except NotExpressible as error:
                failures.append(_failure(conversation.run.id, error))
                continue
            with (draft if in_lines else draft / form.file.format(file_name(conversation.run.id))).open("a", encoding="utf-8") as file:
                file.write(text)
            ids.append({"id": conversation.run.id})
            sources[source_of(conversation.task) or UNTRACED] += 1
        if not ids:
            raise RequestError(f"none of {len(failures)} trajectories can be written as {kind}: {failures[0].reason}.")
        dataset = Dataset(
            kind=kind, about=form.about, schema=pa.schema([]), columns={}, splits={"train": ids}, sources=sources,
            filters=selection.filters, snapshot=selection.at, settings=settings, failures=failures,
        )  # fmt: skip
        files = {"train": path.name if in_lines else form.file.format("*")}
        (card_path(path) if in_lines else draft / "README.md").write_text(card_of(dataset, "", files), encoding="utf-8")
    return dataset


def _text(form: TraceForm, conversation: Conversation) -> str:
    return "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in form.documents(conversation))
