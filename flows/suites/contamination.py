"""What a policy and its ancestors were trained on, held against a suite: the same task, the same question, a suite's document or entity.

Each ancestor is looked at as it was trained: at the snapshot that it was trained on, its examples, and of RL the tasks that it sampled and
what its searches showed. What was taken out of the lake later was trained on all the same. That a document or an entity was read does not
mean that a question was, so those sorts are counted apart. The documents of a home's own suite are those that its training may not see.
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
    """How a suite's task was met in training."""

    SAME_TASK = "same_task"
    SAME_QUESTION = Contamination.SAME_QUESTION
    SAME_FORMULA = Contamination.SAME_FORMULA
    NEAR_DUPLICATE = Contamination.NEAR_DUPLICATE
    CONTAINED = Contamination.CONTAINED
    DOCUMENT = "same_document"
    SHOWN = "shown_document"
    """A search that was trained on brought a document of the suite's."""
    ENTITY = "same_entity"


ASKED = (OverlapKind.SAME_TASK, OverlapKind.SAME_QUESTION, OverlapKind.SAME_FORMULA, OverlapKind.NEAR_DUPLICATE, OverlapKind.CONTAINED)
"""The sorts by which the question itself was met; the others say that something of its world was read."""


LISTED = 20
"""Tasks that were met in training that are printed; `--json` has all."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A task of the suite (or a document, where that was met), the policy that was trained on it, and the piece of training data."""

    sort: OverlapKind
    task: str
    policy: str
    item: str


@dataclass(frozen=True, slots=True)
class ContaminationReport:
    """All that was met; which policies were looked at, and which could not be, with the reason."""

    looked_at: tuple[str, ...]
    unknown: dict[str, str]
    met: tuple[Overlap, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Tasks (of `same_document` and `shown_document` documents) that were met, by sort."""
        pairs = {(one.sort, one.task) for one in self.met}
        found = Counter(sort for sort, _ in pairs)
        return {sort.value: found[sort] for sort in OverlapKind}

    @property
    def tasks_asked(self) -> int:
        """Tasks whose question itself was met."""
        return len({one.task for one in self.met if one.sort in ASKED})


@dataclass(frozen=True, slots=True)
class _Material:
    """What one policy was trained on."""

    examples: Sequence[Example] = ()
    documents: Sequence[Document] = ()
    tasks: Sequence[Task] = ()
    shown: Sequence[tuple[str, str]] = ()
    """What tools brought, each with the trajectory or the example that shows it."""


def contamination(lake: Lake, policy: str, suite: str, drawn: SuiteTasks) -> ContaminationReport:
    """What the lineage of `policy` was trained on, held against the tasks and documents of `suite`."""
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
    """Counts by sort, and the first tasks that were met."""
    console = Screen()
    looked = ", ".join(report.looked_at) or "nothing"
    table = Table("met in training", "tasks", title=f"what {escape(policy)} was trained on: {escape(looked)}", title_justify="left")
    for sort, count in report.counts.items():
        table.add_row(sort, str(count))
    console.print(table)
    for name, reason in report.unknown.items():
        console.print(f"not known of {escape(name)}: {escape(reason)}")
    for one in report.met[:LISTED]:
        console.print(f"  {one.sort.value}: {escape(one.task)} in {escape(one.item)} ({escape(one.policy)})", soft_wrap=True)
    if len(report.met) > LISTED:
        console.print(f"  and {len(report.met) - LISTED} more; --json lists all")


def _lineage(lake: Lake, policy: str) -> list[str]:
    rows = lake.query("SELECT unnest(ancestors) AS id FROM lineage WHERE policy = ?", [policy]).to_pylist()
    return [row["id"] for row in rows]


def _material(lake: Lake, policy: Policy) -> _Material:
    """What a stage read. Raises RequestError where the snapshot is not there any more."""
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
    """What searches showed in RL, which began at the policy's snapshot."""
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
    """A document is known by its longest line, whatever stands around it in an observation."""
    lines = {max(document.text.splitlines(), key=len): document.id for document in documents if document.text.strip()}
    for item, text in texts:
        for line in text.splitlines():
            if line in lines:
                yield Overlap(OverlapKind.SHOWN, lines[line], policy, item)


def _entities(task: Task) -> set[str]:
    """The answers of a task and what its formula names, as they are compared."""
    nodes = (node for subject, _, value in task.formula for node in (subject, value))
    named = [member for node in nodes if is_constant(node) for member in members(node)]
    return {normalize(name) for name in (*task.answers, *named) if normalize(name)}
