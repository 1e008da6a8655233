"""The pipeline, top to bottom: the iterations of `flywheel run`, a Prefect flow per stage, a stage, and one attempt at it.

The lake records progress: each stage is idempotent by its run id, so a stopped pipeline skips completed stages and resumes the one that had
begun. An iteration is done when its gate has decided, even if its budget skipped stages. Prefect schedules, retries and displays.
`flows/plan.py` defines the order of stages.

Stage code is imported only when a stage has work: torch, TRL and Ray take ten seconds to load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import duckdb
from prefect import Task, flow, tags
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL
from prefect.tasks import exponential_backoff
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from flows.config import TEACHER
from flows.context import RunContext, StageRun, is_open, open_context, over_budget
from flows.home import Home, identity
from flows.operations.budgets import EARLIER, BudgetSpent, Meter, seconds_of, slice_meter, turn_meter
from flows.operations.events import Event, figure_rows, notify, show_in_prefect
from flows.operations_config import AttemptConfig, BudgetConfig, EventKind
from flows.plan import (
    Kind,
    Step,
    SynthesisKind,
    completed,
    evaluation_id,
    gate_id,
    has_begun,
    is_done,
    parent_id,
    policy_id,
    reopen,
    sampling_id,
    suite_label,
    synthesis_id,
    turn_steps,
)
from flows.prefect_runtime import quiet_prefect, wait_until_up
from flows.runtime import exit_after
from flows.variants import Variant
from rl.engines.base import EngineFault
from rl.engines.config import Temperature
from rl.worker_death import WorkerDied
from warehouse import Failure, Lake, Run
from warehouse.digests import code_digest, digest
from warehouse.errors import RequestError, with_type
from warehouse.upkeep import keep_up

log = logging.getLogger("flywheel")

T = TypeVar("T")
Rows = list[dict[str, Any]]
TrainingStage = Literal["init", "cpt", "sft", "rl"]
Work = Callable[[StageRun], dict[str, Any]]
"""Work of a stage; returns its metrics."""

CODE = "code"
"""Name of the metric that says which code made a stage: digests, separated by spaces, of all attempts."""
LASTING = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Operating-system errors that a retry does not fix."""
FAULTS = (OSError, EngineFault, WorkerDied, duckdb.IOException, duckdb.HTTPException, duckdb.TransactionException)
_SIGNALS: dict[type[BaseException], str] = {TerminationSignal: "stopped by SIGTERM", KeyboardInterrupt: "stopped by Ctrl-C"}
REMOTE = {"ray", "httpx", "httpcore"}
"""Packages whose errors are faults of the remote end; matched by name, since importing them is slow."""


# Iterations


def run_pipeline(home: Home, turns: int) -> None:
    """Run all iterations up to `turns`, or log that they are done."""
    if is_done(completed(home), turns):
        log.info("nothing to do: %s %s done in %s", turns, "turn is" if turns == 1 else "turns are", home.root)
        return
    with quiet_prefect(home.root, _load_stages), tags("flywheel"):
        wheel_flow(home=home.root, turns=turns)


def make_first_policy(home: Home) -> str:
    """Run the pipeline up to its first policy if that is missing. Return the policy's id.

    A policy from scratch trains its tokenizer on the training text, so the first iteration's synthesis runs before it.
    """
    first, config = policy_id(0, "init"), home.load()
    if has_begun(completed(home)):
        log.info("nothing to do: %s has its first policy", home.root)
        return first
    with quiet_prefect(home.root), tags("flywheel"), open_home(home.root) as context:
        for step in turn_steps(config, 1):
            if step.run_id == first or (step.kind is Kind.SYNTHESIS and config.policy.path is None):
                _take(context, 1, step)
    return first


@flow(name="flywheel", flow_run_name="{turns} turns")
def wheel_flow(home: Path, turns: PositiveInt = 1, budget: BudgetConfig | None = None, patience_seconds: NonNegativeFloat = 0.0) -> None:
    """Run all unfinished iterations up to `turns`. `budget` applies to each; default: the home's."""
    with open_home(home, patience_seconds) as context:
        context.turns = turns
        if budget is not None:
            context.config = context.config.model_copy(update={"budget": budget})
        context.calibrate()
        done = {run.id for run in context.lake.runs("state = 'completed'")}
        for turn in (number for number in range(1, turns + 1) if gate_id(number) not in done):
            _iterate(context, turn, done)


