"""Commands that control a running process (`pause`, `resume`, `limit`) and run schedules (`serve`, `deploy`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import HomeOption
from rl.terminal import say


def pause(home: HomeOption) -> None:
    """Pause a run: running trajectories finish, no new ones start, and the stage waits after its current step or batch.

    The process keeps its engines and memory. Ctrl-C ends it; the same command then continues the run.

    Example: flywheel pause --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order, ask

    working = ask(Home(home), Order.pause)
    say(f"process {working.process} pauses: running trajectories finish, nothing new starts; `flywheel resume --home {home}` resumes it.")


def resume(home: HomeOption) -> None:
    """Resume a paused run.

    Example: flywheel resume --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order, ask

    working = ask(Home(home), Order.resume)
    say(f"process {working.process} resumes.")


def limit(
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="Maximum; rollout.concurrency or more removes the limit.")],
    home: HomeOption,
) -> None:
    """Limit a run's concurrent trajectories until its process ends. Running trajectories finish.

    Example: flywheel limit 16 --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order, ask

    place = Home(home)
    most = place.load().rollout.concurrency
    working = ask(place, Order.limit, min(count, most))
    gone = " (rollout.concurrency)" if count >= most else ""
    say(f"process {working.process} runs at most {min(count, most)} concurrent trajectories{gone}.")


NameOption = Annotated[str | None, typer.Option(help="Name of the deployments; by default that of the home's folder.")]
ScheduleOption = Annotated[
    list[str] | None,
    typer.Option("--schedule", metavar="NAME=CRON", help="Custom times for turn, synthesis, evaluation or compaction; repeatable."),
]


def serve(home: HomeOption, name: NameOption = None, schedule: ScheduleOption = None) -> None:
    """Run a home's schedules on this machine until interrupted: nightly iterations, synthesis, evaluation, upkeep. Needs a Prefect server.

    Example: flywheel serve --home runs/demo --schedule turn="0 22 * * *"
    """
    _show_prefect_log()
    place, crons = _wanted(home, schedule)
    from flows.scheduled import deployments, serve_here

    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "flywheel")
    serve_here(deployments(place, name or place.name, crons))


def deploy(
    home: HomeOption,
    pool: Annotated[str, typer.Option(help="Work pool that runs them; `prefect worker start --pool NAME` starts a worker.")],
    name: NameOption = None,
    schedule: ScheduleOption = None,
) -> None:
    """Register a home's schedules in a Prefect work pool, whose workers run them.

    Example: flywheel deploy --home runs/demo --pool flywheel
    """
    place, crons = _wanted(home, schedule)
    from flows.scheduled import deployments
    from flows.scheduled import register as register_in

    for registered in register_in(deployments(place, name or place.name, crons, pool), pool):
        say(registered)


def _wanted(home: Path, schedules: list[str] | None) -> tuple[Path, dict[str, str]]:
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
    if os.environ.get("PREFECT_LOGGING_LEVEL") == "CRITICAL":
        os.environ["PREFECT_LOGGING_LEVEL"] = "INFO"
