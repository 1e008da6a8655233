"""Running a stage: its attempts, its budget, its row in `runs`, its figures, its events; «nothing to do» for one that is done.

A home has one configuration, so a stage's place in the wheel names its run for good: `t1-cpt`, `t2-rl`, `t1-rl-fixed_first`.
A stage that was killed is still `running` in the lake; started again, it goes on from what it had stored, as does one that is `paused`
because its slice of a budget was spent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect.exceptions import TerminationSignal

from flows.context import RunContext, is_open, open_context
from flows.home import Home, identity
from flows.operations.attempts import attempt
from flows.operations.budgets import EARLIER, BudgetSpent, Meter, seconds_of
from flows.operations.config import EventKind
from flows.operations.events import Event, notify, show_in_prefect
from flows.runtime import exit_after
from flows.stage_run import StageRun, over_budget
from rl.worker_death import WorkerDied
from warehouse import Failure, Lake, Run
from warehouse.digests import digest
from warehouse.errors import RequestError
from warehouse.upkeep import keep_up

log = logging.getLogger("flywheel")

Work = Callable[[StageRun], dict[str, Any]]
"""What a stage does; returns its figures."""


@contextmanager
def open_home(home: Path, patience_seconds: float = 0.0) -> Iterator[RunContext]:
    """The home's context: the one that the flow around this one has opened, or else opened here, again after a fault."""
    with ExitStack() as stack:
        if is_open(home):
            yield stack.enter_context(open_context(home))
        else:
            config = Home(home).load().attempts
            context = attempt("open the home", lambda: stack.enter_context(open_context(home, patience_seconds)), config)
            try:
                yield context
            except TerminationSignal:  # engines are stopped next, and that may hang
                exit_after()
                raise


def run_stage(
    context: RunContext, run_id: str, stage: str, turn: int, settings: dict[str, Any], work: Work, meter: Meter | None = None
) -> dict[str, Any]:
    """Do a stage's work under the name `run_id`, or nothing where that was done; returns the stage's figures.

    A fault of the machine is tried again with new engines, whatever ended it is an event, and its figures are shown in Prefect.

    Raises:
        BudgetSpent: nothing of the turn's budget is left for the stage.
        RequestError: something about the stage is asked for wrongly.
        WorkerDied: a process that the stage needs died, in every attempt.
    """
    config, root = context.config, context.home.root

    def tell_of(happening: EventKind, sentence: str, facts: dict[str, Any]) -> None:
        notify(Event(happening, root, run_id, sentence, facts), config.events, context.lake)

    def once() -> tuple[bool, dict[str, Any]]:
        return run_attempt(context.lake, run_id, stage, turn, settings, lambda run: work(context.watch(run)), meter)

    try:
        worked, figures = attempt(run_id, once, config.attempts, context.stop_engines)
    except BudgetSpent as error:
        tell_of(EventKind.stopped_run, str(error), {})
        raise
    except RequestError:
        raise
    except Exception as error:
        tell_of(EventKind.stopped_run, f"{run_id} failed: {type(error).__name__}: {str(error)[:500]}", {})
        raise
    if worked:
        show_in_prefect(root, run_id, stage, figures)
        if figures.get("promoted"):
            tell_of(EventKind.promotion, str(figures["reason"]), figures)
        if "stopped" in figures and meter is not None and meter.ends:  # one that is only paused is no news
            tell_of(EventKind.stopped_run, str(figures["stopped"]), figures)
    return figures


def run_attempt(
    lake: Lake, run_id: str, stage: str, turn: int, settings: dict[str, Any], work: Work, meter: Meter | None = None
) -> tuple[bool, dict[str, Any]]:
    """One attempt at a stage with its row in `runs`. Returns whether anything was done, and the stage's figures.

    One that goes on where it was stopped reads the snapshot that it began with, one that was refused the present one. The many small
    files of its commits are merged at its end.

    Raises:
        BudgetSpent: `meter` has nothing left to begin with; the stage is left out, with a record.
        WorkerDied: a process that the stage needs died; it has a record, and its log is in the home.
    """
    earlier = next(iter(lake.runs("id = ?", [run_id])), None)
    if earlier is not None and earlier.state == "completed":
        log.info("%s is done: nothing to do", run_id)
        return False, earlier.figures
    own = digest(identity(settings))
    begun = earlier.snapshot_before if earlier is not None and earlier.config_digest == own else None
    before = lake.snapshot() if begun is None else begun
    so_far = {} if earlier is None else {EARLIER: round(seconds_of(earlier), 2)}
    run = Run(run_id, stage, turn, settings, own, before, None, "running", datetime.now(UTC), figures=so_far)
    if stage != "synth":  # synthesis makes what later turns stand on in any case, and stops behind that
        _may_begin(lake, run, meter)
    lake.replace([run])
    if meter is not None:
        meter.begin()
    at_work = StageRun(lake, run, meter)
    log.info("%s begins", run_id)
    try:
        figures = work(at_work)
        at_work.flush()
    except BaseException as error:
        # What a refusal asks for, such as other tasks, is seen next time; but what has made steps goes on from where it began.
        refused = isinstance(error, RequestError) and begun is None and at_work.step is None
        failed = replace(run, state="failed", finished=datetime.now(UTC), figures=so_far | _paused(at_work))
        lake.replace([replace(failed, snapshot_before=None) if refused else failed])
        at_work.flush()
        if isinstance(error, WorkerDied):
            raise _recorded(lake, run, error) from error
        raise
    finished = datetime.now(UTC)
    seconds = {"seconds": round((finished - run.started).total_seconds(), 2)}
    figures = {**figures, **seconds, **so_far} | _paused(at_work) | _stop(at_work)
    state = "paused" if at_work.stopped and meter is not None and not meter.ends else "completed"
    lake.replace([replace(run, state=state, finished=finished, snapshot_after=lake.snapshot(), figures=figures)])
    keep_up(lake)
    return True, figures


def _recorded(lake: Lake, run: Run, died: WorkerDied) -> WorkerDied:
    """A death that has its row and its log in the home."""
    kept = died.kept_in(Home(lake.place.home).logs)
    item = {"run": run.id, "log": kept.file.name if kept.file is not None else None}
    lake.add([Failure(run.stage, "worker_died", f"{died.what} died, {died.how}", item)])
    return kept


def _may_begin(lake: Lake, run: Run, meter: Meter | None) -> None:
    found = meter.overspent() if meter is not None and meter.ends else None
    if found is not None:
        reason = f"{run.id} is left out: {found[1]}"
        lake.add([over_budget(run, found[0], reason)])
        raise BudgetSpent(f"{reason}; raise budget.{found[0]}, or go on with the next turn.")


def _paused(run: StageRun) -> dict[str, float]:
    return {"paused_seconds": round(run.paused_seconds, 2)} if run.paused_seconds else {}


def _stop(run: StageRun) -> dict[str, str]:
    return {"stopped": run.stopped} if run.stopped else {}
