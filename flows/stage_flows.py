"""A Prefect flow for each stage. Prefect shows, schedules and tries again; what is done and what is left to do stands in the lake.

A stage's own code is imported when the stage has work: torch, TRL and Ray take ten seconds to load, and a command that finds
nothing to do, or makes questions only, needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from prefect import flow, tags
from pydantic import NonNegativeInt, PositiveInt

from flows.config import TEACHER, FlywheelConfig
from flows.context import RunContext
from flows.lakes import policy_of
from flows.operations.budgets import Meter, slice_meter, turn_meter
from flows.operations.config import BudgetConfig
from flows.operations.events import figure_rows
from flows.order import parent_id
from flows.plan import SynthesisKind, evaluation_id, gate_id, policy_id, reopen, sampling_id, suite_label, synthesis_id
from flows.prefect_runtime import quiet_prefect
from flows.run_stage import Work, open_home, run_stage
from flows.stage_run import StageRun
from flows.variants import Variant
from rl.engines.config import Temperature
from warehouse import Lake
from warehouse.errors import RequestError

T = TypeVar("T")

Rows = list[dict[str, Any]]
TrainingStage = Literal["init", "cpt", "sft", "rl"]


@flow(name="synthesis", flow_run_name="synthesis of turn {turn}, {kind}")
def synthesis_flow(
    home: Path, turn: PositiveInt = 1, kind: SynthesisKind = "all", allowance: BudgetConfig | None = None, patience_seconds: float = 0.0
) -> Rows:
    """Questions, plans, reasoning, decision records and demonstrations of a turn, or one `kind` of them alone.

    With an `allowance` it does as much as that and the home's budget allow and is paused; the next call goes on.
    """
    with open_home(home, patience_seconds) as context:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.synthesis.stage import synthesise

            return synthesise(context, run, turn, kind)

        budget = context.config.budget
        meter = _meter(context, turn) if allowance is None else slice_meter(context.lake, context.home.root, turn, allowance, budget)
        return _stage(context, synthesis_id(turn, kind), "synth", turn, work, "" if kind == "all" else kind, meter)


@flow(name="training", flow_run_name="{stage} of turn {turn}, {variant}")
def training_flow(home: Path, stage: TrainingStage, turn: NonNegativeInt = 1, variant: Variant | Literal[""] = "") -> Rows:
    """One of the training stages of a turn, or a `variant` of it."""
    with open_home(home) as context:
        parent = parent_of(context.lake, context.config, stage, turn, variant)
        meter = _meter(context, turn) if turn else None

        def work(run: StageRun) -> dict[str, Any]:
            if stage == "rl":
                from flows.stages.reinforcement import reinforce

                return reinforce(context, run, turn, parent, variant)
            from flows.stages.training import finetune, initialise, pretrain

            if stage == "init":
                return initialise(context, run)
            return pretrain(context, run, turn, parent) if stage == "cpt" else finetune(context, run, turn, parent, variant)

        return _stage(context, policy_id(turn, stage, variant), stage, turn, work, variant, meter)


@flow(name="evaluation", flow_run_name="evaluation of {policy} on {suite}")
def evaluation_flow(home: Path, policy: str, suite: str = "held_out", occasion: str = "", patience_seconds: float = 0.0) -> Rows:
    """Success of a policy on a held-out suite; once more, under a name of its own, for each `occasion`."""
    with open_home(home, patience_seconds) as context:
        record = context.policy(policy)
        if suite not in context.config.evaluation.all_suites:
            raise RequestError(f"{home} has no suite {suite!r}; it has {', '.join(context.config.evaluation.all_suites)}.")

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.rollouts import evaluate

            return evaluate(context, record, suite, run, occasion)

        return _stage(context, evaluation_id(policy, suite_label(suite, occasion)), "eval", record.wheel_turn, work)


@flow(name="sampling", flow_run_name="sampling of {policy}")
def sampling_flow(
    home: Path,
    policy: str,
    condition: str,
    samples: PositiveInt = 1,
    temperature: Temperature = 1.0,
    horizon: PositiveInt | None = None,
) -> Rows:
    """Trajectories of a policy, or of the home's teacher, on the tasks that meet a SQL condition."""
    from flows.stages.rollouts import SamplingPlan, not_played, not_stored, sample, sample_teacher, wanted_of_policy, wanted_of_teacher

    with open_home(home) as context:
        record = None if policy == TEACHER else context.policy(policy)
        turns = horizon or context.config.evaluation.horizon
        plan = SamplingPlan(condition, samples, temperature, turns)
        run_id = sampling_id(policy, asdict(plan))
        requests = wanted_of_teacher(context, plan) if record is None else wanted_of_policy(context, record, plan, run_id)
        left = not_played if record is None else not_stored
        if left(context.lake, requests):  # tasks that meet the condition may have come since
            reopen(context.lake, run_id)

        def work(run: StageRun) -> dict[str, Any]:
            return sample_teacher(context, requests, run) if record is None else sample(context, record, requests, run)

        return _stage(context, run_id, "rollout", 1 if record is None else record.wheel_turn, work)


@flow(name="gate", flow_run_name="gate of turn {turn}")
def gate_flow(home: Path, turn: PositiveInt = 1) -> Rows:
    """Promote the turn's candidate, or keep the champion, with the reason; then write the report."""
    with open_home(home) as context:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.gate import promote

            return promote(context, turn)

        decided = bool(context.lake.runs("id = ? AND state = 'completed'", [gate_id(turn)]))
        rows = _stage(context, gate_id(turn), "gate", turn, work)
        if not decided:  # behind the stage, for the page shows what it decided
            from flows.report import build_report

            build_report(context.lake, context.home.report)
        return rows


def run_flow(home: Path, stage_flow: Callable[..., T], **parameters: Any) -> T:
    """Run one stage's flow by itself, under Prefect's own temporary server where no other is configured."""
    with quiet_prefect(home), tags("flywheel"):
        return stage_flow(home=home, **parameters)


def _stage(context: RunContext, run_id: str, stage: str, turn: int, work: Work, variant: str = "", meter: Meter | None = None) -> Rows:
    settings = context.config.for_turn(max(turn, 1)).model_dump(mode="json") | {"variant": variant or "scaling"}
    return figure_rows(run_stage(context, run_id, stage, turn, settings, work, meter))


def _meter(context: RunContext, turn: int) -> Meter:
    return turn_meter(context.lake, context.home.root, turn, context.config.budget)


def parent_of(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str) -> str:
    """The policy that a stage starts from: that of the stage before it, else the champion, else the first.

    Raises:
        RequestError: it is not there.
    """
    if stage == "init":
        return ""
    return policy_of(lake, parent_id(lake, config, stage, turn, variant)).id
