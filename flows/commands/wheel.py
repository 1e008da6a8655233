"""`flywheel run`: the whole wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.options import HomeOption, JsonOption, ProfileOption, SetOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(run)


def run(
    home: HomeOption = Path("runs/default"),
    profile: ProfileOption = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of the wheel in all; those that are done are not done again.")] = 1,
    set_: SetOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and what would run.")] = False,
    json_: JsonOption = False,
) -> None:
    """Turn the wheel: synthesis, CPT, SFT, RL and evaluation, as often as --turns says. Started again, it goes on where it was.

    Example: flywheel run --profile quickstart --home runs/demo --turns 2
    """
    from flows.home import Home, choose_config

    place = Home(home)
    config = choose_config(place, profile, set_ or [])
    if dry_run:
        from flows.plan import plan

        print_json({"home": str(home), "config": config.model_dump(mode="json"), "would_run": plan(place, config, turns)})
        return
    place.claim(config)
    from flows.wheel import turn_the_wheel

    table = turn_the_wheel(place, turns)
    if json_:
        print_json(table)
    else:
        from flows.summary import print_table

        print_table(table)
