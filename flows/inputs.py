"""What each stage of an iteration needs from the lake: RL tasks, CPT and SFT examples, suite tasks, and a parent policy.

`check_inputs` reports every problem before anything starts; `choose_tasks` and `check_before` check again when a stage begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from eval.suites.tasks import suite_of
from flows.config import FlywheelConfig
from flows.lakes import by_suite, maker_of
from flows.plan import next_turn, parent_id, policy_id, stage_before, synthesis_id
from flows.results import judged_trajectories
from rl.curriculum import check_tasks
from rl.envs.base import check_environment, offered_tools
from rl.renderers.base import Schema
from rl.retrieval.search import SearchIndex
from rl.supervised.config import StoredRunsConfig
from synth.demonstrations.cold_start import choose_runs
from synth.parts import CPT_KINDS, SFT_KINDS
from synth.questions.decontamination import EvaluationIndex
from warehouse import Document, Failure, Lake, Task
from warehouse.errors import RequestError, first_line

Counts = dict[str, int | None]
"""Number of examples by source; None if it depends on earlier stages."""


def check_inputs(config: FlywheelConfig, home: Path, lake: Lake | None, done: set[str], whole: bool = True) -> dict[str, Counts]:
    """Check the inputs of the next iteration's stages as far as known; `lake` is None if `home` has none yet.

    Args:
        done: Ids of the completed runs.
        whole: False checks only the tasks of RL.

    Returns:
        The example counts of each pending supervised stage.

    Raises:
        RequestError: `rl.tasks` is not SQL, selects tasks of suites, or does not satisfy the curriculum; a suite has no tasks; or a stage
            would train on nothing.
    """
    _check_rl_tasks(config, home, lake, done)
    if not whole:
        return {}
    _check_suites(config, home, lake)
    return training_counts(config, home, lake, done, next_turn(done))


# RL tasks


def check_conditions(config: FlywheelConfig) -> None:
    """Raise RequestError if `rl.tasks` of any iteration is not a single SQL condition."""
    for iteration in (1, 2) if config.later else (1,):
        condition = config.for_turn(iteration).rl.tasks
        try:
            statements = duckdb.extract_statements(_query(condition))
        except duckdb.Error as error:
            raise RequestError(f"rl.tasks = {condition!r} is not a valid condition on the table tasks: {first_line(error)}") from error
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise RequestError(f"rl.tasks = {condition!r} is more than a condition on the table tasks: write only what follows WHERE.")


def choose_tasks(lake: Lake, config: FlywheelConfig, iteration: int, at: int | None = None) -> tuple[list[Task], list[Failure]]:
    """Return the tasks that an iteration's RL may draw at snapshot `at`, and failures for those that match a suite's task.

    The matching suite may have been added later. Raises RequestError as `check_inputs`.
    """
    found = _selected(lake, config, iteration, at)
    suites, _ = by_suite(lake.tasks(at=at), config)
    tasks, met = EvaluationIndex.of(suites, config.synth.decontamination).clear_tasks(found)
    if met and not tasks:
        raise RequestError(f"all {len(met)} tasks that match rl.tasks overlap with suites, for example {met[0].reason}: import others.")
    if not tasks:
        raise RequestError(_no_task(config, iteration, lake.place.home))
    _check_environments(tasks, config)
    check_tasks(tasks, config.for_turn(iteration).rl.horizon)
    return tasks, met


def _check_rl_tasks(config: FlywheelConfig, home: Path, lake: Lake | None, done: set[str]) -> None:
    iteration = next_turn(done)
    if "rl" not in config.for_turn(iteration).wheel.stages:
        return
    complete = synthesis_id(iteration) in done or not config.for_turn(iteration).synth.makes_tasks
    found = [] if lake is None else _selected(lake, config, iteration)
    if lake is not None:
        _check_environments([*found, *_of_suites(lake, config)], config)
    if complete and not found:
        raise RequestError(_no_task(config, iteration, home))
    if complete:
        check_tasks(found, config.for_turn(iteration).rl.horizon)


def _query(condition: str) -> str:
    return f"SELECT key FROM tasks WHERE ({condition}\n)"  # the line break ends a comment in the condition


def _selected(lake: Lake, config: FlywheelConfig, iteration: int, at: int | None = None) -> list[Task]:
    condition = config.for_turn(iteration).rl.tasks
    try:
        keys = lake.query(_query(condition), at=at).column("key").to_pylist()
    except RequestError as error:
        raise RequestError(f"rl.tasks = {condition!r} is not a valid condition on the table tasks: {error}") from error
    tasks = lake.read(Task, "key IN (SELECT unnest(?))", [keys], at)
    held_out = [task for task in tasks if suite_of(task) is not None or task.split in config.evaluation.all_suites]
    if held_out:
        suites = ", ".join(sorted({suite_of(task) or task.split for task in held_out}))
        raise RequestError(
            f"rl.tasks = {condition!r} matches {len(held_out)} tasks of {suites}, which is for evaluation: exclude them, for example with "
            "AND split = 'train'."
        )
    return tasks


def _of_suites(lake: Lake, config: FlywheelConfig) -> list[Task]:
    return lake.read(Task, "split IN (SELECT unnest(?))", [list(config.evaluation.all_suites)])


def _check_environments(tasks: Iterable[Task], config: FlywheelConfig) -> None:
    by_name = {task.environment: task.key for task in tasks}
    for name in sorted(by_name.keys() - config.rollout.environments.kinds.keys()):
        try:
            check_environment(name, config.rollout.environments)
        except RequestError as error:
            raise RequestError(f"the environment of the task {by_name[name]} cannot be created: {error}") from error


def _no_task(config: FlywheelConfig, iteration: int, home: Path) -> str:
    return (
        f"{home} has no task that matches rl.tasks = {config.for_turn(iteration).rl.tasks!r}: import some with `flywheel import tasks`, "
        "generate some (synth.webshaper.counts, synth.seeds, synth.tool_worlds), or change the condition."
    )


# Suite tasks and chosen tasks


def _check_suites(config: FlywheelConfig, home: Path, lake: Lake | None) -> None:
    stored = set() if lake is None else {task.split for task in _of_suites(lake, config)}
    worlds = config.for_turn(1).synth.tool_worlds
    for name, suite in config.evaluation.all_suites.items():
        if name not in stored and not any(suite.wanted().values()) and (worlds is None or worlds.suite != name):
            raise RequestError(
                f"{config.evaluation.setting_of(name)} has no task and requests none: import some with `flywheel import tasks FILE --split "
                f"{name} --environment NAME --verifier NAME --home {home}`, raise its counts, or remove the suite."
            )


def tasks_with(lake: Lake, condition: str) -> list[Task]:
    """Return the tasks that match the SQL `condition`. Raise RequestError if there are none or it is not SQL."""
    try:
        tasks = lake.read(Task, condition)
    except duckdb.Error as error:
        raise RequestError(f"--tasks is not a valid condition on the table tasks: {first_line(error)}") from error
    if not tasks:
        counts = lake.query("SELECT split, count(*) AS n FROM tasks GROUP BY split ORDER BY split").to_pylist()
        has = ", ".join(f"{row['n']:,} in {row['split']}" for row in counts) or "none at all"
        raise RequestError(f"{lake.place.home} has no task that matches {condition}; it has {has}; {bringing_tasks(lake.place.home)}.")
    return tasks


def bringing_tasks(home: Path, split: str = "train") -> str:
    """Hint with the commands that add tasks to a home."""
    return f"make some with `flywheel synth --home {home}`, or import yours with `flywheel import tasks PATH --split {split} --home {home}`"


# Examples of CPT and SFT


def training_counts(config: FlywheelConfig, home: Path, lake: Lake | None, done: set[str], iteration: int) -> dict[str, Counts]:
    """Count what each pending supervised stage of an iteration would train on, by source.

    Raises:
        RequestError: A stage would train on nothing, or a `where` is not SQL.
    """
    found, reasons = dict[str, Counts](), Counter[str]()
    for stage in ("cpt", "sft"):
        if stage not in config.for_turn(iteration).wheel.stages or policy_id(iteration, stage) in done:
            continue
        if lake is not None and synthesis_id(iteration) in done:
            found[stage] = {"examples": examples_made(lake, stage, iteration)}
        elif stage == "cpt":
            found[stage] = _texts(config, lake, iteration)
        else:
            found[stage] = {source: _runs(config, lake, source, iteration, reasons) for source in config.for_turn(iteration).sft.sources}
    for name, counts in found.items():
        if not any(count is None or count for count in counts.values()):
            raise RequestError(_empty(config, home, name, iteration, reasons if name == "sft" else Counter()))
    return found


def examples_made(lake: Lake, stage: str, iteration: int) -> int:
    """Number of examples for CPT or SFT that synthesis of an iteration has made."""
    kinds = list(CPT_KINDS if stage == "cpt" else SFT_KINDS)
    sql = "SELECT count(*) AS n FROM examples WHERE wheel_turn = ? AND list_contains(?, kind)"
    return int(lake.query(sql, [iteration, kinds]).column("n")[0].as_py())


def check_examples(lake: Lake, config: FlywheelConfig, stage: str, iteration: int) -> None:
    """Raise RequestError if CPT or SFT of an iteration has no examples. Other stages need none."""
    if stage in ("cpt", "sft") and not examples_made(lake, stage, iteration):
        home, settings = lake.place.home, config.for_turn(iteration)
        sources = ", ".join(settings.cpt.sources if stage == "cpt" else settings.sft.sources)
        raise RequestError(
            f"{policy_id(iteration, stage)} has nothing to train on: {stage}.from lists {sources}, which gave no example "
            f"(a policy without a success has none of its own): add another source. What was dropped, and why: "
            f'flywheel sql "SELECT kind, reason, count(*) FROM failures GROUP BY ALL" --home {home}'
        )


def _texts(config: FlywheelConfig, lake: Lake | None, iteration: int) -> Counts:
    """Count the CPT examples by source, from the configured numbers. Decision records depend on earlier trajectories."""
    synth = config.for_turn(iteration).synth
    graph = config.corpus.trains_on_facts
    plans, reasoning = graph or synth.fas.plans == "teacher", graph or synth.fas.reasoner == "teacher"
    imported = lake is not None and bool(lake.query("SELECT id FROM trajectories WHERE stage = 'import' LIMIT 1").num_rows)
    seeds = synth.seeds.count if synth.fas.plan_seeds and synth.seeds is not None else 0
    wanted: Counts = {
        "fas": seeds + plans * synth.fas.plan_slices + reasoning * sum(synth.fas.reasoning.values()),
        "has": None if synth.has_count and (iteration > 1 or imported) else 0,
        "documents": synth.documents,
        "again": 0 if lake is None or iteration == 1 else examples_made(lake, "cpt", 1),
    }
    return {source: wanted[source] for source in config.for_turn(iteration).cpt.sources}


def _runs(config: FlywheelConfig, lake: Lake | None, source: str, iteration: int, reasons: Counter[str]) -> int | None:
    """Count the runs of a source that SFT would use; `reasons` counts why stored runs are rejected."""
    settings = config.for_turn(iteration)
    match source:
        case "oracle" if settings.synth.tool_worlds is not None:
            return None
        case "oracle":
            return sum(settings.synth.demonstration_questions.wanted().values()) if config.corpus.trains_on_facts else 0
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
    try:
        runs = judged_trajectories(lake, f"({chosen}) AND ({choice.where})")
    except duckdb.Error as error:
        raise RequestError(f"sft.{part}.where is not a valid condition on the table trajectories: {first_line(error)}") from error
    if not runs:
        return 0
    tasks = {task.key: task for task in lake.tasks()}
    held_out = {key for key, task in tasks.items() if task.split in config.evaluation.all_suites}
    tools = tools_of(config, iteration) if choice.tools or part == "rollouts" else ()
    own = frozenset(policy.id for policy in lake.policies())
    examples, failures = choose_runs(runs, tasks, choice, tools, own, 0, iteration, held_out)
    reasons.update(f"{failure.kind.removeprefix('cold_start_')} ({failure.reason[:200]})" for failure in failures)
    return len(examples)


def tools_of(config: FlywheelConfig, iteration: int) -> tuple[Schema, ...]:
    """The tools of the environment of an iteration's questions."""
    searched = SearchIndex([Document("any", "any", "any", "any")])  # the tools do not depend on the documents
    return offered_tools(config.for_turn(iteration).synth.webshaper.environment, config.rollout.environments, searched)