def _iterate(context: RunContext, turn: int, done: set[str]) -> None:
    """Run one iteration. When its budget is spent, skip the stages that have not begun and let the gate decide."""
    *stages, gate = turn_steps(context.config, turn)
    teacher = context.config.for_turn(turn).synth.teacher
    try:
        for step in stages:
            # A teacher's engines would replace the policy's.
            if step.run_id not in done and not (step.kind is Kind.SYNTHESIS and teacher is not None and teacher.kind == "engine"):
                context.begin_engines()
            _take(context, turn, step)
    except BudgetSpent as spent:
        log.warning("turn %d ends early: %s", turn, spent)
    _take(context, turn, gate)


def _take(context: RunContext, turn: int, step: Step) -> None:
    wait_until_up()
    with tags("flywheel", f"turn-{turn}", step.kind.value):
        FLOWS[step.kind](home=context.home.root, **step.arguments)


def _load_stages() -> None:
    import flows.stages.synthesis.stage
    import flows.stages.training  # noqa: F401
    import rl.rollouts.rollout  # noqa: F401


# A flow per stage


def run_flow(home: Path, stage_flow: Callable[..., T], **parameters: Any) -> T:
    """Run a single stage's flow, on Prefect's temporary server unless another is configured."""
    with quiet_prefect(home), tags("flywheel"):
        return stage_flow(home=home, **parameters)


@flow(name="synthesis", flow_run_name="synthesis of iteration {turn}, {kind}")
def synthesis_flow(
    home: Path, turn: PositiveInt = 1, kind: SynthesisKind = "all", allowance: BudgetConfig | None = None, patience_seconds: float = 0.0
) -> Rows:
    """Synthesize the questions and training examples of an iteration, or one `kind` of them.

    Stops when `allowance` or the home's budget is spent; the next call resumes.
    """
    with open_home(home, patience_seconds) as context:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.synthesis.stage import synthesise

            return synthesise(context, run, turn, kind)

        budget = context.config.budget
        meter = _meter(context, turn) if allowance is None else slice_meter(context.lake, context.home.root, turn, allowance, budget)
        return _stage(context, synthesis_id(turn, kind), "synth", turn, work, "" if kind == "all" else kind, meter)


@flow(name="training", flow_run_name="{stage} of iteration {turn}, {variant}")
def training_flow(home: Path, stage: TrainingStage, turn: NonNegativeInt = 1, variant: Variant | Literal[""] = "") -> Rows:
    """Train one stage of an iteration, or a `variant` of it, from the policy of `parent_id`."""
    with open_home(home) as context:
        parent = "" if stage == "init" else context.policy(parent_id(context.lake, context.config, stage, turn, variant)).id
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
    """Evaluate a policy on a suite of the home; each `occasion` is a separate evaluation."""
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
    """Sample trajectories of a policy, or of the home's teacher, on the tasks that match a SQL condition."""
    from flows.stages.rollouts import SamplingPlan, not_played, not_stored, sample, sample_teacher, wanted_of_policy, wanted_of_teacher

    with open_home(home) as context:
        record = None if policy == TEACHER else context.policy(policy)
        plan = SamplingPlan(condition, samples, temperature, horizon or context.config.evaluation.horizon)
        run_id = sampling_id(policy, asdict(plan))
        requests = wanted_of_teacher(context, plan) if record is None else wanted_of_policy(context, record, plan, run_id)
        left = not_played if record is None else not_stored
        if left(context.lake, requests):  # matching tasks may have been added since
            reopen(context.lake, run_id)

        def work(run: StageRun) -> dict[str, Any]:
            return sample_teacher(context, requests, run) if record is None else sample(context, record, requests, run)

        return _stage(context, run_id, "rollout", 1 if record is None else record.wheel_turn, work)


@flow(name="gate", flow_run_name="gate of iteration {turn}")
def gate_flow(home: Path, turn: PositiveInt = 1) -> Rows:
    """Promote the iteration's candidate or keep the champion, then write the report, which shows the decision."""
    with open_home(home) as context:

        def work(run: StageRun) -> dict[str, Any]:
            from flows.stages.gate import promote

            return promote(context, turn)

        decided = bool(context.lake.runs("id = ? AND state = 'completed'", [gate_id(turn)]))
        rows = _stage(context, gate_id(turn), "gate", turn, work)
        if not decided:
            from flows.report import build_report

            build_report(context.lake, context.home.report)
        return rows


