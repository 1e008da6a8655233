"""The trajectories of an RL step: drawn by the curriculum, rolled out, judged, rewarded and filtered; step by step, or one step ahead.

A step that was interrupted takes what the lake has of it and samples the rest. Where rollouts run one step ahead of the learner, all of a
step's tokens are of the weights before the last update: new ones are published when the step's rollouts have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from flows.stages.making import Begun, Making, groups_of
from rl.learning.config import RewardConfig
from rl.learning.curriculum import Curriculum
from rl.learning.filters import Collected, collect_groups
from rl.learning.replay import Group, ReplayBuffer
from rl.rewards.composing import find_parts, weights_of
from rl.rewards.part import Grounds
from warehouse import Lake, Task, Trajectory
from warehouse.errors import RequestError


@dataclass(slots=True)
class Sampling:
    """Samples the steps of one RL run; `_begun` is the next one's first round, where it has been begun."""

    making: Making
    curriculum: Curriculum
    buffer: ReplayBuffer
    ahead: bool
    _drawn: list[Task] = field(default_factory=list)
    _reused: list[Group] = field(default_factory=list)
    _begun: Begun | None = None

    def collect(self, step: int) -> Collected:
        """The trajectories of `step`, from as many rounds of sampling as the filters ask for; the curriculum is told of all of them."""
        if self._begun is None:
            self._open(step)
        collected = collect_groups(lambda count: self._sample(step, count), self._wanted, self.making.config.filters)
        self.making.record_drops(step, collected.drops)
        self.curriculum.observe(step, collected.trajectories)
        collected = self._with_reused(step, collected)
        if self.ahead and step < self.making.config.steps:
            self._open(step + 1)
        return collected

    def before_update(self) -> None:
        """What runs ahead ends under the weights that it was begun with."""
        if self._begun is not None:
            self._begun.settle()

    def close(self) -> None:
        """Stop what runs ahead."""
        if self._begun is not None:
            self._begun.cancel()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must find; what runs ahead is in the lake by then."""
        self.before_update()
        return {"replay": self.buffer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.buffer.load_state_dict(state["replay"])

    @property
    def _wanted(self) -> int:
        return self.making.config.tasks_per_step - len(self._reused)

    def _open(self, step: int) -> None:
        """Begin the first round of `step`."""
        self._drawn, self._reused = [], self.buffer.past(step)
        self._begun = self._begin(step, self._wanted)

    def _sample(self, step: int, count: int) -> list[Trajectory]:
        """The groups of `count` tasks that the step has not drawn yet."""
        begun, self._begun = self._begun or self._begin(step, count), None
        return begun.trajectories()

    def _begin(self, step: int, count: int) -> Begun:
        without = {task.key for task in self._drawn} | {group.task_key for group in self._reused}
        tasks, horizon = self.curriculum.draw(step, count, without), self.curriculum.horizon(step)
        self._drawn += tasks
        return Begun(self.making, [request for task in tasks for request in self.making.group(task, step, horizon)])

    def _with_reused(self, step: int, collected: Collected) -> Collected:
        """The step with what it learns from once more; what it learns from now can be learnt from again."""
        reused = tuple(trajectory for group in self._reused for trajectory in group.trajectories)
        figures = self.curriculum.metrics()
        if self.making.config.replay.reuse:
            self.making.record_batch(step, collected.kept, reused)
            self.buffer.expire(step - 1)
            self.buffer.keep(groups_of(collected.kept))
            figures |= self.buffer.metrics()
        environments = self.making.environments_of((*collected.trajectories, *reused))
        return replace(collected, reused=reused, environments=environments, measured=figures)


def grounds_of(lake: Lake, config: RewardConfig, tasks: Sequence[Task]) -> Grounds:
    """What the parts of the reward look at.

    Raises:
        RequestError: where a part does not exist, or asks for documents that a task does not tell of.
    """
    find_parts(config)
    return Grounds(config, evidence_of(lake, tasks) if "evidence" in weights_of(config) else {})


def evidence_of(lake: Lake, tasks: Sequence[Task]) -> dict[str, frozenset[str]]:
    """The titles of the documents that state the facts along each task's path.

    Raises:
        RequestError: where a task has no path, or no document states its facts.
    """
    titles = {document.id: document.title for document in lake.documents()}
    stating: dict[frozenset[str], list[str]] = {}
    for fact in lake.facts():
        stating.setdefault(frozenset((fact.subject, fact.object)), []).extend(fact.documents)
    return {task.key: _evidence(task, stating, titles) for task in tasks}


def _evidence(task: Task, stating: dict[frozenset[str], list[str]], titles: dict[str, str]) -> frozenset[str]:
    path = [str(entity) for entity in task.provenance.get("path", ())]
    documents = [document for pair in pairwise(path) for document in stating.get(frozenset(pair), ())]
    found = frozenset(titles[document] for document in documents if document in titles)
    if not found:
        raise RequestError(f"rl.rewards.parts.evidence needs the documents that prove a task, and task {task.key} names none: take it out.")
    return found
