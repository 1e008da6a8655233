"""The wheel: one flow that chains the stages of every turn.

Each stage is idempotent by its run in the lake, so the wheel has no state of its own: started again after whatever ended it, it
walks over what is done and goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow

from flows.home import Home
from flows.plan import Kind, completed, gate_id, steps
from flows.prefect_runtime import quiet_prefect
from flows.stage_flows import evaluation_flow, gate_flow, synthesis_flow, training_flow
from flows.summary import evaluation_rows
from flows.workshop import workshop
from warehouse import Lake

log = logging.getLogger("flywheel")

FLOWS: dict[Kind, Callable[..., Any]] = {
    Kind.SYNTHESIS: synthesis_flow,
    Kind.TRAINING: training_flow,
    Kind.EVALUATION: evaluation_flow,
    Kind.GATE: gate_flow,
}


@flow(name="flywheel", log_prints=False)
def wheel_flow(home: Path, turns: int = 1) -> None:
    """Turns of the wheel, from the first; those that are done pass by."""
    with workshop(home) as shop:
        shop.turns = turns
        for step in steps(shop.config, turns):
            FLOWS[step.kind](home=home, **step.arguments)


def turn_the_wheel(home: Home, turns: int) -> list[dict[str, Any]]:
    """Run the wheel, or say that nothing is to do; returns the rows of the table of success."""
    if is_done(home, turns):
        log.info("nothing to do: %s turn%s of %s done", turns, " is" if turns == 1 else "s are", home.root)
    else:
        with quiet_prefect(home.root):
            wheel_flow(home=home.root, turns=turns)
    with Lake(home.root, read_only=True) as lake:
        return evaluation_rows(lake)


def is_done(home: Home, turns: int) -> bool:
    """Whether the last turn's gate has spoken."""
    return gate_id(turns) in completed(home)
