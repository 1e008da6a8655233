"""Separate training from evaluation: decontamination, and splits by a seed-independent hash.

Training data is removed if it shares a question or formula with an evaluation set, is a near-duplicate, or contains a question. Formulas
are compared in canonical form. Template questions resemble each other, so a near-duplicate of a question with a formula must also name one
of its constants. Additional evaluation sets are read from JSON or JSON Lines.

Splits by entity separate tasks that share any entity; a task with entities on both sides is in neither part. Splits by formula keep renamed
copies together; splits by pattern (the formula without constants) hold out kinds of questions. Plain numbers are values, not entities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from synth.formulas.triples import CONSTANT, canonical, formula_digest, is_constant, members, nodes_of
from synth.questions.text_comparison import NearDuplicates, words_of
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError
from warehouse.foreign import open_table
from warehouse.records import Example, Failure, Task, Triple
from warehouse.settings import Section

TRAIN, HELD_OUT = "train", "heldout"

WITNESSES = "witnesses"
"""Provenance key: values of all unknowns of a task, including those without a document."""


@cache
def split_of(entity: str, heldout_share: float, salt: str = "") -> str:
    """Split of an entity, `train` or `heldout`; independent of the seed."""
    return HELD_OUT if seed_from("split", salt, entity) < heldout_share * 0x80000000 else TRAIN


def split_tasks(tasks: Sequence[Task], rule: str, share: float) -> tuple[dict[str, list[Task]], list[Failure]]:
    """Tasks in `train` and `heldout`, and failures for those in neither.

    Args:
        rule: one of `RULES`.
        share: approximate share of entities, formulas or patterns held out.

    Raises:
        RequestError: unknown rule.
    """
    if rule not in RULES:
        raise RequestError(f"there is no split by {rule!r}; choose one of {', '.join(RULES)}.")
    parts: dict[str, list[Task]] = {TRAIN: [], HELD_OUT: []}
    failures: list[Failure] = []
    for task in tasks:
        sides = {split_of(group, share, f"{rule} ") for group in RULES[rule](task)}
        if len(sides) == 1:
            parts[sides.pop()].append(task)
        else:
            why = "has entities on both sides" if sides else f"has no {rule} to split by"
            failures.append(Failure("split", f"by_{rule}", f"task {task.key} {why}", task.key))
    return parts, failures


def entities_of(task: Task) -> set[str]:
    """Constants, path, witnesses and answers of a task, without plain numbers."""
    constants = (member for node in nodes_of(task.formula) if is_constant(node) for member in members(node))
    way = (str(entity) for place in ("path", WITNESSES) for entity in task.provenance.get(place, ()))
    named = {*constants, *way, *task.answers}
    return {entity for entity in named if not entity.isdecimal()}


def pattern_of(formula: Sequence[Triple]) -> tuple[Triple, ...]:
    """Canonical formula with all constants blanked."""
    blank = f"{CONSTANT}_"
    return canonical([(blank if is_constant(s) else s, r, blank if is_constant(o) else o) for s, r, o in formula])


RULES: dict[str, Callable[[Task], set[str]]] = {
    "entity": entities_of,
    "formula": lambda task: {formula_digest(task.formula)} if task.formula else set(),
    "pattern": lambda task: {digest(pattern_of(task.formula))} if task.formula else set(),
}
"""Groups that each rule keeps on one side."""


CONTAINED_WORDS = 8
"""Minimum words of an evaluation question for the containment check."""
STAGE = "decontamination"


class Contamination(StrEnum):
    """Kind of overlap between training data and an evaluation set."""

    SAME_QUESTION = "same_question"
    SAME_FORMULA = "same_formula"
    NEAR_DUPLICATE = "near_duplicate"
    CONTAINED = "contained_question"


class DecontaminationConfig(Section):
    """Removal of training data that overlaps with evaluation sets."""

    enabled: bool = True
    """Check training data against the suites and the sets of `against`."""
    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Minimum Jaccard similarity of three-word shingles at which questions are near-duplicates."""
    against: dict[str, Path] = Field(default_factory=dict)
    """Further evaluation sets by name: JSON or JSON Lines files (also .gz) with a `question` or `prompt` per row."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An overlap: kind, suite, task key, and Jaccard index (1 if identical)."""

    kind: Contamination
    suite: str
    task: str
    similarity: float = 1.0


