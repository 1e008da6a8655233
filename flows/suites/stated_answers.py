"""Failures of a policy on a suite that state an accepted answer among other words: a question of format, not of knowledge."""

from __future__ import annotations

from dataclasses import dataclass

from eval.graders.answers import sub_match
from eval.graders.verifiers import asks_for_set
from warehouse import Lake, Task
from warehouse.replies import split_reasoning

_FAILURES = """
SELECT t.task_key, t.answer FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
WHERE t.stage = 'eval' AND t.policy = ? AND t.suite = ? AND o.outcome = 'failure'
"""


@dataclass(frozen=True, slots=True)
class StatedAnswers:
    """How many of the failures state an accepted answer as whole words. A lenient count that changes no verdict."""

    failures: int
    stating: int

    @property
    def advice(self) -> str | None:
        """What to do about them; None where there are none."""
        if not self.stating:
            return None
        return (
            f"{self.stating} of {self.failures} failures state an accepted answer among other words: ask for the answer alone (in the "
            "question, or in the system prompt by rollout.dialects.NAME.system), or have a model judge (suite verifier = judge, "
            "evaluation.judge)"
        )

    def record(self) -> dict[str, int | str | None]:
        """The same as JSON shows it."""
        return {"failures": self.failures, "stating": self.stating, "advice": self.advice}


def read_stated_answers(lake: Lake, policy: str, suite: str) -> StatedAnswers:
    """Count them from the stored answers and the tasks."""
    rows = lake.query(_FAILURES, [policy, suite]).to_pylist()
    keys = list({row["task_key"] for row in rows if row["answer"]})
    tasks = {task.key: task for task in lake.read(Task, "key IN (SELECT unnest(?))", [keys])} if keys else {}
    return StatedAnswers(len(rows), sum(row["task_key"] in tasks and states(tasks[row["task_key"]], row["answer"] or "") for row in rows))


def states(task: Task, answer: str) -> bool:
    """Whether an answer, its reasoning left out, states what is accepted; where all answers are asked for, each of them."""
    said = split_reasoning(answer)[1]
    if asks_for_set(task):
        return bool(task.answers) and all(sub_match(said, [gold]) for gold in task.answers)
    return sub_match(said, task.answers)
