"""Commands for a process at work (`pause`, `resume`, `limit`) and for schedules (`serve`, `deploy`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import HomeOption
from rl.terminal import say


def pause(home: HomeOption) -> None:
    """Have a wheel that turns stand still: trajectories under way end, nothing new begins, a stage waits behind its step or batch.

    Its process, its engines and their memory stay; Ctrl-C there ends it, and the same command goes on.

    Example: flywheel pause --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order, ask

    working = ask(Home(home), Order.pause)
    say(f"process {working.process} pauses: what is under way ends, nothing new begins; `flywheel resume --home {home}` goes on.")


def resume(home: HomeOption) -> None:
    """Have a wheel that was paused go on.

    Example: flywheel resume --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order, ask

    working = ask(Home(home), Order.resume)
    say(f"process {working.process} goes on.")


def limit(
    count: Annotated[
        int, typer.Argument(metavar="N", min=1, help="Trajectories at most; with rollout.concurrency or more the limit is gone.")
    ],
    home: HomeOption,
) -> None:
    """Bound how many trajectories a wheel that turns runs side by side, as long as its process lives; those under way end.

    Example: flywheel limit 16 --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order, ask

    place = Home(home)
    most = place.load().rollout.concurrency
    working = ask(place, Order.limit, min(count, most))
    gone = ", rollout.concurrency" if count >= most else ""
    say(f"process {working.process} runs {min(count, most)} trajectories side by side at most{gone}.")


NameOption = Annotated[str | None, typer.Option(help="Name of the deployments; that of the home's folder without it.")]
ScheduleOption = Annotated[
    list[str] | None,
    typer.Option("--schedule", metavar="NAME=CRON", help="Other times for turn, synthesis, evaluation or compaction; repeatable."),
]


def serve(home: HomeOption, name: NameOption = None, schedule: ScheduleOption = None) -> None:
    """Run a home's schedules on this machine until interrupted: a turn at night, synthesis, evaluation, upkeep. Needs a Prefect server.

    Example: flywheel serve --home runs/demo --schedule turn="0 22 * * *"
    """
    _show_prefect_log()
    place, crons = _wanted(home, schedule)
    from flows.operations.scheduled import deployments, serve_here

    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "flywheel")
    serve_here(deployments(place, name or place.name, crons))


def deploy(
    home: HomeOption,
    pool: Annotated[str, typer.Option(help="Work pool that runs them; `prefect worker start --pool NAME` works it.")],
    name: NameOption = None,
    schedule: ScheduleOption = None,
) -> None:
    """Register a home's schedules in a Prefect work pool, for its workers to run.

    Example: flywheel deploy --home runs/demo --pool flywheel
    """
    place, crons = _wanted(home, schedule)
    from flows.operations.scheduled import deployments
    from flows.operations.scheduled import register as register_in

    for registered in register_in(deployments(place, name or place.name, crons, pool), pool):
        say(registered)


def _wanted(home: Path, schedules: list[str] | None) -> tuple[Path, dict[str, str]]:
    """The home, which must be there, and the times of the schedules that are to be others."""
    from flows.home import Home
    from warehouse.errors import RequestError

    Home(home).load()
    crons: dict[str, str] = {}
    for text in schedules or []:
        name, separator, cron = text.partition("=")
        if not separator:
            raise RequestError(f"--schedule {text!r} is not of the form name=cron; write for example --schedule turn='0 22 * * *'.")
        crons[name.strip()] = cron.strip()
    return home.resolve(), crons


def _show_prefect_log() -> None:
    """Show Prefect's log lines of runs that start and end, which other commands leave out."""
    if os.environ.get("PREFECT_LOGGING_LEVEL") == "CRITICAL":
        os.environ["PREFECT_LOGGING_LEVEL"] = "INFO"
