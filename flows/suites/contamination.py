"""Overlap between a suite and the training data of a policy and its ancestors: tasks, questions, documents, entities.

Each ancestor is checked at its training snapshot, so data removed later still counts: its examples and, for RL, the sampled tasks and
search results. Overlap of documents and entities is counted separately from that of questions. The documents of a home's own suite are
those held out from training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rich.markup import escape
from rich.table import Table

from eval.graders.answers import normalize
from eval.suites.tasks import origin_of
from flows.screen import Screen
from flows.suites.tasks import SuiteTasks
from synth.formulas.triples import is_constant, members
from synth.questions.decontamination import Contamination, DecontaminationConfig, EvaluationIndex
from warehouse import Document, DocumentSplit, Example, Lake, PartKind, Policy, Task
from warehouse.errors import RequestError


class OverlapKind(StrEnum):
    """How training data overlaps with a suite's task."""

    SAME_TASK = "same_task"
    SAME_QUESTION = Contamination.SAME_QUESTION
    SAME_FORMULA = Contamination.SAME_FORMULA
    NEAR_DUPLICATE = Contamination.NEAR_DUPLICATE
    CONTAINED = Contamination.CONTAINED
    DOCUMENT = "same_document"
    SHOWN = "shown_document"
    """A search result in the training data shows a document of the suite."""
    ENTITY = "same_entity"


ASKED = (OverlapKind.SAME_TASK, OverlapKind.SAME_QUESTION, OverlapKind.SAME_FORMULA, OverlapKind.NEAR_DUPLICATE, OverlapKind.CONTAINED)
"""Overlaps of the question itself."""
LISTED = 20
"""Number of overlaps printed; `--json` has all."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A task (or document) of the suite, the policy, and the overlapping training item."""

    sort: OverlapKind
    task: str
    policy: str
    item: str


