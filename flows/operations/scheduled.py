"""The flows that run by themselves: a turn, synthesis ahead, the champion evaluated again, upkeep of the lake.

Each runs in a process of its own that Prefect starts, and what that process starts ends with it: where the run is cancelled, engines and
Ray have a few seconds to end by themselves, and are ended otherwise. One that finds the home at work waits, or passes by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from prefect import flow, runtime, tags
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from pydantic import NonNegativeFloat, PositiveFloat

from flows.environment import quiet_libraries
from flows.guardian import start_guardian, stay
from flows.home import Home
from flows.lakes import open_to_keep
from flows.locking import HomeBusy
from flows.operations.config import BudgetConfig, Happening
from flows.operations.events import Event, tell
from flows.plan import completed, next_turn
from flows.run_stage import open_home
from flows.stage_flows import evaluation_flow, synthesis_flow
from flows.wheel import wheel_flow
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

HOURS = 3600.0


def tell_failed(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect's hook for a scheduled run that failed after its last attempt, or whose process died."""
    _tell(Happening.failed_schedule, flow, flow_run, f"{flow.name} failed: {state.message or state.name}")


def tell_cancelled(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect's hook for a scheduled run that somebody cancelled."""
    _tell(Happening.stopped_run, flow, flow_run, f"{flow.name} was cancelled")


def _tell(happening: Happening, flow: Flow[..., Any], run: FlowRun, sentence: str) -> None:
    """Tell whom the home's configuration names; a home that is none has nobody to tell."""
    home = Path(run.parameters["home"])
    event = Event(happening, home, run.name, sentence, {"flow": flow.name, "flow_run": str(run.id), "parameters": run.parameters})
    try:
        config = Home(home).load().events
    except RequestError as error:
        log.warning("nobody is told of «%s»: %s", sentence, error)
        return
    with ExitStack() as stack:
        try:
            lake = stack.enter_context(open_to_keep(home))
        except (RequestError, duckdb.Error) as error:
            log.warning("what cannot be told will not be recorded: %s", error)
            lake = None
        tell(event, config, lake)


HOOKS: dict[str, Any] = {"on_failure": [tell_failed], "on_crashed": [tell_failed], "on_cancellation": [tell_cancelled]}


@flow(name="flywheel-turn", description="The turn of the wheel that comes next, or the one that was begun.", **HOOKS)
def turn(home: Path, budget: BudgetConfig | None = None, patience_hours: NonNegativeFloat = 12.0) -> int:
    """Turn the wheel to its next gate, within `budget` (the home's own without it); returns the number of the turn.

    Another process at work in the home is waited for, `patience_hours` at most.
    """
    with unattended():
        number = next_turn(completed(Home(home)))
        wheel_flow(home=home, turns=number, budget=budget, patience_seconds=patience_hours * HOURS)
        return number


@flow(name="flywheel-synthesis", description="As much of the next turn's synthesis as the allowance permits.", **HOOKS)
def synthesis(home: Path, allowance: BudgetConfig | None = None) -> str:
    """Make questions and examples of the turn that comes next, for a quarter of an hour unless `allowance` says otherwise.

    Where another process is at work in the home there is nothing to do: it makes them itself.
    """
    with unattended():
        try:
            synthesis_flow(home=home, turn=next_turn(completed(Home(home))), allowance=allowance or BudgetConfig(hours=0.25))
        except HomeBusy as busy:
            log.info("passed by: %s", busy)
            return "passed by"
        return "done"


@flow(name="flywheel-evaluation", description="The promoted policy on every suite once more.", **HOOKS)
def evaluation(home: Path, patience_hours: NonNegativeFloat = 12.0) -> str:
    """Evaluate the champion on every suite under the name of the week, and compare with the first time; returns its id, or why not."""
    with unattended(), open_home(home, patience_hours * HOURS) as shop:
        champion = shop.champion()
        if champion is None:
            log.info("nothing to do: no policy is promoted yet")
            return "no champion"
        for suite in shop.config.evaluation.suites:
            evaluation_flow(home=home, policy=champion.id, suite=suite, occasion=week_of(runtime.flow_run.scheduled_start_time))
        return champion.id


@flow(name="flywheel-compaction", description="Small files of the lake merged, old snapshots forgotten.", **HOOKS)
def compaction(home: Path, retain_days: PositiveFloat | None = None) -> dict[str, float]:
    """Merge the lake's small files, beside whoever reads and writes; with `retain_days`, forget older snapshots first."""
    from warehouse.maintenance import compact, retain

    with unattended(), open_to_keep(home) as lake:
        forgotten = retain(lake, timedelta(days=retain_days)) if retain_days is not None else 0
        compact(lake)
        sizes = "SELECT sum(file_count)::BIGINT AS files, sum(file_size_bytes)::DOUBLE / 1e6 AS megabytes FROM ducklake_table_info('lake')"
        (figures,) = lake.query(sizes).to_pylist()
    figures = {**figures, "snapshots_forgotten": forgotten}
    headline = f"**{figures['files']} files, {figures['megabytes']:.1f} MB** in `{home}`"
    create_table_artifact([figures], key="compaction", description=headline)
    return figures


def week_of(moment: datetime) -> str:
    """The ISO week of a moment, such as 2026-W47."""
    year, week, _ = moment.isocalendar()
    return f"{year}-W{week:02d}"


@contextmanager
def unattended() -> Iterator[None]:
    """What a process needs that nobody watches: quiet libraries, its lines in Prefect, and an end to all that it started."""
    quiet_libraries()
    log.setLevel(logging.INFO)
    start_guardian()
    try:
        with tags("flywheel"):
            yield
    finally:
        stay()
