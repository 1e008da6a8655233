"""What the supervised stages of an iteration would train on: counted from the lake and the configuration before anything starts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb

from flows.config import FlywheelConfig
from flows.plan import policy_id, synthesis_id
from flows.results import judged_trajectories
from rl.envs.base import offered_tools
from rl.renderers.base import Schema
from rl.retrieval.search import SearchIndex
from rl.supervised.config import StoredRunsConfig
from synth.demonstrations.cold_start import choose_runs
from synth.parts import CPT_KINDS, SFT_KINDS
from warehouse import Document, Lake
from warehouse.errors import RequestError, first_line

Counts = dict[str, int | None]
"""Examples by source; None where only the stage itself can tell."""


def check_training_data(config: FlywheelConfig, home: Path, done: set[str], iteration: int) -> dict[str, Counts]:
    """What each supervised stage of an iteration that is still to do would train on, by its sources.

    Raises:
        RequestError: a stage would train on nothing, or `where` is not SQL.
    """
    todo: list[str] = [stage for stage in ("cpt", "sft") if stage in config.wheel.stages and policy_id(iteration, stage) not in done]
    if not todo:
        return {}
    lake = Lake(home, read_only=True) if (home / "lake").is_dir() else None
    try:
        made = lake is not None and synthesis_id(iteration) in done
        found, reasons = dict[str, Counts](), Counter[str]()
        for stage in todo:
            if made and lake is not None:
                found[stage] = {"examples": examples_made(lake, stage, iteration)}
            elif stage == "cpt":
                found[stage] = _texts(config, lake, iteration)
            else:
                found[stage] = {
                    source: _runs(config, lake, source, iteration, reasons) for source in config.for_turn(iteration).sft.sources
                }
    finally:
        if lake is not None:
            lake.close()
    for stage, counts in found.items():
        if not any(count is None or count for count in counts.values()):
            raise RequestError(_empty(config, home, stage, iteration, reasons if stage == "sft" else Counter()))
    return found


def examples_made(lake: Lake, stage: str, iteration: int) -> int:
    """The examples of CPT or SFT that synthesis of an iteration has made."""
    kinds = list(CPT_KINDS if stage == "cpt" else SFT_KINDS)
    sql = "SELECT count(*) AS n FROM examples WHERE wheel_turn = ? AND list_contains(?, kind)"
    return int(lake.query(sql, [iteration, kinds]).column("n")[0].as_py())


def _texts(config: FlywheelConfig, lake: Lake | None, iteration: int) -> Counts:
    """What CPT would read: as many as are asked for; decisions depend on trajectories of earlier iterations."""
    synth = config.for_turn(iteration).synth
    graph = config.corpus.kind != "pages"
    plans, reasoning = graph or synth.fas.plans == "teacher", graph or synth.fas.reasoner == "teacher"
    asked: Counts = {
        "fas": plans * synth.fas.plan_slices + reasoning * sum(synth.fas.reasoning.values()),
        "has": 0 if iteration == 1 or not synth.has_count else None,
        "documents": synth.documents,
        "again": 0 if lake is None or iteration == 1 else examples_made(lake, "cpt", 1),
    }
    return {source: asked[source] for source in config.for_turn(iteration).cpt.sources}


def _runs(config: FlywheelConfig, lake: Lake | None, source: str, iteration: int, reasons: Counter[str]) -> int | None:
    """The runs that SFT would learn from, of one source; why stored runs are not taken is counted in `reasons`."""
    settings = config.for_turn(iteration)
    match source:
        case "oracle" if settings.synth.tool_worlds is not None:
            return None
        case "oracle":
            return 0 if config.corpus.kind == "pages" else sum(settings.synth.demonstration_questions.wanted().values())
        case "teacher":
            return None
        case "own":
            return 0 if iteration == 1 or not settings.synth.rejection_samples else None
        case "again":
            return 0 if lake is None or iteration == 1 else examples_made(lake, "sft", 1)
        case "imported":
            return 0 if lake is None else _stored(config, lake, "stage = 'import'", settings.sft.imported, iteration, "imported", reasons)
        case _:
            return 0 if lake is None else _stored(config, lake, "TRUE", settings.sft.rollouts, iteration, "rollouts", reasons)


def _stored(
    config: FlywheelConfig, lake: Lake, chosen: str, choice: StoredRunsConfig, iteration: int, part: str, reasons: Counter[str]
) -> int:
    """How many stored runs become examples, by the rule of the cold start."""
    try:
        runs = judged_trajectories(lake, f"({chosen}) AND ({choice.where})")
    except duckdb.Error as error:
        raise RequestError(f"sft.{part}.where is no condition on the table trajectories: {first_line(error)}") from error
    if not runs:
        return 0
    tasks = {task.key: task for task in lake.tasks()}
    asked = {key for key, task in tasks.items() if task.split in config.evaluation.all_suites}
    tools = tools_of(config, iteration) if choice.tools or part == "rollouts" else ()
    own = frozenset(policy.id for policy in lake.policies())
    examples, failures = choose_runs(runs, tasks, choice, tools, own, 0, iteration, asked)
    reasons.update(f"{failure.kind.removeprefix('cold_start_')} ({failure.reason[:200]})" for failure in failures)
    return len(examples)


def tools_of(config: FlywheelConfig, iteration: int) -> tuple[Schema, ...]:
    """The tools of the environment that questions of an iteration are asked in."""
    searched = SearchIndex([Document("any", "any", "any", "any")])  # the tools do not depend on which documents are searched
    return offered_tools(config.for_turn(iteration).synth.webshaper.environment, config.rollout.environments, searched)


def _empty(config: FlywheelConfig, home: Path, stage: str, iteration: int, reasons: Counter[str]) -> str:
    settings = config.for_turn(iteration)
    sources = ", ".join(settings.cpt.sources if stage == "cpt" else settings.sft.sources)
    why = "; ".join(f"{count} runs are not taken: {reason}" for reason, count in reasons.most_common(1))
    hint = why or (
        "import runs with `flywheel import`, or name another source" if stage == "sft" else "name another source, or raise its count"
    )
    return f"{policy_id(iteration, stage)} would train on nothing: {stage}.from names {sources}, and {home} has no example of it; {hint}."


def describe_counts(found: dict[str, Counts]) -> dict[str, dict[str, Any]]:
    """The counts as JSON shows them."""
    return {stage: {name: "known later" if count is None else count for name, count in counts.items()} for stage, counts in found.items()}
