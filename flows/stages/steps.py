"""The trajectories of an RL step: drawn by the curriculum, rolled out, judged, rewarded, filtered, and all of it stored.

Ids follow from run, step, task and sample, so a step that was interrupted takes what the lake has of it and samples the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from flows.config import ReinforceSection
from flows.runs import StageRun
from flows.stages.evaluation import score
from flows.workshop import Workshop
from rl.learning.config import RewardConfig
from rl.learning.curriculum import Curriculum
from rl.learning.filters import Collected, Drop, collect_groups
from rl.learning.signs import Breach
from rl.rewards.composing import compose, find_parts, weights_of
from rl.rewards.part import Grounds
from rl.rollouts.rollout import RolloutRequest
from warehouse import Failure, Lake, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

STAGE = "rl"


@dataclass(slots=True)
class Sampling:
    """Samples the steps of one RL run."""

    shop: Workshop
    run: StageRun
    policy: str
    config: ReinforceSection
    curriculum: Curriculum
    grounds: Grounds
    _drawn: list[Task] = field(default_factory=list)

    def collect(self, step: int) -> Collected:
        """The trajectories of `step`, from as many rounds of sampling as the filters ask for; the curriculum is told of all of them."""
        self._drawn = []
        collected = collect_groups(lambda count: self._sample(step, count), self.config.tasks_per_step, self.config.filters)
        self.shop.lake.add([self._failure(step, drop) for drop in collected.drops])
        self.curriculum.observe(step, collected.trajectories)
        return replace(collected, environments={task.key: task.environment for task in self._drawn})

    def record_breach(self, breach: Breach) -> None:
        """Keep that a sign of health was broken, and say so."""
        log.warning("%s  %s: %s", self.run.id, breach.limit.then, breach)
        limit = breach.limit.model_dump(mode="json", exclude_none=True)
        item = {"run": self.run.id, "step": breach.step, "since": breach.since, "value": repr(breach.value), "limit": limit}
        self.shop.lake.add([Failure(STAGE, f"sign_{breach.limit.then}", str(breach), item)])

    def _sample(self, step: int, count: int) -> list[Trajectory]:
        """The groups of `count` tasks that the step has not drawn yet."""
        tasks = self.curriculum.draw(step, count, {task.key for task in self._drawn})
        self._drawn += tasks
        requests = [self._request(task, step, sample) for task in tasks for sample in range(self.config.samples_per_task)]
        stored = {t.id: t for t in self.shop.lake.trajectories("stage = 'rl' AND step = ? AND policy = ?", [step, self.policy])}
        missing = [request for request in requests if request.trajectory_id not in stored]
        if missing:
            stored |= {trajectory.id: trajectory for trajectory in self._roll_out(missing)}
        return [stored[request.trajectory_id] for request in requests]

    def _roll_out(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Trajectories, scores and parts of rewards go into the lake in one commit: a group is there as a whole or not at all."""
        tasks = [request.task for request in requests]
        judged, scores = score(tasks, self.shop.running.rollout(requests), self.shop.config.evaluation.verifier)
        rewarded, parts = compose(list(zip(tasks, judged, strict=True)), self.grounds)
        self.shop.lake.add([*rewarded, *scores, *parts])
        return rewarded

    def _request(self, task: Task, step: int, sample: int) -> RolloutRequest:
        return RolloutRequest(
            trajectory_id=f"{self.run.id}-{step:05d}-{task.key}-{sample}",
            task=task,
            policy=self.policy,
            horizon=self.curriculum.horizon(step),
            seed=seed_from(self.shop.config.seed, self.run.id, step, task.key, sample),
            temperature=1.0,
            stage=STAGE,
            wheel_turn=self.run.run.wheel_turn,
            step=step,
            suite=None,
            sample=sample,
        )

    def _failure(self, step: int, drop: Drop) -> Failure:
        item = {"run": self.run.id, "step": step, "task": drop.task_key, "trajectory": drop.trajectory_id}
        return Failure(STAGE, f"filter_{drop.filter.value}", drop.reason, item)


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