FLOWS: dict[Kind, Callable[..., Any]] = {
    Kind.SYNTHESIS: synthesis_flow,
    Kind.TRAINING: training_flow,
    Kind.EVALUATION: evaluation_flow,
    Kind.GATE: gate_flow,
}


@contextmanager
def open_home(home: Path, patience_seconds: float = 0.0) -> Iterator[RunContext]:
    """Return the enclosing flow's context, or open the home, with retries after a fault."""
    with ExitStack() as stack:
        if is_open(home):
            yield stack.enter_context(open_context(home))
        else:
            config = Home(home).load().attempts
            context = attempt("open the home", lambda: stack.enter_context(open_context(home, patience_seconds)), config)
            try:
                yield context
            except TerminationSignal:  # stopping the engines may hang
                exit_after()
                raise


def _stage(context: RunContext, run_id: str, stage: str, turn: int, work: Work, variant: str = "", meter: Meter | None = None) -> Rows:
    settings = context.config.for_turn(max(turn, 1)).model_dump(mode="json") | {"variant": variant or "scaling"}
    return figure_rows(run_stage(context, run_id, stage, turn, settings, work, meter))


def _meter(context: RunContext, turn: int) -> Meter:
    return turn_meter(context.lake, context.home.root, turn, context.config.budget)


# A stage: attempts and events


def run_stage(
    context: RunContext, run_id: str, stage: str, turn: int, settings: dict[str, Any], work: Work, meter: Meter | None = None
) -> dict[str, Any]:
    """Run a stage as `run_id` unless it is done, and return its metrics.

    A machine fault is retried with new engines. The outcome is sent as an event and shown in Prefect.

    Raises:
        BudgetSpent: The iteration's budget leaves nothing for the stage.
        RequestError: The request is invalid.
        WorkerDied: A process that the stage needs died in every attempt.
    """
    config, root = context.config, context.home.root

    def report(kind: EventKind, sentence: str, facts: dict[str, Any]) -> None:
        notify(Event(kind, root, run_id, sentence, facts), config.events, context.lake)

    def once() -> tuple[bool, dict[str, Any]]:
        return run_attempt(context.lake, run_id, stage, turn, settings, lambda run: work(context.watch(run)), meter)

    try:
        worked, metrics = attempt(run_id, once, config.attempts, context.stop_engines)
    except BudgetSpent as error:
        report(EventKind.stopped_run, str(error), {})
        raise
    except RequestError:
        raise
    except Exception as error:
        report(EventKind.stopped_run, f"{run_id} failed: {with_type(error)}", {})
        raise
    if worked:
        show_in_prefect(root, run_id, stage, metrics)
        if metrics.get("promoted"):
            report(EventKind.promotion, str(metrics["reason"]), metrics)
        if "stopped" in metrics and meter is not None and meter.ends:  # a pause is no event
            report(EventKind.stopped_run, str(metrics["stopped"]), metrics)
    return metrics


def attempt(name: str, work: Callable[[], T], config: AttemptConfig, recover: Callable[[], None] = lambda: None) -> T:
    """Run `work` as a Prefect task and retry it after a machine fault; `recover` runs before each retry.

    Invalid requests, critical metrics and bugs are not retried.
    """

    def tried() -> T:
        try:
            return work()
        except TerminationSignal:
            exit_after()
            raise
        except Exception as error:
            if is_fault(error):
                log.warning("%s: %s", name, with_type(error))
                recover()
            raise

    def worth_another(task: Task[..., Any], run: Any, state: State[Any]) -> bool:
        return isinstance(state.data, BaseException) and is_fault(state.data)

    # A task asks the server for the limits of all its tags, which takes two seconds. A temporary server has no limits.
    own = {"flywheel", *TagsContext.get().current_tags} if PREFECT_API_URL.value() is not None else set()
    with TagsContext(current_tags=set()):
        return Task(
            tried,
            name=name,
            task_run_name=name,
            tags=sorted(own),
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=config.retries,
            retry_delay_seconds=exponential_backoff(config.first_pause_seconds),
            retry_condition_fn=worth_another,
            timeout_seconds=None if config.timeout_hours is None else config.timeout_hours * 3600,
        )()


