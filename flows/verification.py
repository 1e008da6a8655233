"""Validate that verifiers judge a task set correctly, and re-verify stored trajectories.

Re-verification generates nothing and keeps the scores of other verifiers and versions. A score's key is the trajectory, the verifier and
its version: a version does not judge again what it has judged, except, on request, trajectories that it could not judge. The latest score
is a trajectory's outcome in every view; the reward used in training stays in the trajectory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from eval.graders.base import UNSUPERVISED, Attempt, BatchVerifier, Verifier, verify_all
from eval.graders.choice import JUDGE, Verifiers, find_verifier, grader_of, is_verifier, verifiers_of
from eval.graders.rows import read_rows
from eval.graders.unsupervised import Agreement, Confidence
from eval.graders.verifiers import GRADERS, VERIFIERS, Grader
from eval.judges import Judge
from eval.sandbox.sandbox import SandboxFault
from eval.suites.validation import Subject, Tally, Validation, subject_of, validate
from flows.config import FlywheelConfig
from flows.data.repositories import why_not_solvable
from flows.evaluation_config import EvaluationConfig
from flows.home import OVER_SNAPSHOTS, Home
from flows.inputs import bringing_tasks
from flows.judges import HomeJudges
from flows.lakes import open_lake
from synth.teachers.config import TeacherConfig
from warehouse import Lake, Outcome, Score, Task, Trajectory
from warehouse.errors import RequestError

_UNSUPERVISED: dict[str, Callable[[Verifiers], BatchVerifier]] = {
    Agreement().name: lambda verifiers: Agreement(verifiers=verifiers),
    Confidence().name: lambda verifiers: Confidence(),
}
NAMES = (*VERIFIERS, JUDGE, *_UNSUPERVISED)
"""Every verifier name that `flywheel reverify` accepts."""


@contextmanager
def open_verifier(name: str, settings: EvaluationConfig, lake: Lake) -> Iterator[Verifier | BatchVerifier]:
    """Open a verifier by name. A judge is calibrated first, with its verdicts stored in `checks`.

    Agreement compares answers as the home's own verifiers parse them.

    Raises:
        RequestError: An unknown verifier, a judge without a model, or a judge that fails its calibration.
    """
    if name == JUDGE:
        with open_judge(settings.judge, lake) as opened:
            yield opened
    elif name in _UNSUPERVISED:
        yield _UNSUPERVISED[name](settings.open_verifiers())
    elif is_verifier(name):
        yield find_verifier(name)
    else:
        raise RequestError(f"there is no verifier {name!r}; choose one of {', '.join(NAMES)}, or your own as file.py:attribute.")


@contextmanager
def open_judge(config: TeacherConfig | None, lake: Lake) -> Iterator[Judge]:
    """Open the calibrated judge over the configured model. Raise RequestError if it fails."""
    with closing(HomeJudges(config, lake)) as judges:
        yield judges.of_answers


def validate_rows(kind: str, path: Path) -> Validation:
    """Validate a verifier on the rows `{id, gold, options?, question?}` of a file. A broken row counts as unjudged."""
    subjects: list[Subject] = []
    broken = Tally()
    for number, row in enumerate(read_rows(path), start=1):
        try:
            subjects.append(_subject(row))
        except ValueError as error:
            broken.note(True, f"row {number}: {error}")
    return _together([validate(kind_of(kind), subjects), Validation(Tally(), {}, broken)])


def validate_home(home: Path, suite: str | None, kind: str | None) -> Validation:
    """Validate a home's tasks, or those of a split, with `kind` or each task's own verifier. Raise RequestError for no tasks or no such
    kind.
    """
    config = Home(home).load() if Home(home).config_file.is_file() else None
    verifiers = verifiers_of("qa_em") if config is None else config.evaluation.open_verifiers()
    with open_lake(home) as lake:
        tasks = lake.tasks(split=suite)
    if not tasks:
        where = f" in the split {suite!r}" if suite else ""
        raise RequestError(f"{home} has no tasks{where} yet: {bringing_tasks(home, suite or 'train')}.")
    solvable = [task for task in tasks if task.environment in OVER_SNAPSHOTS and kind is None]
    others = [task for task in tasks if task.environment not in OVER_SNAPSHOTS or kind is not None]
    return _together([_validate_solvable(solvable, config, home), *([validate_tasks(others, verifiers, kind)] if others else [])])


def _validate_solvable(tasks: Sequence[Task], config: FlywheelConfig | None, home: Path) -> Validation:
    """Validate tasks over snapshots: their reference solution must pass, and nothing must fail."""
    found = Validation(Tally(), {}, Tally())
    for task in tasks:
        try:
            why = why_not_solvable(task, config, home)
        except SandboxFault as fault:
            found.unjudged.note(True, f"{task.key}: {fault}")
            continue
        found.unjudged.note(False, "")
        found.gold.note(why is not None, f"{task.key}: not admitted: {why}")
    return found


def validate_tasks(tasks: Sequence[Task], verifiers: Verifiers, kind: str | None = None) -> Validation:
    """Validate tasks with `kind`, or each with the one of `verifiers` that it names, else the default."""
    if kind is not None:
        return _validate_group(kind, _judging(kind), tasks)
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(verifiers.of(task).name, []).append(task)
    return _together([_validate_group(name, grader_of(verifiers.of(group[0])), group) for name, group in groups.items()])


def kind_of(name: str) -> Grader:
    """Return the grader of a name. Raise RequestError, which lists the known names, if it judges no answers."""
    grader = _judging(name) if name in GRADERS or ":" in name else None
    if grader is None:
        raise RequestError(f"{name!r} is not a verifier of answers: choose one of {', '.join(GRADERS)}, or file.py:attribute of a Grader.")
    return grader


def _judging(name: str) -> Grader | None:
    """Return the grader of a verifier, or None if it does not look at answers. Raise RequestError for an unknown name."""
    return grader_of(find_verifier(name))


def _validate_group(name: str, grader: Grader | None, tasks: Sequence[Task]) -> Validation:
    """Validate the tasks of one verifier. Without a grader all of them count as unjudged."""
    if grader is None:
        unjudged = Tally()
        for task in tasks:
            unjudged.note(True, f"{task.key}: the verifier {name} does not look at answers")
        return Validation(Tally(), {}, unjudged)
    return validate(grader, [subject_of(task, grader) for task in tasks])


def _subject(row: Any) -> Subject:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, Mapping) or "gold" not in row:
        raise ValueError("it is not an object with a gold")
    gold, options, question = row["gold"], row.get("options") or {}, row.get("question") or ""
    golds = [
        str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for item in (gold if isinstance(gold, list) else [gold])
    ]
    if not all(
        isinstance(item, str) or (isinstance(item, list) and item and all(isinstance(name, str) for name in item)) for item in golds
    ):
        raise ValueError("gold contains a value that is not text")
    if not isinstance(options, dict) or not isinstance(question, str) or not golds:
        raise ValueError("options, question or gold cannot be read")
    return Subject(str(row.get("id")), golds, options, question)


def _together(found: list[Validation]) -> Validation:
    gold, unjudged = Tally(), Tally()
    negatives: dict[str, Tally] = {}
    for one in found:
        gold, unjudged = _sum(gold, one.gold), _sum(unjudged, one.unjudged)
        for sort, tally in one.negatives.items():
            negatives[sort] = _sum(negatives.get(sort, Tally()), tally)
    return Validation(gold, negatives, unjudged)


def _sum(one: Tally, other: Tally) -> Tally:
    return Tally(one.tried + other.tried, one.mistaken + other.mistaken, one.examples + other.examples)


log = logging.getLogger("flywheel")

BATCH = 1_000
"""Number of tasks whose trajectories are judged and committed together; groups are never split."""

_EARLIER = f"""
SELECT trajectory_id, verifier, version FROM scores
WHERE trajectory_id IN (SELECT unnest(?)) AND NOT starts_with(verifier, '{UNSUPERVISED}')
QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY recorded DESC, rowid) > 1
"""
"""Superseded scores, in the order of the view `outcomes`."""

Chosen = Verifier | BatchVerifier | Verifiers
"""A verifier for everything, or verifiers from which each task chooses."""


@dataclass(frozen=True, slots=True)
class Reverified:
    """Number of selected trajectories, of new verdicts, and of changed outcomes.

    `taken_up` counts earlier verdicts of this version that a later verifier had superseded and that count again.
    """

    chosen: int
    judged: int
    success: int
    failure: int
    invalid: int
    taken_up: int
    changed: int


def reverify_home(home: Path, where: str, name: str | None, failed_only: bool) -> Reverified:
    """Re-verify a home with the named verifier, or the home's own; an imported home without a configuration uses `qa_em`.

    Raises:
        RequestError: No lake, an unknown verifier, or a judge that fails its calibration.
    """
    open_lake(home).close()
    settings = Home(home).load().evaluation if Home(home).config_file.is_file() else EvaluationConfig()
    with Lake(home) as lake:
        if name is None:
            with closing(HomeJudges(settings.judge, lake)) as judges:
                judge = judges.of_answers if settings.verifier == JUDGE or _named(lake, settings, where) else None
                return reverify(lake, settings.open_verifiers(judge=judge), where, failed_only)
        with open_verifier(name, settings, lake) as verifier:
            return reverify(lake, verifier, where, failed_only)


def reverify(lake: Lake, verifier: Chosen, where: str = "TRUE", failed_only: bool = False) -> Reverified:
    """Score the trajectories that match the SQL condition `where` on `trajectories`, in batches.

    Args:
        failed_only: Only re-judge what this version judged invalid, replacing those scores.

    Raises:
        RequestError: The condition is not SQL over the columns of `trajectories`.
    """
    verdicts: Counter[Outcome] = Counter()
    chosen = taken_up = changed = 0
    for attempts in _batches(lake, where):
        chosen += len(attempts)
        stored = _stored(lake, verifier, attempts)
        wanted = _wanted(verifier, attempts, stored, failed_only)
        scores = [score for one, group in _by_verifier(verifier, wanted) for score in verify_all(one, group)]
        overruled = [] if failed_only else _overruled(lake, stored)
        before = _outcomes(lake, [score.trajectory_id for score in (*scores, *overruled)])
        (lake.replace if failed_only or _unsupervised(verifier) else lake.add)(scores)
        lake.replace(overruled)
        taken_up += len(overruled)
        after = _outcomes(lake, list(before))
        changed += sum(before[key] != after[key] for key in before)
        verdicts.update(score.verdict for score in scores)
    counts = {outcome.value: verdicts[outcome] for outcome in Outcome}
    return Reverified(chosen=chosen, judged=verdicts.total(), taken_up=taken_up, changed=changed, **counts)


def _batches(lake: Lake, where: str) -> Iterator[list[Attempt]]:
    # The closing parenthesis is on its own line, out of reach of a comment in the condition.
    rows = lake.query(f"SELECT id, task_key FROM trajectories WHERE ({where}\n) ORDER BY task_key, id").to_pylist()
    ids: dict[str, list[str]] = {}
    for row in rows:
        ids.setdefault(row["task_key"], []).append(row["id"])
    keys = list(ids)
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        tasks = {task.key: task for task in lake.read(Task, "key IN (SELECT unnest(?))", [part])}
        found = lake.trajectories("id IN (SELECT unnest(?))", [[one for key in part for one in ids[key]]])
        yield [(tasks.get(one.task_key) or Task(one.task_key, "", "", ()), one) for one in found]


def _by_verifier(verifier: Chosen, attempts: list[Attempt]) -> list[tuple[Verifier | BatchVerifier, list[Attempt]]]:
    if not isinstance(verifier, Verifiers):
        return [(verifier, attempts)]
    groups: dict[str, list[Attempt]] = {}
    for task, trajectory in attempts:
        groups.setdefault(verifier.of(task).name, []).append((task, trajectory))
    return [(verifier.of(group[0][0]), group) for group in groups.values()]


def _stored(lake: Lake, verifier: Chosen, attempts: list[Attempt]) -> dict[str, Score]:
    """Return this version's scores by trajectory; empty for unsupervised verifiers, whose scores depend on other answers."""
    if _unsupervised(verifier):
        return {}
    judges = {trajectory.id: _judge_of(verifier, task) for task, trajectory in attempts}
    scores = lake.scores("trajectory_id IN (SELECT unnest(?))", [list(judges)])
    return {
        score.trajectory_id: score
        for score in scores
        if (judge := judges[score.trajectory_id]) is not None and (judge.name, judge.version) == (score.verifier, score.version)
    }