@dataclass(frozen=True, slots=True)
class ContaminationReport:
    """All overlaps, the policies checked, and those that could not be checked with the reason."""

    looked_at: tuple[str, ...]
    unknown: dict[str, str]
    met: tuple[Overlap, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number of overlapping tasks (documents for `same_document` and `shown_document`) by kind."""
        pairs = {(one.sort, one.task) for one in self.met}
        found = Counter(sort for sort, _ in pairs)
        return {sort.value: found[sort] for sort in OverlapKind}

    @property
    def tasks_asked(self) -> int:
        """Number of tasks whose question overlaps."""
        return len({one.task for one in self.met if one.sort in ASKED})


@dataclass(frozen=True, slots=True)
class _Material:
    """Training data of one policy; `shown` pairs a trajectory or example id with a tool result."""

    examples: Sequence[Example] = ()
    documents: Sequence[Document] = ()
    tasks: Sequence[Task] = ()
    shown: Sequence[tuple[str, str]] = ()


def contamination(lake: Lake, policy: str, suite: str, drawn: SuiteTasks) -> ContaminationReport:
    """Check the training data of `policy` and its ancestors against `suite`."""
    index = EvaluationIndex.of({suite: drawn.tasks}, DecontaminationConfig())
    documents = lake.read(Document, "split = ?", [DocumentSplit.HELD_OUT.value]) if drawn.documents is None else drawn.documents
    known = {policy.id: policy for policy in lake.policies()}
    found: list[Overlap] = []
    looked, unknown = [], {}
    for name in _lineage(lake, policy):
        try:
            material = _material(lake, known[name])
        except RequestError as error:
            unknown[name] = str(error)
            continue
        looked.append(name)
        found += _overlaps(index, replace(drawn, documents=tuple(documents)), name, material)
    return ContaminationReport(tuple(looked), unknown, tuple(dict.fromkeys(found)))


def print_contamination(policy: str, report: ContaminationReport) -> None:
    console = Screen()
    looked = ", ".join(report.looked_at) or "nothing"
    table = Table("met in training", "tasks", title=f"what {escape(policy)} was trained on: {escape(looked)}", title_justify="left")
    for sort, count in report.counts.items():
        table.add_row(sort, str(count))
    console.print(table)
    for name, reason in report.unknown.items():
        console.print(f"unknown for {escape(name)}: {escape(reason)}")
    for one in report.met[:LISTED]:
        console.print(f"  {one.sort.value}: {escape(one.task)} in {escape(one.item)} ({escape(one.policy)})", soft_wrap=True)
    if len(report.met) > LISTED:
        console.print(f"  and {len(report.met) - LISTED} more; --json lists all")


def _lineage(lake: Lake, policy: str) -> list[str]:
    rows = lake.query("SELECT unnest(ancestors) AS id FROM lineage WHERE policy = ?", [policy]).to_pylist()
    return [row["id"] for row in rows]


def _material(lake: Lake, policy: Policy) -> _Material:
    """Read a policy's training data. Raise RequestError if its snapshot has expired."""
    at = policy.snapshot
    if at is None:
        return _Material()
    lake.query("SELECT 1", at=at)
    if policy.stage == "rl":
        sampled = "key IN (SELECT task_key FROM trajectories WHERE stage = 'rl' AND policy = ?)"
        return _Material(tasks=lake.read(Task, sampled, [policy.id], at), shown=_observed(lake, policy))
    chosen = "kind = 'trajectory'" if policy.stage == "sft" else "kind <> 'trajectory'"
    examples = lake.read(Example, f"wheel_turn = ? AND {chosen}", [policy.wheel_turn], at)
    sources = sorted({source for example in examples for source in example.sources})
    shown = [(example.id, part.text) for example in examples for part in example.parts if part.kind is PartKind.RESULT]
    return _Material(examples, lake.read(Document, "id IN (SELECT unnest(?))", [sources], at), shown=shown)


def _observed(lake: Lake, policy: Policy) -> list[tuple[str, str]]:
    sql = """
        SELECT any_value(trajectory_id) AS id, observation
        FROM tool_calls WHERE trajectory_id IN (SELECT id FROM trajectories WHERE stage = 'rl' AND policy = ?)
        GROUP BY observation
    """
    return [(row["id"], row["observation"]) for row in lake.query(sql, [policy.id]).to_pylist() if row["observation"]]


def _overlaps(index: EvaluationIndex, drawn: SuiteTasks, policy: str, material: _Material) -> Iterator[Overlap]:
    keys = {task.key for task in material.tasks} | {source for example in material.examples for source in example.sources}
    for task in drawn.tasks:
        for key in {task.key, origin_of(task)} & keys:
            yield Overlap(OverlapKind.SAME_TASK, task.key, policy, key)
    for failure in (*index.clear_tasks(material.tasks)[1], *index.clear_examples(material.examples)[1]):
        item = failure.item
        yield Overlap(OverlapKind(failure.kind), item["against"], policy, item.get("task") or item["example"])
    yield from _document_overlaps(drawn, policy, material.documents)
    yield from _shown(drawn.documents or (), policy, material.shown)


def _document_overlaps(drawn: SuiteTasks, policy: str, documents: Sequence[Document]) -> Iterator[Overlap]:
    texts = {normalize(document.text): document.id for document in documents}
    for document in drawn.documents or ():
        if (same := texts.get(normalize(document.text))) is not None:
            yield Overlap(OverlapKind.DOCUMENT, document.id, policy, same)
    titles = {normalize(document.title): document.id for document in documents}
    for task in drawn.tasks:
        for name in sorted(_entities(task)):
            if name in titles:
                yield Overlap(OverlapKind.ENTITY, task.key, policy, titles[name])


def _shown(documents: Sequence[Document], policy: str, texts: Sequence[tuple[str, str]]) -> Iterator[Overlap]:
    """Find documents shown in observations, recognized by their longest line."""
    lines = {max(document.text.splitlines(), key=len): document.id for document in documents if document.text.strip()}
    for item, text in texts:
        for line in text.splitlines():
            if line in lines:
                yield Overlap(OverlapKind.SHOWN, lines[line], policy, item)


def _entities(task: Task) -> set[str]:
    """Normalized answers and constants of a task."""
    nodes = (node for subject, _, value in task.formula for node in (subject, value))
    named = [member for node in nodes if is_constant(node) for member in members(node)]
    return {normalize(name) for name in (*task.answers, *named) if normalize(name)}
