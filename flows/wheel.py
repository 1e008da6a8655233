"""The wheel: one flow that chains the stages of every turn.

Each stage is idempotent by its run in the lake, so the wheel has no state of its own: started again after whatever ended it, it
walks over what is done and goes on where it was. A turn is done when its gate has spoken, also one whose budget left stages out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, tags
from pydantic import NonNegativeFloat, PositiveInt

from flows.context import RunContext
from flows.home import Home
from flows.operations.budgets import BudgetSpent
from flows.operations.config import BudgetConfig
from flows.plan import Kind, Step, completed, gate_id, has_begun, is_done, policy_id, turn_steps
from flows.prefect_runtime import quiet_prefect, wait_until_up
from flows.run_stage import open_home
from flows.stage_flows import evaluation_flow, gate_flow, synthesis_flow, training_flow
from flows.success_table import evaluation_rows
from warehouse import Lake

log = logging.getLogger("flywheel")

FLOWS: dict[Kind, Callable[..., Any]] = {
    Kind.SYNTHESIS: synthesis_flow,
    Kind.TRAINING: training_flow,
    Kind.EVALUATION: evaluation_flow,
    Kind.GATE: gate_flow,
}


@flow(name="flywheel", flow_run_name="{turns} turns")
def wheel_flow(home: Path, turns: PositiveInt = 1, budget: BudgetConfig | None = None, patience_seconds: NonNegativeFloat = 0.0) -> None:
    """Turns of the wheel, from the first; those that are done pass by. `budget` is each turn's, the home's own without it."""
    with open_home(home, patience_seconds) as context:
        context.turns = turns
        if budget is not None:
            context.config = context.config.model_copy(update={"budget": budget})
        context.calibrate()
        done = {run.id for run in context.lake.runs("state = 'completed'")}
        for turn in (number for number in range(1, turns + 1) if gate_id(number) not in done):
            _turn(context, turn, done)


def _turn(context: RunContext, turn: int, done: set[str]) -> None:
    """One turn; where its budget is spent, the stages that had not begun are left out, and the gate has its say."""
    *stages, gate = turn_steps(context.config, turn)
    teacher = context.config.for_turn(turn).synth.teacher
    try:
        for step in stages:
            # The engines of a teacher would take the place of the policy's.
            if step.run_id not in done and not (step.kind is Kind.SYNTHESIS and teacher is not None and teacher.kind == "engine"):
                context.begin_engines()
            _take(context, turn, step)
    except BudgetSpent as spent:
        log.warning("turn %d ends early: %s", turn, spent)
    _take(context, turn, gate)


def _take(context: RunContext, turn: int, step: Step) -> None:
    """One step of a turn, by its flow."""
    wait_until_up()
    with tags("flywheel", f"turn-{turn}", step.kind.value):
        FLOWS[step.kind](home=context.home.root, **step.arguments)


def _load_stages() -> None:
    """Import what nearly every turn needs: torch, TRL and Ray take some seconds, in which Prefect's server starts."""
    import flows.stages.synthesis.stage
    import flows.stages.training  # noqa: F401
    import rl.rollouts.rollout  # noqa: F401


def make_first_policy(home: Home) -> str:
    """Do what the wheel does up to its first policy, or nothing where that is there; returns the policy's id.

    A policy from scratch has its tokenizer from the text that it will be trained on, so the synthesis of the first turn comes before it.
    """
    first, config = policy_id(0, "init"), home.load()
    if has_begun(completed(home)):
        log.info("nothing to do: %s has its first policy", home.root)
        return first
    with quiet_prefect(home.root), tags("flywheel"), open_home(home.root) as context:
        for step in turn_steps(config, 1):
            if step.kind is Kind.SYNTHESIS and config.policy.path is None:
                _take(context, 1, step)
            if step.run_id == first:
                _take(context, 1, step)
    return first


def turn_the_wheel(home: Home, turns: int) -> list[dict[str, Any]]:
    """Run the wheel, or say that nothing is to do; returns the rows of the table of success."""
    if is_done(completed(home), turns):
        log.info("nothing to do: %s %s done in %s", turns, "turn is" if turns == 1 else "turns are", home.root)
    else:
        with quiet_prefect(home.root, _load_stages), tags("flywheel"):
            wheel_flow(home=home.root, turns=turns)
    with Lake(home.root, read_only=True) as lake:
        return evaluation_rows(lake)
