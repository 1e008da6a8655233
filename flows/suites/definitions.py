"""One definition of a suite in a home: figures of two under one name would mix."""

from __future__ import annotations

from collections.abc import Mapping

from eval.suite_tasks import SUITE
from flows.suites.config import SuiteConfig
from warehouse import Lake
from warehouse.errors import RequestError


def check_same(lake: Lake, suite: SuiteConfig) -> None:
    """Raises RequestError where the lake has run a suite of this name with other settings: their figures would mix."""
    wanted = suite.model_dump(mode="json")
    for run in lake.runs("stage = 'eval'"):
        stored = run.config.get(SUITE)
        if isinstance(stored, Mapping) and stored.get("name") == suite.name and stored != wanted:
            differing = ", ".join(sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key)))
            raise RequestError(
                f"{lake.place.home} has run a suite {suite.name} with other settings ({differing} differ): "
                f"give this one another name with --set name=NAME."
            )
