"""Questions that are found with difficulty and checked at once, in the spirit of BrowseComp (Wei et al. 2025, arXiv 2504.12516).

A short answer, proven to be the only one, is checked at once. It is found with difficulty where the way to it is long and no single search
shows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from warehouse.records import Task


def deepest(tasks: Iterable[Task], number: int | None = None) -> list[Task]:
    """The `number` deepest proven tasks (all without one), the deepest first: most hops, then layers, then constraints.

    Left out are tasks with several answers, those without a proof of how they are found, and those whose own wording, given to the search,
    brings a document of the answer on top.
    """
    hard = [task for task in tasks if len(task.answers) == 1 and task.proofs.get("easy") is False]
    hard.sort(key=lambda task: (-task.hops, -task.layers, -task.constraints, task.key))
    return hard[:number]
