"""A Prefect flow for each stage. Prefect shows and schedules; what is done and what is left to do stands in the lake.

A stage's own code is imported when the stage has work: torch, TRL and Ray take ten seconds to load, and a command that finds
nothing to do, or makes questions only, needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact

from flows.plan import SynthesisKind, evaluation_id, gate_id, policy_id, sampling_id, synthesis_id
from flows.prefect_runtime import quiet_prefect
from flows.runs import StageRun, execute
from flows.workshop import Workshop, workshop
from warehouse.errors import RequestError

Rows = list[dict[str, Any]]
Work = Callable[[StageRun], dict[str, Any]]


@flow(name="synthesis", log_prints=False)
def synthesis_flow(home: Path, turn: int = 1, kind: SynthesisKind = "all") -> Rows:
    """Questions, plans, reasoning, decision records and demonstrations of a turn, or one `kind` of them alone."""
    with workshop(home) as shop:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.synthesis.work import synthesise

            return synthesise(shop, run, turn, kind)

        return _stage(shop, synthesis_id(turn, kind), "synth", turn, work, "" if kind == "all" else kind)


@flow(name="training", log_prints=False)
def training_flow(home: Path, stage: str, turn: int = 1, variant: str = "") -> Rows:
    """One of the training stages `cpt`, `sft`, `rl` of a turn; `variant` fixes RL's horizon at its first or last value."""
    with workshop(home) as shop:
        parent = _parent(shop, stage, turn)

        def work(run: StageRun) -> dict[str, Any]:
            if stage == "rl":
                from flows.stages.reinforcement import reinforce

                return reinforce(shop, run, turn, parent, variant)
            from flows.stages.training import finetune, initialise, pretrain

            if stage == "init":
                return initialise(shop, run)
            return {"cpt": pretrain, "sft": finetune}[stage](shop, run, turn, parent)

        return _stage(shop, policy_id(turn, stage, variant), stage, turn, work, variant)


@flow(name="evaluation", log_prints=False)
def evaluation_flow(home: Path, policy: str, suite: str = "held_out") -> Rows:
    """Success of a policy on a held-out suite."""
    with workshop(home) as shop:
        record = shop.policy(policy)
        if suite not in shop.config.evaluation.suites:
            raise RequestError(f"{home} has no suite {suite!r}; it has {', '.join(shop.config.evaluation.suites)}.")

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.evaluation import evaluate

            return evaluate(shop, record, suite, run)

        return _stage(shop, evaluation_id(policy, suite), "eval", record.wheel_turn, work)


@flow(name="sampling", log_prints=False)
def sampling_flow(home: Path, policy: str, condition: str, samples: int = 1, temperature: float = 1.0, horizon: int | None = None) -> Rows:
    """Trajectories of a policy on the tasks that meet a SQL condition."""
    with workshop(home) as shop:
        record = shop.policy(policy)
        turns = horizon or shop.config.evaluation.horizon
        wanted = {"condition": condition, "samples": samples, "temperature": temperature, "horizon": turns}

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.sampling import Wanted, sample

            return sample(shop, record, Wanted(condition, samples, temperature, turns), run)

        return _stage(shop, sampling_id(policy, wanted), "rollout", record.wheel_turn, work)


@flow(name="gate", log_prints=False)
def gate_flow(home: Path, turn: int = 1) -> Rows:
    """Promote the turn's candidate, or keep the champion, with the reason."""
    with workshop(home) as shop:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.gate import promote

            return promote(shop, turn)

        return _stage(shop, gate_id(turn), "gate", turn, work)


def run_stage(home: Path, stage_flow: Callable[..., Rows], **parameters: Any) -> Rows:
    """Run one stage's flow by itself, under Prefect's own temporary server where no other is configured."""
    with quiet_prefect(home):
        return stage_flow(home=home, **parameters)


def _stage(shop: Workshop, run_id: str, stage: str, turn: int, work: Work, variant: str = "") -> Rows:
    settings = shop.config.for_turn(turn).model_dump(mode="json") | {"variant": variant or "scaling"}
    worked, figures = execute(shop.lake, run_id, stage, turn, settings, lambda run: work(shop.watch(run)))
    rows = figure_rows(figures)
    if worked:
        create_table_artifact(rows, key=f"{run_id}".replace("_", "-"), description=f"{stage} of turn {turn}")
    return rows


def figure_rows(figures: dict[str, Any]) -> Rows:
    """Figures as the rows of a table."""
    return [{"figure": name, **value} if isinstance(value, dict) else {"figure": name, "value": value} for name, value in figures.items()]


def _parent(shop: Workshop, stage: str, turn: int) -> str:
    """The policy that a stage starts from; it must be there."""
    if stage == "init":
        return ""
    if stage == "cpt":
        champions = [policy.id for policy in shop.lake.policies("promoted AND wheel_turn < ?", [turn])]
        return shop.policy(champions[-1] if champions and turn > 1 else policy_id(0, "init")).id
    return shop.policy(policy_id(turn, {"sft": "cpt", "rl": "sft"}[stage])).id
