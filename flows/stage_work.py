"""A stage's work in an open home: tried again after a fault, metered, told of, and shown in Prefect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prefect.exceptions import TerminationSignal

from flows.guardian import end_soon
from flows.home import Home
from flows.operations.artifacts import show_in_prefect
from flows.operations.attempts import attempt
from flows.operations.budgets import BudgetSpent, Meter
from flows.operations.config import Happening
from flows.operations.events import Event, tell
from flows.runs import StageRun, execute
from flows.workshop import Workshop, is_open, workshop
from warehouse.errors import RequestError

Work = Callable[[StageRun], dict[str, Any]]


@contextmanager
def opened(home: Path, patience_seconds: float = 0.0) -> Iterator[Workshop]:
    """The home's workshop: the one that the flow around this one has opened, or else opened here, again after a fault."""
    with ExitStack() as stack:
        if is_open(home):
            yield stack.enter_context(workshop(home))
        else:
            config = Home(home).load().attempts
            shop = attempt("open the home", lambda: stack.enter_context(workshop(home, patience_seconds)), config)
            try:
                yield shop
            except TerminationSignal:  # engines are stopped next, and that may hang
                end_soon()
                raise


def work_stage(
    shop: Workshop, run_id: str, stage: str, turn: int, settings: dict[str, Any], work: Work, meter: Meter | None = None
) -> dict[str, Any]:
    """Do a stage's work under its name, or nothing where that was done; returns its figures.

    Raises:
        BudgetSpent: nothing of the turn's budget is left for it.
        RequestError: something about the stage is asked for wrongly; whatever else it raises has been told of.
    """
    try:
        worked, figures = attempt(
            run_id,
            lambda: execute(shop.lake, run_id, stage, turn, settings, lambda run: work(shop.watch(run)), meter),
            shop.config.attempts,
            shop.stop_engines,
        )
    except BudgetSpent as error:
        _tell(shop, Happening.stopped_run, run_id, str(error), {})
        raise
    except RequestError:
        raise
    except Exception as error:
        _tell(shop, Happening.stopped_run, run_id, f"{run_id} failed: {type(error).__name__}: {str(error)[:500]}", {})
        raise
    if worked:
        show_in_prefect(shop.home.root, run_id, stage, figures)
        _tell_of(shop, run_id, figures, meter)
    return figures


def _tell_of(shop: Workshop, run_id: str, figures: dict[str, Any], meter: Meter | None) -> None:
    """Tell of a promotion, and of a stage that its turn's budget stopped; one that is only paused is no news."""
    if figures.get("promoted"):
        _tell(shop, Happening.promotion, run_id, str(figures["reason"]), figures)
    if "stopped" in figures and meter is not None and meter.ends:
        _tell(shop, Happening.stopped_run, run_id, str(figures["stopped"]), figures)


def _tell(shop: Workshop, happening: Happening, run_id: str, sentence: str, facts: dict[str, Any]) -> None:
    tell(Event(happening, shop.home.root, run_id, sentence, facts), shop.config.events, shop.lake)
