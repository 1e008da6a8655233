"""Bugs planted in packages, one package per batch, as repository tasks whose snapshots are below the home."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from eval.sandbox.sandbox import SandboxConfig, require_isolation
from flows.stages.synthesis.batches import Batch, Guard, Made, Work
from synth.bugs.config import STAGE, BugsConfig
from synth.bugs.packages import read_package
from synth.bugs.tasks import plant_bugs
from warehouse.digests import seed_from


def bugs(work: Work, guard: Guard) -> Iterator[Batch]:
    config = work.settings.bugs
    if config is None:
        return
    require_isolation(SandboxConfig(), "synth.bugs")
    for place, source in enumerate(config.packages):
        yield Batch(STAGE, place, partial(_plant, work, guard, config, source))


def _plant(work: Work, guard: Guard, config: BugsConfig, source: str) -> Made:
    package = read_package(source)
    made = plant_bugs(package, config, seed_from(work.seed(STAGE), package.name), work.context.home.repositories)
    stored = work.keys()
    kept, met = guard.index.clear_tasks([task for task in made.tasks if task.key not in stored])
    work.count(tried=made.tried, noticed=len(made.tasks))
    return kept, [*made.failures, *met]