def _empty(config: FlywheelConfig, home: Path, stage: str, iteration: int, reasons: Counter[str]) -> str:
    settings = config.for_turn(iteration)
    sources = ", ".join(settings.cpt.sources if stage == "cpt" else settings.sft.sources)
    why = "; ".join(f"{count} runs are not used: {reason}" for reason, count in reasons.most_common(1))
    hint = why or (
        "import runs with `flywheel import`, or add another source" if stage == "sft" else "add another source, or raise its count"
    )
    return f"{policy_id(iteration, stage)} would train on nothing: {home} has no example from {sources} ({stage}.from); {hint}."


def describe_counts(found: dict[str, Counts]) -> dict[str, dict[str, Any]]:
    return {stage: {name: "known later" if count is None else count for name, count in counts.items()} for stage, counts in found.items()}


# Preceding stages


def check_before(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str = "") -> None:
    """Raise RequestError if a stage's parent or data is missing, naming the commands to run first, in order."""
    commands = list(dict.fromkeys(_commands_before(lake, config, stage, turn, variant)))
    if commands:
        named = ", then ".join(f"`{command}`" for command in commands)
        raise RequestError(f"{lake.place.home} is not ready for {policy_id(turn, stage, variant)}: run {named} first.")


def _commands_before(lake: Lake, config: FlywheelConfig, stage: str, turn: int, variant: str) -> Iterator[str]:
    home, parent = lake.place.home, parent_id(lake, config, stage, turn, variant)
    if not lake.policies("id = ?", [parent]):
        before = stage_before(config, stage, turn, variant)
        if before is not None:
            yield from _commands_before(lake, config, before, turn, variant)
        yield str(maker_of(parent, home))
    if not lake.runs("id = ? AND state = 'completed'", [synthesis_id(turn)]) and not _has_data(lake, config, stage, turn):
        yield f"flywheel synth --home {home} --turn {turn}"


def _has_data(lake: Lake, config: FlywheelConfig, stage: str, turn: int) -> bool:
    settings = config.for_turn(turn)
    if stage != "rl":
        return bool(examples_made(lake, stage, turn))
    return not settings.synth.makes_tasks or bool(lake.query(f"SELECT key FROM tasks WHERE ({settings.rl.tasks}\n) LIMIT 1").num_rows)
