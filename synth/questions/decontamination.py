"""Keeping training clear of what is evaluated on: the same question, the same formula, a near-duplicate, a question inside a text.

Formulas are compared in their canonical form, so other variable names or another order hide nothing. Questions from templates are
alike in wording whatever they ask; a near-duplicate of a question with a formula must therefore also name one of its constants.
Evaluation sets beside the suites are read from JSON or JSON lines, and of them only what is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field

from synth.formulas.triples import formula_digest, is_constant, members, nodes_of
from synth.questions.text_comparison import NearDuplicates, words_of
from warehouse.bounds import read_text_json, unpacked
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.records import Example, Failure, Task
from warehouse.settings import Section

CONTAINED_WORDS = 8
"""Evaluation questions of at least this many words may not occur inside training text."""
STAGE = "decontamination"
"""The stage under which what was removed stands in `failures`."""


class Contamination(StrEnum):
    """How a piece of training data meets an evaluation set."""

    SAME_QUESTION = "same_question"
    SAME_FORMULA = "same_formula"
    NEAR_DUPLICATE = "near_duplicate"
    CONTAINED = "contained_question"


class DecontaminationConfig(Section):
    """Removal of training data that overlaps with an evaluation set."""

    enabled: bool = True
    """Check training data against the suites."""
    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Jaccard similarity of three-word shingles above which questions are near-duplicates."""
    against: dict[str, Path] = Field(default_factory=dict)
    """Further evaluation sets by name: JSON or JSON Lines files (also .gz) with a `question` or `prompt` per row."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What a piece of training data meets: how, which suite, which of its tasks, and the Jaccard index (1 for the same)."""

    kind: Contamination
    suite: str
    task: str
    similarity: float = 1.0


@dataclass(frozen=True, slots=True)
class EvaluationIndex:
    """The tasks of every evaluation set, found by question, by formula, by similar wording and inside texts."""

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
        """The index of suites by name, and of the sets that the configuration names.

        Raises:
            RequestError: such a set cannot be read.
        """
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
        """What a question meets, by its formula too where `task` has one; None where it is clear."""
        if not self.tasks:
            return None
        same = self.questions.get(_normalised(question))
        if same is not None:
            return self._hit(Contamination.SAME_QUESTION, same)
        same = self.formulas.get(formula_digest(task.formula)) if task is not None and task.formula and self.formulas else None
        return self._hit(Contamination.SAME_FORMULA, same) if same is not None else self._similar(question)

    def contained(self, text: str) -> Hit | None:
        """The evaluated question that stands word for word in `text`, if any."""
        width = CONTAINED_WORDS
        words = words_of(text) if self.beginnings else []
        for start in range(len(words) - width + 1):
            for name in self.beginnings.get(tuple(words[start : start + width]), ()):
                asked = words_of(self.tasks[name][1].question)
                if words[start : start + len(asked)] == asked:
                    return self._hit(Contamination.CONTAINED, name)
        return None

    def clear_tasks(self, tasks: Sequence[Task]) -> tuple[list[Task], list[Failure]]:
        """The tasks that may be trained on, and why the others may not."""
        against = {task.key: self.objection(task) for task in tasks}
        return [task for task in tasks if against[task.key] is None], [found for found in against.values() if found is not None]

    def objection(self, task: Task) -> Failure | None:
        """Why a task may not be trained on; None where it may."""
        hit = self.hit(task.question, task)
        return None if hit is None else removal("task", task.key, hit)

    def clear_examples(self, examples: Sequence[Example]) -> tuple[list[Example], list[Failure]]:
        """The examples that may be trained on, and why the others may not."""
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
        if not self.any_unnamed and spans.isdisjoint(self.all_constants):  # most questions end here, without a signature
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
    """The record of something that was removed."""
    reason = f"{what} {identity} meets task {hit.task} of {hit.suite}: {hit.kind.value.replace('_', ' ')}"
    item = {what: identity, "suite": hit.suite, "against": hit.task, "similarity": round(hit.similarity, 3)}
    return Failure(STAGE, hit.kind, reason, item)


def _normalised(question: str) -> str:
    return " ".join(words_of(question))


def _constants(task: Task) -> frozenset[tuple[str, ...]]:
    """What a task's formula names, in words."""
    return frozenset(tuple(words_of(member)) for node in nodes_of(task.formula) if is_constant(node) for member in members(node))


ASKED = ("question", "prompt")
"""The fields in which evaluation sets keep what they ask."""
NAMED = ("id", "task_id", "key")


def read_evaluation_set(path: Path) -> list[Task]:
    """The questions in a JSON list or in JSON lines, packed by gzip or not, as tasks without answers.

    Raises:
        RequestError: no such file, no JSON, or a row without a question: an evaluation set that is half read would protect by half.
    """
    if not path.is_file():
        raise RequestError(f"there is no evaluation set {path}; name a file of JSON or JSON lines.")
    with unpacked(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8-sig")
        listed = text.lstrip().startswith("[")
        rows = read_text_json(text) if listed else [read_text_json(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise RequestError(f"{path} is neither JSON nor JSON lines: {error}.") from error
    if not rows:
        raise RequestError(f"{path} holds no row, and nothing can be held against it: name the file of the evaluation set.")
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
