"""A Prefect flow for each stage. Prefect shows, schedules and tries again; what is done and what is left to do stands in the lake.

A stage's own code is imported when the stage has work: torch, TRL and Ray take ten seconds to load, and a command that finds
nothing to do, or makes questions only, needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from prefect import flow, tags
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from flows.operations.artifacts import figure_rows
from flows.operations.budgets import Meter, slice_meter, turn_meter
from flows.operations.config import BudgetConfig
from flows.plan import SynthesisKind, evaluation_id, gate_id, policy_id, sampling_id, suite_label, synthesis_id
from flows.prefect_runtime import quiet_prefect
from flows.runs import StageRun
from flows.stage_work import Work, opened, work_stage
from flows.workshop import Workshop
from warehouse.errors import RequestError

T = TypeVar("T")

Rows = list[dict[str, Any]]
TrainingStage = Literal["init", "cpt", "sft", "rl"]
Variant = Literal["", "fixed_first", "fixed_last", "without_cpt"]


@flow(name="synthesis", flow_run_name="synthesis of turn {turn}, {kind}")
def synthesis_flow(
    home: Path, turn: PositiveInt = 1, kind: SynthesisKind = "all", allowance: BudgetConfig | None = None, patience_seconds: float = 0.0
) -> Rows:
    """Questions, plans, reasoning, decision records and demonstrations of a turn, or one `kind` of them alone.

    With an `allowance` it does as much as that allows and is paused; the next call goes on.
    """
    with opened(home, patience_seconds) as shop:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.synthesis.work import synthesise

            return synthesise(shop, run, turn, kind)

        meter = _meter(shop, turn) if allowance is None else slice_meter(shop.lake, shop.home.root, turn, allowance)
        return _stage(shop, synthesis_id(turn, kind), "synth", turn, work, "" if kind == "all" else kind, meter)


@flow(name="training", flow_run_name="{stage} of turn {turn}, {variant}")
def training_flow(home: Path, stage: TrainingStage, turn: NonNegativeInt = 1, variant: Variant = "") -> Rows:
    """One of the training stages of a turn, or a `variant` of it (`flows.plan.VARIANTS`)."""
    with opened(home) as shop:
        parent = _parent(shop, stage, turn, variant)
        meter = _meter(shop, turn) if turn else None

        def work(run: StageRun) -> dict[str, Any]:
            if stage == "rl":
                from flows.stages.reinforcement import reinforce

                return reinforce(shop, run, turn, parent, variant)
            from flows.stages.training import finetune, initialise, pretrain

            if stage == "init":
                return initialise(shop, run)
            return pretrain(shop, run, turn, parent) if stage == "cpt" else finetune(shop, run, turn, parent, variant)

        return _stage(shop, policy_id(turn, stage, variant), stage, turn, work, variant, meter)


@flow(name="evaluation", flow_run_name="evaluation of {policy} on {suite}")
def evaluation_flow(home: Path, policy: str, suite: str = "held_out", occasion: str = "", patience_seconds: float = 0.0) -> Rows:
    """Success of a policy on a held-out suite; once more, under a name of its own, for each `occasion`."""
    with opened(home, patience_seconds) as shop:
        record = shop.policy(policy)
        if suite not in shop.config.evaluation.suites:
            raise RequestError(f"{home} has no suite {suite!r}; it has {', '.join(shop.config.evaluation.suites)}.")

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.evaluation import evaluate

            return evaluate(shop, record, suite, run, occasion)

        return _stage(shop, evaluation_id(policy, suite_label(suite, occasion)), "eval", record.wheel_turn, work)


@flow(name="sampling", flow_run_name="sampling of {policy}")
def sampling_flow(
    home: Path,
    policy: str,
    condition: str,
    samples: PositiveInt = 1,
    temperature: NonNegativeFloat = 1.0,
    horizon: PositiveInt | None = None,
) -> Rows:
    """Trajectories of a policy on the tasks that meet a SQL condition."""
    with opened(home) as shop:
        record = shop.policy(policy)
        turns = horizon or shop.config.evaluation.horizon
        wanted = {"condition": condition, "samples": samples, "temperature": temperature, "horizon": turns}

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.sampling import Wanted, sample

            return sample(shop, record, Wanted(condition, samples, temperature, turns), run)

        return _stage(shop, sampling_id(policy, wanted), "rollout", record.wheel_turn, work)


@flow(name="gate", flow_run_name="gate of turn {turn}")
def gate_flow(home: Path, turn: PositiveInt = 1) -> Rows:
    """Promote the turn's candidate, or keep the champion, with the reason; then write the report."""
    with opened(home) as shop:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.report import build_report
            from flows.stages.gate import promote

            decision = promote(shop, turn)
            build_report(shop.lake, shop.home.report)
            return decision

        return _stage(shop, gate_id(turn), "gate", turn, work)


def run_stage(home: Path, stage_flow: Callable[..., T], **parameters: Any) -> T:
    """Run one stage's flow by itself, under Prefect's own temporary server where no other is configured."""
    with quiet_prefect(home), tags("flywheel"):
        return stage_flow(home=home, **parameters)


def _stage(shop: Workshop, run_id: str, stage: str, turn: int, work: Work, variant: str = "", meter: Meter | None = None) -> Rows:
    settings = shop.config.for_turn(max(turn, 1)).model_dump(mode="json") | {"variant": variant or "scaling"}
    return figure_rows(work_stage(shop, run_id, stage, turn, settings, work, meter))


def _meter(shop: Workshop, turn: int) -> Meter:
    return turn_meter(shop.lake, shop.home.root, turn, shop.config.budget)


def _parent(shop: Workshop, stage: TrainingStage, turn: int, variant: Variant) -> str:
    """The policy that a stage starts from; it must be there."""
    if stage == "init":
        return ""
    skips = variant == "without_cpt"
    if stage == "cpt" or (stage == "sft" and skips):
        champion = shop.champion(before=turn)
        return champion.id if champion else shop.policy(policy_id(0, "init")).id
    return shop.policy(policy_id(turn, {"sft": "cpt", "rl": "sft"}[stage], variant if skips else "")).id
