"""A stage's work as a Prefect task: tried again with growing pauses after a fault of the machine, and after nothing else.

A wrong request stays wrong, a broken sign of health wants somebody to look, and a bug does the same again. What a disk, a network, a
database, Ray or an engine did may be over in a moment: then the stage goes on from what it had stored, with new engines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import duckdb
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL
from prefect.tasks import exponential_backoff

from flows.operations.config import AttemptConfig
from flows.runtime import exit_after
from rl.engines.base import EngineFault
from rl.worker_death import WorkerDied

log = logging.getLogger("flywheel")

T = TypeVar("T")

PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the operating system that stay until somebody does something about them."""
FAULTS = (OSError, EngineFault, WorkerDied, duckdb.IOException, duckdb.HTTPException, duckdb.TransactionException)
REMOTE = {"ray", "httpx", "httpcore"}
"""Packages whose errors are faults of what is at the other end; matched by name, for their import is slow."""


def is_fault(error: BaseException) -> bool:
    """Whether the same work may well succeed when it is tried again."""
    if isinstance(error, PATHS):
        return False
    if type(error) is duckdb.Error:  # how DuckLake passes on what its catalogue's database said
        return True
    return isinstance(error, FAULTS) or any(kind.__module__.split(".")[0] in REMOTE for kind in type(error).__mro__)


def attempt(name: str, work: Callable[[], T], config: AttemptConfig, recover: Callable[[], None] = lambda: None) -> T:
    """Do `work`, and again after a fault: `recover` clears away what the fault left. Raises what the last try raised."""

    def tried() -> T:
        try:
            return work()
        except TerminationSignal:
            exit_after()
            raise
        except Exception as error:
            if is_fault(error):
                log.warning("%s: %s: %s", name, type(error).__name__, str(error)[:300])
                recover()
            raise

    served = PREFECT_API_URL.value() is not None
    tags = {"flywheel", *TagsContext.get().current_tags} if served else set()
    with TagsContext(current_tags=set()):
        return _task(name, tried, config, tags)()


def _task(name: str, work: Callable[[], T], config: AttemptConfig, tags: Iterable[str]) -> Task[[], T]:
    """A task asks the server about the limits of all its tags, which takes two seconds; on a temporary server nobody has set any."""
    return Task(
        work,
        name=name,
        task_run_name=name,
        tags=sorted(tags),
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=config.retries,
        retry_delay_seconds=exponential_backoff(config.first_pause_seconds),
        retry_condition_fn=_worth_another,
        timeout_seconds=None if config.timeout_hours is None else config.timeout_hours * 3600,
    )


def _worth_another(task: Task[..., Any], run: Any, state: State[Any]) -> bool:
    return isinstance(state.data, BaseException) and is_fault(state.data)