@dataclass(frozen=True, slots=True)
class EvaluationIndex:
    """Tasks of all evaluation sets, indexed by question, formula, wording and first words."""

    config: DecontaminationConfig
    tasks: Mapping[str, tuple[str, Task]]
    questions: Mapping[str, str]
    formulas: Mapping[str, str]
    constants: Mapping[str, frozenset[tuple[str, ...]]]
    all_constants: frozenset[tuple[str, ...]]
    longest_constant: int
    any_unnamed: bool
    beginnings: Mapping[tuple[str, ...], tuple[str, ...]]
    wording: NearDuplicates

    @classmethod
    def of(cls, suites: Mapping[str, Iterable[Task]], config: DecontaminationConfig | None = None) -> EvaluationIndex:
        """Index the suites and the sets of `config.against`. Raises RequestError if a set cannot be read."""
        config = config or DecontaminationConfig()
        suites = {**suites, **{name: read_evaluation_set(path) for name, path in config.against.items() if config.enabled}}
        tasks = {f"{suite}/{task.key}": (suite, task) for suite, held_out in suites.items() for task in held_out} if config.enabled else {}
        wording = NearDuplicates(config.threshold)
        beginnings: dict[tuple[str, ...], tuple[str, ...]] = {}
        for name, (_, task) in tasks.items():
            wording.add(name, task.question)
            words = tuple(words_of(task.question))
            if len(words) >= CONTAINED_WORDS:
                start = words[:CONTAINED_WORDS]
                beginnings[start] = (*beginnings.get(start, ()), name)
        constants = {name: _constants(task) for name, (_, task) in tasks.items()}
        all_constants = frozenset[tuple[str, ...]]().union(*constants.values())
        return cls(
            config,
            tasks,
            {_normalised(task.question): name for name, (_, task) in tasks.items()},
            {formula_digest(task.formula): name for name, (_, task) in tasks.items() if task.formula},
            constants,
            all_constants,
            max(map(len, all_constants), default=0),
            not all(constants.values()),
            beginnings,
            wording,
        )

    def hit(self, question: str, task: Task | None = None) -> Hit | None:
        """Overlap of a question, or of the formula of `task`; None without one."""
        if not self.tasks:
            return None
        same = self.questions.get(_normalised(question))
        if same is not None:
            return self._hit(Contamination.SAME_QUESTION, same)
        same = self.formulas.get(formula_digest(task.formula)) if task is not None and task.formula and self.formulas else None
        return self._hit(Contamination.SAME_FORMULA, same) if same is not None else self._similar(question)

    def contained(self, text: str) -> Hit | None:
        """Overlap with an evaluation question that `text` contains verbatim; None without one."""
        width = CONTAINED_WORDS
        words = words_of(text) if self.beginnings else []
        for start in range(len(words) - width + 1):
            for name in self.beginnings.get(tuple(words[start : start + width]), ()):
                asked = words_of(self.tasks[name][1].question)
                if words[start : start + len(asked)] == asked:
                    return self._hit(Contamination.CONTAINED, name)
        return None

    def clear_tasks(self, tasks: Sequence[Task]) -> tuple[list[Task], list[Failure]]:
        against = {task.key: self.objection(task) for task in tasks}
        return [task for task in tasks if against[task.key] is None], [found for found in against.values() if found is not None]

    def objection(self, task: Task) -> Failure | None:
        """Failure if a task overlaps with an evaluation set, else None."""
        hit = self.hit(task.question, task)
        return None if hit is None else removal("task", task.key, hit)

    def clear_examples(self, examples: Sequence[Example]) -> tuple[list[Example], list[Failure]]:
        hits = {example.id: self._hit_of(example) for example in examples}
        kept = [example for example in examples if hits[example.id] is None]
        return kept, [removal("example", example.id, hit) for example in examples if (hit := hits[example.id]) is not None]

    def _hit_of(self, example: Example) -> Hit | None:
        if not self.tasks:
            return None
        asked = (question.strip() for question in example.questions)
        return next((hit for question in asked if (hit := self.hit(question)) is not None), None) or self.contained(example.text)

    def _similar(self, question: str) -> Hit | None:
        words, longest = words_of(question), self.longest_constant
        spans = {tuple(words[start:end]) for start in range(len(words)) for end in range(start + 1, min(start + longest, len(words)) + 1)}
        if not self.any_unnamed and spans.isdisjoint(self.all_constants):  # most questions end here, without computing a signature
            return None
        for name, index in self.wording.matches(question):
            named = self.constants[name]
            if not named or named & spans:
                return self._hit(Contamination.NEAR_DUPLICATE, name, index)
        return None

    def _hit(self, kind: Contamination, name: str, similarity: float = 1.0) -> Hit:
        suite, task = self.tasks[name]
        return Hit(kind, suite, task.key, similarity)


def removal(what: str, identity: str, hit: Hit) -> Failure:
    reason = f"{what} {identity} meets task {hit.task} of {hit.suite}: {hit.kind.value.replace('_', ' ')}"
    item = {what: identity, "suite": hit.suite, "against": hit.task, "similarity": round(hit.similarity, 3)}
    return Failure(STAGE, hit.kind, reason, item)


def _normalised(question: str) -> str:
    return " ".join(words_of(question))


def _constants(task: Task) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(words_of(member)) for node in nodes_of(task.formula) if is_constant(node) for member in members(node))


ASKED = ("question", "prompt")
"""Fields that may hold the question in evaluation sets."""
NAMED = ("id", "task_id", "key")


def read_evaluation_set(path: Path) -> list[Task]:
    """Read the questions of a JSON or JSON Lines file (also gzipped) as tasks without answers.

    Raises:
        RequestError: the file is missing, empty or malformed, or a row has no question (a partial set would protect only partially).
    """
    if not path.is_file():
        raise RequestError(f"there is no evaluation set {path}; choose a file of JSON or JSON lines.")
    rows = []
    for found in open_table(path, text="json")[1]:
        if found.fault is not None:
            raise RequestError(f"{path} is neither JSON nor JSON lines: in line {found.line} {found.fault}.")
        rows.append(found.value)
    if not rows:
        raise RequestError(f"{path} has no rows to compare with: choose the file of the evaluation set.")
    tasks: dict[str, Task] = {}
    for number, row in enumerate(rows, start=1):
        task = _task(row, number, path)
        key = task.key if task.key not in tasks else f"{task.key} in row {number}"
        tasks[key] = replace(task, key=key)
    return list(tasks.values())


def _task(row: Any, number: int, path: Path) -> Task:
    fields = row if isinstance(row, dict) else {}
    question = next((fields[name] for name in ASKED if isinstance(fields.get(name), str) and fields[name].strip()), None)
    if question is None:
        raise RequestError(f"row {number} of {path} has no text under {' or '.join(ASKED)}.")
    name = next((str(fields[name]) for name in NAMED if name in fields), digest(question))
    return Task(name, "evaluation", question, (), split=path.stem)