def _judge_of(verifier: Chosen, task: Task) -> Verifier | BatchVerifier | None:
    """Return a task's verifier, or None if the task names one that is missing."""
    if not isinstance(verifier, Verifiers):
        return verifier
    return None if verifier.lack(task) else verifier.of(task)


def _wanted(verifier: Chosen, attempts: list[Attempt], stored: Mapping[str, Score], failed_only: bool) -> list[Attempt]:
    """Return the attempts that this version has not judged, or only those it could not judge; for unsupervised verifiers always all."""
    if _unsupervised(verifier):
        return attempts
    wanted, left_out, demonstrations = [], set[str](), 0
    for task, trajectory in attempts:
        judge = _judge_of(verifier, task)
        if judge is None:
            left_out.add(str(task.provenance["verifier"]))
            continue
        if _is_demonstration(task, trajectory, judge):
            demonstrations += 1
            continue
        score = stored.get(trajectory.id)
        if (score is not None and score.verdict is Outcome.INVALID) if failed_only else score is None:
            wanted.append((task, trajectory))
    if demonstrations:
        log.warning("%d demonstrations stay without a verdict: their tasks have no accepted answer to compare with", demonstrations)
    for name in sorted(left_out):
        log.warning(
            "trajectories of the verifier %s keep their verdicts: list it under evaluation.verifiers (evaluation.judge), or set --verifier",
            name,
        )
    return wanted


