"""The learner as a group of workers that share each step: a `LocalLearner` in each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from rl.engines.weight_sync import WeightSyncHandle
from rl.learner.base import Encoding, EngineWeights, Scores, Update
from rl.ray_runtime import RayConfig
from rl.training.batches import Row
from rl.training.config import ReinforceConfig
from rl.training.workers import GroupWorker, WorkerGroup

SYNC = ("begin", "step", "record")
"""What the main worker asks of the engines in the middle of `publish`: the fields of `WeightSyncHandle`."""


class LearnerGroup:
    """See `rl.learner.base.Learner`."""

    def __init__(
        self,
        policy: Path,
        output: Path,
        config: ReinforceConfig,
        seed: int,
        engines: EngineWeights,
        weight_sync: WeightSyncHandle | None = None,
        ray_config: RayConfig | None = None,
    ) -> None:
        """Start the workers and load the policy in each. Raises as `WorkerGroup`."""
        functions = {} if weight_sync is None else {name: getattr(weight_sync, name) for name in SYNC}
        self._group = WorkerGroup(_LearnerWorker, config.learner, ray_config, functions)
        self._whole = True
        try:
            self.encoding: Encoding = self._group.call("open", policy.resolve(), output.resolve(), config, seed, engines, bool(functions))
        except BaseException:
            self._group.close()
            raise

    def score(self, rows: Sequence[Row]) -> Scores:
        """See `Learner.score`."""
        scores: Scores = self._call("score", ray.put(rows))
        return scores

    def update(self, rows: Sequence[Row], step: int) -> Update:
        """See `Learner.update`."""
        update: Update = self._call("update", ray.put(rows), step)
        return update

    def publish(self, version: int, record: bool = False) -> Path | None:
        """See `Learner.publish`."""
        folder: Path | None = self._call("publish", version, record)
        return folder

    def save(self, step: int, state: dict[str, Any]) -> None:
        """See `Learner.save`."""
        self._call("save", step, state)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """See `Learner.load`."""
        found: tuple[int, dict[str, Any]] | None = self._call("load")
        return found

    def write(self, folder: Path) -> None:
        """See `Learner.write`."""
        self._call("write", folder.resolve())

    def close(self) -> None:
        """See `Learner.close`; after a fault the workers are ended at once, for some may wait for one that is gone."""
        try:
            if self._whole:
                self._call("close")
        finally:
            self._group.close()

    def _call(self, verb: str, *arguments: Any) -> Any:
        self._whole = False
        answer = self._group.call("do", verb, *arguments)
        self._whole = True
        return answer


class _LearnerWorker(GroupWorker):
    """A `LocalLearner` in a process of the group."""

    def open(self, policy: Path, output: Path, config: ReinforceConfig, seed: int, engines: EngineWeights, sends: bool) -> Encoding:
        from rl.learner.local import load_learner

        sync = WeightSyncHandle(*map(self.starter.function, SYNC)) if sends and self.starter.is_main else None
        self._learner = load_learner(policy, output, config, seed, engines, sync)
        return self._learner.encoding

    def do(self, verb: str, *arguments: Any) -> Any:
        return getattr(self._learner, verb)(*arguments)
