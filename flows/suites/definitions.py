"""One definition of a suite in a home: figures of two under one name would mix."""

from __future__ import annotations

from collections.abc import Mapping

from eval.suite_tasks import SUITE
from flows.plan import evaluation_id
from flows.suites.config import SuiteConfig
from flows.suites.reading import policies_on
from warehouse import Lake
from warehouse.errors import RequestError


def check_same(lake: Lake, suite: SuiteConfig) -> None:
    """Raises RequestError where a policy has attempts at a suite of this name with other settings."""
    wanted = suite.model_dump(mode="json")
    attempted = {evaluation_id(policy, suite.name) for policy in policies_on(lake, suite.name)}
    for run in lake.runs("stage = 'eval'") if attempted else ():
        stored = run.config.get(SUITE)
        if run.id in attempted and isinstance(stored, Mapping) and stored != wanted:
            differing = ", ".join(sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key)))
            raise RequestError(
                f"{lake.place.home} has run a suite {suite.name} with other settings ({differing} differ): "
                f"give this one another name with --set name=NAME."
            )
