"""Judging stored trajectories again: nothing is generated, and scores of other verifiers and versions stay where they are.

A score's key is the trajectory, the verifier and its version. What this version has judged is not judged again, save what it could not
judge where that is asked for. The latest score is a trajectory's outcome in every view, so a new verdict counts at once, and a verdict that
stands already counts again where another one has been asked for since; the reward that was trained on stays in the trajectory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from eval.graders.base import UNSUPERVISED, Attempt, BatchVerifier, Verifier, verify_all
from eval.graders.choice import JUDGE, Verifiers, grader_of
from flows.evaluation_config import EvaluationConfig
from flows.home import Home
from flows.judges import HomeJudges
from flows.lakes import open_lake
from flows.verifiers import open_verifier
from warehouse import Lake, Outcome, Score, Task, Trajectory

log = logging.getLogger("flywheel")

BATCH = 1_000
"""Tasks whose trajectories are judged and committed together; groups are never divided."""

_EARLIER = f"""
SELECT trajectory_id, verifier, version FROM scores
WHERE trajectory_id IN (SELECT unnest(?)) AND NOT starts_with(verifier, '{UNSUPERVISED}')
QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY recorded DESC, rowid) > 1
"""
"""The scores that decide nothing, because a later one does; in the order of the view `outcomes`."""

Chosen = Verifier | BatchVerifier | Verifiers
"""A verifier of all, or those that each task chooses from."""


@dataclass(frozen=True, slots=True)
class Reverified:
    """How many trajectories met the condition, the verdicts on those judged now, and how many outcomes changed.

    `taken_up` are verdicts that this version had given before, that a later one had overruled, and that count again.
    """

    chosen: int
    judged: int
    success: int
    failure: int
    invalid: int
    taken_up: int
    changed: int


def reverify_home(home: Path, where: str, name: str | None, failed_only: bool) -> Reverified:
    """The same for a home: by the verifier of that name or, without one, by the home's own. An imported home without one has `qa_em`.

    Raises:
        RequestError: there is no lake, no such verifier, or a judge that is not fit to judge.
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
    """Score the trajectories that meet the SQL condition `where` on `trajectories`, batch by batch.

    Args:
        failed_only: judge again only what this very version called invalid, in the place of those scores.

    Raises:
        RequestError: the condition is not SQL over the columns of `trajectories`.
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
    """The chosen trajectories with their tasks, those of one task together."""
    # The parenthesis closes on a line of its own, which a comment at the end of the condition does not reach.
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
    """The attempts by who judges them."""
    if not isinstance(verifier, Verifiers):
        return [(verifier, attempts)]
    groups: dict[str, list[Attempt]] = {}
    for task, trajectory in attempts:
        groups.setdefault(verifier.of(task).name, []).append((task, trajectory))
    return [(verifier.of(group[0][0]), group) for group in groups.values()]


def _stored(lake: Lake, verifier: Chosen, attempts: list[Attempt]) -> dict[str, Score]:
    """What this very version has judged of them, by trajectory; nothing where what others answered is what is scored."""
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
    """Who judges the attempts at a task; None where the task names somebody who is not there."""
    if not isinstance(verifier, Verifiers):
        return verifier
    return None if verifier.lack(task) else verifier.of(task)


def _wanted(verifier: Chosen, attempts: list[Attempt], stored: Mapping[str, Score], failed_only: bool) -> list[Attempt]:
    """Those not judged by this version, or only those that it could not judge; always all where what others answered is what is scored."""
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
            "what names the verifier %s is left as it was judged: list it under evaluation.verifiers (evaluation.judge), or name it with "
            "--verifier",
            name,
        )
    return wanted


def _is_demonstration(task: Task, trajectory: Trajectory, judge: Verifier | BatchVerifier) -> bool:
    """Whether an imported run came without a verdict, and its task without the answers that this verifier compares with."""
    unjudged = trajectory.stage == "import" and trajectory.outcome is None
    return unjudged and not task.answers and grader_of(cast(Verifier, judge)) is not None


def _overruled(lake: Lake, stored: Mapping[str, Score]) -> list[Score]:
    """The scores of these that are not the latest of their trajectories."""
    earlier = {tuple(row.values()) for row in lake.query(_EARLIER, [list(stored)]).to_pylist()}
    return [score for score in stored.values() if (score.trajectory_id, score.verifier, score.version) in earlier]


def _named(lake: Lake, settings: EvaluationConfig, where: str) -> bool:
    """Whether a chosen trajectory's task names the judge, and there is a model for it."""
    sql = f"SELECT task_key FROM trajectories WHERE ({where}\n)"
    named = f"SELECT count(*) AS n FROM tasks WHERE provenance->>'verifier' = '{JUDGE}' AND key IN ({sql})"
    return settings.judge is not None and lake.query(named).to_pylist()[0]["n"] > 0


def _unsupervised(verifier: Chosen) -> bool:
    return not isinstance(verifier, Verifiers) and verifier.name.startswith(UNSUPERVISED)


def _outcomes(lake: Lake, ids: list[str]) -> dict[str, str | None]:
    rows = lake.query("SELECT trajectory_id, outcome FROM outcomes WHERE trajectory_id IN (SELECT unnest(?))", [ids]).to_pylist()
    return {row["trajectory_id"]: row["outcome"] for row in rows}