def _is_demonstration(task: Task, trajectory: Trajectory, judge: Verifier | BatchVerifier) -> bool:
    unjudged = trajectory.stage == "import" and trajectory.outcome is None
    return unjudged and not task.answers and grader_of(cast(Verifier, judge)) is not None


def _overruled(lake: Lake, stored: Mapping[str, Score]) -> list[Score]:
    earlier = {tuple(row.values()) for row in lake.query(_EARLIER, [list(stored)]).to_pylist()}
    return [score for score in stored.values() if (score.trajectory_id, score.verifier, score.version) in earlier]


def _named(lake: Lake, settings: EvaluationConfig, where: str) -> bool:
    sql = f"SELECT task_key FROM trajectories WHERE ({where}\n)"
    named = f"SELECT count(*) AS n FROM tasks WHERE provenance->>'verifier' = '{JUDGE}' AND key IN ({sql})"
    return settings.judge is not None and lake.query(named).to_pylist()[0]["n"] > 0


def _unsupervised(verifier: Chosen) -> bool:
    return not isinstance(verifier, Verifiers) and verifier.name.startswith(UNSUPERVISED)


def _outcomes(lake: Lake, ids: list[str]) -> dict[str, str | None]:
    rows = lake.query("SELECT trajectory_id, outcome FROM outcomes WHERE trajectory_id IN (SELECT unnest(?))", [ids]).to_pylist()
    return {row["trajectory_id"]: row["outcome"] for row in rows}
