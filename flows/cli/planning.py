"""`flywheel plan`: what a configuration will take of memory, disk and time, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import JsonOption, ProfileOption, SetOption, print_json

if TYPE_CHECKING:
    from rl.hardware import Device


def plan(
    home: Annotated[
        Path | None, typer.Option("--home", envvar="FLYWHEEL_HOME", help="A home, whose configuration is meant without --profile.")
    ] = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    device: Annotated[
        str | None,
        typer.Option(help="The card: H200, H100, A100, L40S, L40, A10 or L4. Without it H100 where the profile reserves GPUs, else none."),
    ] = None,
    memory: Annotated[float | None, typer.Option(min=0.1, help="GiB of a card, or of the machine where no card is reserved.")] = None,
    machines: Annotated[int, typer.Option(min=1, help="Machines, each with --gpus cards.")] = 1,
    gpus: Annotated[int | None, typer.Option(min=0, help="Cards of a machine: says what finds no room there.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="Turns of a trajectory in the mean; the longest horizon without it.")] = None,
    action_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an action in the mean.")] = None,
    observation_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an observation in the mean.")] = None,
    learner_share: Annotated[float, typer.Option(min=0.01, max=1, help="Share of the peak that the learner comes to.")] = 0.3,
    json_: JsonOption = False,
) -> None:
    """Reckon each card's memory, the disk, tokens and time of a step, and what to change. Starts nothing; the model's sizes are enough.

    Example: flywheel plan --profile one_gpu --set policy.path=/models/qwen --device L4 --set rl.trajectories_per_pass=2

    Of a home that is there: flywheel plan --home runs/demo
    """
    import math
    from dataclasses import replace

    from flows.doctor.machine import total_memory
    from flows.home import Home, choose_config
    from flows.placement import phases
    from flows.sizing.assumptions import assumed
    from flows.sizing.plan import plan_of
    from rl.hardware import GIB
    from rl.placement import Machine
    from warehouse.errors import RequestError

    if home is None and profile is None:
        raise RequestError("say what to plan: --profile NAME, or --home DIR of a run.")
    place = Home(home or Path())
    if profile is None:
        place.load()  # what --set lays over is a home that is there
    config = choose_config(place, profile, set_ or [])
    on_cards = any(phase.gpus for phase in phases(config))
    if device is not None and not on_cards:
        raise RequestError(
            f"--device {device}: the configuration reserves no GPU; set rollout.engine.gpus and rl.learner.gpus, or leave it out."
        )
    card = _card(device or "H100", memory) if on_cards else None
    host = None if on_cards else memory or total_memory() / GIB
    assumptions = assumed(config, config.rollout, card, turns, action_tokens, observation_tokens)
    there = [] if gpus is None else [Machine(f"machine {number + 1}", math.inf, gpus) for number in range(machines)]
    found = plan_of(config, replace(assumptions, host_gib=host, learner_share=learner_share), there)
    if json_:
        print_json(found.record())
        return
    from flows.sizing.show import print_plan

    print_plan(found)


def _card(name: str, memory: float | None) -> Device:
    """The card of that name, with other memory where it is said. Raises RequestError for one that the table has not."""
    from dataclasses import replace

    from rl.hardware import DEVICES
    from warehouse.errors import RequestError

    known = {one.name: one for one in DEVICES}
    if name not in known:
        raise RequestError(f"--device {name} is not in the table; choose one of {', '.join(known)}, and say --memory where it differs.")
    return known[name] if memory is None else replace(known[name], memory_gib=memory)