def is_fault(error: BaseException) -> bool:
    """Return whether a retry may succeed: a disk, network, database, Ray or engine failed."""
    if isinstance(error, LASTING):
        return False
    if type(error) is duckdb.Error:  # DuckLake reports errors of its catalogue database this way
        return True
    return isinstance(error, FAULTS) or any(kind.__module__.split(".")[0] in REMOTE for kind in type(error).__mro__)


# One attempt


def run_attempt(
    lake: Lake, run_id: str, stage: str, turn: int, settings: dict[str, Any], work: Work, meter: Meter | None = None
) -> tuple[bool, dict[str, Any]]:
    """Make one attempt at a stage, with its row in `runs`, which names the code. Return whether there was work to do, and the metrics.

    An attempt that resumes an earlier one reads the same snapshot, unless the settings changed or the earlier request was rejected.

    Raises:
        BudgetSpent: `meter` has nothing left; the stage is skipped, with a record.
        WorkerDied: A process that the stage needs died; recorded, with its log in the home.
    """
    earlier = next(iter(lake.runs("id = ?", [run_id])), None)
    if earlier is not None and earlier.state == "completed":
        log.info("%s is done: nothing to do", run_id)
        return False, _without_code(earlier.figures)
    own = digest(identity(settings))
    begun = earlier.snapshot_before if earlier is not None and earlier.config_digest == own else None
    before = lake.snapshot() if begun is None else begun
    so_far: dict[str, Any] = {} if earlier is None else {EARLIER: round(seconds_of(earlier), 2)}
    codes = [] if earlier is None else str(earlier.figures.get(CODE, "")).split()
    so_far[CODE] = " ".join(dict.fromkeys([*codes, code_digest()]))
    run = Run(run_id, stage, turn, settings, own, before, None, "running", datetime.now(UTC), figures=so_far)
    if stage != "synth":  # synthesis always makes what later iterations need and stops afterwards
        _check_budget(lake, run, meter)
    lake.replace([run])
    if meter is not None:
        meter.begin()
    at_work = StageRun(lake, run, meter)
    log.info("%s begins", run_id)
    try:
        metrics = work(at_work)
        at_work.flush()
    except BaseException as error:
        # After a rejected request the next attempt reads the current snapshot, unless steps were made.
        refused = isinstance(error, RequestError) and begun is None and at_work.step is None
        metrics = so_far | _paused(at_work) | {"error": _SIGNALS.get(type(error)) or with_type(error)}
        failed = replace(run, state="failed", finished=datetime.now(UTC), figures=metrics)
        lake.replace([replace(failed, snapshot_before=None) if refused else failed])
        at_work.flush()
        if isinstance(error, WorkerDied):
            raise _recorded(lake, run, error) from error
        raise
    finished = datetime.now(UTC)
    metrics = {**metrics, "seconds": round((finished - run.started).total_seconds(), 2), **so_far} | _paused(at_work)
    metrics |= {"stopped": at_work.stopped} if at_work.stopped else {}
    state = "paused" if at_work.stopped and meter is not None and not meter.ends else "completed"
    lake.replace([replace(run, state=state, finished=finished, snapshot_after=lake.snapshot(), figures=metrics)])
    keep_up(lake)
    return True, _without_code(metrics)


def _without_code(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name != CODE}


def _check_budget(lake: Lake, run: Run, meter: Meter | None) -> None:
    found = meter.overspent() if meter is not None and meter.ends else None
    if found is not None:
        reason = f"{run.id} is left out: {found[1]}"
        lake.add([over_budget(run, found[0], reason)])
        raise BudgetSpent(f"{reason}; raise budget.{found[0]}, or continue with the next turn.")


def _recorded(lake: Lake, run: Run, died: WorkerDied) -> WorkerDied:
    kept = died.kept_in(Home(lake.place.home).logs)
    item = {"run": run.id, "log": kept.file.name if kept.file is not None else None}
    lake.add([Failure(run.stage, "worker_died", f"{died.what} died, {died.how}", item)])
    return kept


def _paused(run: StageRun) -> dict[str, float]:
    return {"paused_seconds": round(run.paused_seconds, 2)} if run.paused_seconds else {}
