"""`flywheel pause`, `resume` and `limit`: requests to the process at work in a home."""

from __future__ import annotations

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
    from flows.operations.control import Order
    from flows.operations.requests import ask

    working = ask(Home(home), Order.pause)
    say(f"process {working.process} pauses: what is under way ends, nothing new begins; `flywheel resume --home {home}` goes on.")


def resume(home: HomeOption) -> None:
    """Have a wheel that was paused go on.

    Example: flywheel resume --home runs/demo
    """
    from flows.home import Home
    from flows.operations.control import Order
    from flows.operations.requests import ask

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
    from flows.operations.control import Order
    from flows.operations.requests import ask

    place = Home(home)
    most = place.load().rollout.concurrency
    working = ask(place, Order.limit, min(count, most))
    gone = ", rollout.concurrency" if count >= most else ""
    say(f"process {working.process} runs {min(count, most)} trajectories side by side at most{gone}.")
