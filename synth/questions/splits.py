"""Splits by a hash that no seed changes: by the entities of a task, by its formula, or by its formula's pattern.

A split by entity keeps tasks apart that share any entity: a task whose entities fall on both sides belongs to neither. A split by
formula keeps renamed and reordered copies together. A split by pattern (the formula without its constants) holds out whole kinds
of questions. A number such as a year is held to be a value and not an entity; without that, hardly a task would be left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from synth.formulas.triples import CONSTANT, canonical, formula_digest, is_constant, members, nodes_of
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.records import Failure, Task, Triple

TRAIN, HELD_OUT = "train", "heldout"

WITNESSES = "witnesses"
"""Where a task's provenance names all that its unknowns stand for, also what links two constraints and has no document."""


@cache
def split_of(entity: str, heldout_share: float, salt: str = "") -> str:
    """The split of one entity of a single real graph, `train` or `heldout`, by a hash that no seed changes."""
    return HELD_OUT if seed_from("split", salt, entity) < heldout_share * 0x80000000 else TRAIN


def split_tasks(tasks: Sequence[Task], rule: str, share: float, salt: str = "") -> tuple[dict[str, list[Task]], list[Failure]]:
    """The tasks in `train` and `heldout`, and those that belong to neither.

    Args:
        rule: one of `RULES`.
        share: about which share of entities, formulas or patterns is held out.
        salt: another one gives another split.

    Raises:
        RequestError: an unknown rule.
    """
    if rule not in RULES:
        raise RequestError(f"there is no split by {rule!r}; choose one of {', '.join(RULES)}.")
    parts: dict[str, list[Task]] = {TRAIN: [], HELD_OUT: []}
    failures: list[Failure] = []
    for task in tasks:
        sides = {split_of(group, share, f"{rule} {salt}") for group in RULES[rule](task)}
        if len(sides) == 1:
            parts[sides.pop()].append(task)
        else:
            why = "has entities on both sides" if sides else f"has no {rule} to split by"
            failures.append(Failure("split", f"by_{rule}", f"task {task.key} {why}", task.key))
    return parts, failures


def entities_of(task: Task) -> set[str]:
    """What a task is about: constants, way, what unknowns stand for, and answers; plain numbers left out."""
    constants = (member for node in nodes_of(task.formula) if is_constant(node) for member in members(node))
    way = (str(entity) for place in ("path", WITNESSES) for entity in task.provenance.get(place, ()))
    named = {*constants, *way, *task.answers}
    return {entity for entity in named if not entity.isdecimal()}


def pattern_of(formula: Sequence[Triple]) -> tuple[Triple, ...]:
    """The canonical form of a formula whose constants are all the same: what kind of question it is."""
    blank = f"{CONSTANT}_"
    return canonical([(blank if is_constant(s) else s, r, blank if is_constant(o) else o) for s, r, o in formula])


def _formula_of(task: Task) -> set[str]:
    return {formula_digest(task.formula)} if task.formula else set()


def _pattern_of(task: Task) -> set[str]:
    return {digest(pattern_of(task.formula))} if task.formula else set()


RULES: dict[str, Callable[[Task], set[str]]] = {"entity": entities_of, "formula": _formula_of, "pattern": _pattern_of}
"""What each rule keeps together."""
