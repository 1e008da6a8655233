"""`flywheel plan`: what a configuration will take of memory, disk and time, before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.options import JsonOption, SetOption, print_json


def plan(
    profile: Annotated[str, typer.Option(help="A profile by name (one_gpu, eight_gpus, cluster, …) or the path of a TOML file.")],
    set_: SetOption = None,
    device: Annotated[str, typer.Option(help="The card: H200, H100, A100, L40S, L40, A10 or L4.")] = "H100",
    memory: Annotated[float | None, typer.Option(min=0.1, help="GiB of a card, where it is not the device's.")] = None,
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
    """
    import math
    from dataclasses import replace

    from flows.config import load_config
    from flows.sizing.assumptions import assumed
    from flows.sizing.plan import plan_of
    from rl.devices import DEVICES
    from rl.placement import Machine
    from warehouse.errors import RequestError

    known = {one.name: one for one in DEVICES}
    if device not in known:
        raise RequestError(f"--device {device} is not in the table; choose one of {', '.join(known)}, and say --memory where it differs.")
    card = known[device] if memory is None else replace(known[device], memory_gib=memory)
    config = load_config(profile, set_ or [])
    assumptions = assumed(config, config.rollout, card, turns, action_tokens, observation_tokens)
    there = [] if gpus is None else [Machine(f"machine {number + 1}", math.inf, gpus) for number in range(machines)]
    found = plan_of(config, replace(assumptions, learner_share=learner_share), there)
    if json_:
        print_json(found.record())
        return
    from flows.sizing.show import print_plan

    print_plan(found)
