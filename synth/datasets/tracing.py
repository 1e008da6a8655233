"""From the ids that an example names to the sources (worlds, files) that it comes from, so that a card can name their licences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warehouse.datasets_out.dataset import UNTRACED
from warehouse.lake import Lake
from warehouse.records import Task


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
