"""Run a suite: store its tasks, make the missing attempts, and store each trajectory and verdict as it ends.

A suite has its own engines and environments, since its limits, options and documents differ from the home's. Its documents never enter the
lake, where training could find them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow

from eval.suites.tasks import SUITE
from flows.context import RunContext, StageRun
from flows.data.imports import PLACE
from flows.pipeline import open_home, run_stage
from flows.plan import evaluation_id
from flows.suites.config import SuiteConfig, limits_of
from flows.suites.results import check_same, policies_on
from flows.suites.tasks import SuiteTasks, digest_of, draw_tasks
from rl.rollouts.config import RolloutConfig
from warehouse import Lake, Policy, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError


@flow(name="suite", flow_run_name="suite {suite.name} of {policy}", validate_parameters=False)
def suite_flow(home: Path, policy: str, suite: SuiteConfig) -> dict[str, Any]:
    """Run a policy's missing attempts at `suite` and return counts.

    Raises:
        RequestError: There is no such policy, the suite's data is missing, or the home has run another suite under this name.
    """
    with open_home(home) as context:
        record = context.policy(policy)
        check_same(context.lake, suite)
        drawn = draw_tasks(suite, context.config, context.lake)

        def work(run: StageRun) -> dict[str, Any]:
            return run_suite(context, record, suite, drawn, run)

        settings = {SUITE: suite.model_dump(mode="json")}
        return run_stage(context, evaluation_id(policy, suite.name), "eval", record.wheel_turn, settings, work)


def run_suite(context: RunContext, policy: Policy, suite: SuiteConfig, drawn: SuiteTasks, run: StageRun) -> dict[str, Any]:
    """Make the missing attempts. Return the numbers of tasks, of attempts and of those made now, and the digests of tasks and documents."""
    context.verifiers(listed=suite.own_verifier, tasks=drawn.tasks)
    searched = same_documents(context.lake, suite, drawn)
    _keep_tasks(context.lake, suite, drawn)
    attempts = {f"{policy.id}-{task.key}-{sample}": (task, sample) for task in drawn.tasks for sample in range(suite.samples)}
    stored = context.lake.existing(Trajectory, list(attempts))
    missing = {trajectory_id: attempt for trajectory_id, attempt in attempts.items() if trajectory_id not in stored}
    if missing:
        from flows.stages.rollouts import request, roll_out  # imports Ray and transformers

        requests = [
            request(
                context, policy, task, trajectory_id, "eval", suite.horizon, suite.temperature, suite.name, sample,
                seed=seed_from(suite.seed, policy.id, task.key, sample),
            )
            for trajectory_id, (task, sample) in missing.items()
        ]  # fmt: skip
        documents = context.lake.documents() if drawn.documents is None else drawn.documents
        with context.other_rollouts(rollout_config(suite, context.config.rollout), context.folder(policy), documents) as rollouts:
            roll_out(context, rollouts, requests, run, suite.own_verifier)
    counts = {"tasks": len(drawn.tasks), "attempts": len(attempts), "made": len(missing)}
    return {**counts, "tasks_digest": drawn.digest, "documents_digest": searched}


def rollout_config(suite: SuiteConfig, home: RolloutConfig) -> RolloutConfig:
    """Return the home's settings with the suite's limits and environment. Raise RequestError for an unknown limit."""
    limits = limits_of(suite, home)
    kinds = dict(home.environments.kinds)
    if suite.environment is not None and suite.kind is not None:
        kinds[suite.environment] = suite.kind
    return home.model_copy(update={"limits": limits, "environments": home.environments.model_copy(update={"kinds": kinds})})


def same_documents(lake: Lake, suite: SuiteConfig, drawn: SuiteTasks) -> str | None:
    """Return the digest of the suite's own documents. Raise RequestError if other policies searched different ones."""
    found = drawn.documents_digest
    for run in lake.runs("stage = 'eval' AND state = 'completed'"):
        earlier = run.figures.get("documents_digest")
        if earlier not in (None, found) and run.id in {evaluation_id(policy, suite.name) for policy in policies_on(lake, suite.name)}:
            raise RequestError(
                f"the documents of the suite {suite.name} differ from those that {lake.place.home} was evaluated on: rename the suite "
                f"with --set name=NAME."
            )
    return found


def _keep_tasks(lake: Lake, suite: SuiteConfig, drawn: SuiteTasks) -> None:
    """Store the tasks. Raise RequestError if different ones were attempted or imported before."""
    stored = lake.tasks(split=suite.name)
    if stored and digest_of(stored) != drawn.digest:
        if policies_on(lake, suite.name):
            raise RequestError(
                f"the tasks of the suite {suite.name} differ from those that {lake.place.home} was evaluated on: its data has changed; "
                f"rename the suite with --set name=NAME."
            )
        if any(PLACE in task.provenance for task in stored):
            raise RequestError(f"{lake.place.home} has imported other tasks as {suite.name}: rename this suite with --set name=NAME.")
        lake.remove(Task, [task.key for task in stored])
    lake.add([*drawn.tasks, *drawn.failures])
