"""Which tasks RL draws from: those that meet the condition `rl.tasks`, and that no suite asks in some form.

All that can be wrong with the choice is said before a policy is trained: by `check_choice` before a run starts, where the lake can tell by
then, and by `choose_tasks` when synthesis ends and when the stage begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from eval.suites.tasks import suite_of
from flows.config import FlywheelConfig
from flows.data.decontamination import by_suite, settings_of
from flows.home import Home
from flows.plan import completed, next_turn, synthesis_id
from rl.curriculum import check_tasks
from rl.envs.base import check_environment
from synth.questions.decontamination import EvaluationIndex
from warehouse import Failure, Lake, Task
from warehouse.errors import RequestError, first_line


def check_choice(config: FlywheelConfig, home: Path | None = None) -> None:
    """Check `rl.tasks` as far as it can be known: its form always, what it meets where `home` has a lake, that it meets enough where
    synthesis of the iteration at hand is done or has no questions to make.

    Raises:
        RequestError: the condition is no SQL, meets what is evaluated on, or cannot give what the curriculum wants.
    """
    for iteration in (1, 2) if config.later else (1,):
        _check_form(config.for_turn(iteration).rl.tasks)
    if home is None or "rl" not in config.wheel.stages:
        return
    done = completed(Home(home))
    iteration = next_turn(done)
    complete = synthesis_id(iteration) in done or not config.for_turn(iteration).synth.makes_tasks
    if (home / "lake").is_dir():
        with Lake(home, read_only=True) as lake:
            found = _meeting(lake, config, iteration)
            _check_environments([*found, *_of_suites(lake, config)], config)
            if complete:
                _check_tasks(found, config, iteration, home)
    elif complete:
        raise RequestError(_none(config, iteration, home))


def check_suites(config: FlywheelConfig, home: Path) -> None:
    """That every suite has tasks in `home`, or synthesis makes some. Raises RequestError with the command that imports them."""
    there, worlds = set[str](), config.for_turn(1).synth.tool_worlds
    if (home / "lake").is_dir():
        with Lake(home, read_only=True) as lake:
            there = {task.split for task in _of_suites(lake, config)}
    for name, suite in config.evaluation.all_suites.items():
        if name in there or any(suite.wanted().values()) or (worlds is not None and worlds.suite == name):
            continue
        raise RequestError(
            f"{config.evaluation.setting_of(name)} has no task and asks for none: import some with `flywheel import tasks FILE --split "
            f"{name} --environment NAME --verifier NAME --home {home}`, raise its counts, or take the suite out."
        )


def tasks_with(lake: Lake, condition: str) -> list[Task]:
    """The tasks that meet the SQL `condition`. Raises RequestError where there is none, or it is no SQL."""
    try:
        tasks = lake.read(Task, condition)
    except duckdb.Error as error:
        raise RequestError(f"--tasks is no condition on the table tasks: {first_line(error)}") from error
    if not tasks:
        counts = lake.query("SELECT split, count(*) AS n FROM tasks GROUP BY split ORDER BY split").to_pylist()
        has = ", ".join(f"{row['n']:,} in {row['split']}" for row in counts) or "none at all"
        raise RequestError(f"{lake.place.home} has no task with {condition}; it has {has}; {bringing_tasks(lake.place.home)}.")
    return tasks


def bringing_tasks(home: Path, split: str = "train") -> str:
    """What to do where a home has no tasks, by the commands that bring them."""
    return f"make some with `flywheel synth --home {home}`, or import yours with `flywheel import tasks PATH --split {split} --home {home}`"


def choose_tasks(lake: Lake, config: FlywheelConfig, iteration: int, at: int | None = None) -> tuple[list[Task], list[Failure]]:
    """The tasks that RL of an iteration may draw, by key, as snapshot `at` has them; and which are left out because they meet a suite's.

    Synthesis and imports keep clear of the suites that are there by then; this is for suites that came later.

    Raises:
        RequestError: as `check_choice`.
    """
    found = _meeting(lake, config, iteration, at)
    suites, _ = by_suite(lake.tasks(at=at), config)
    tasks, met = EvaluationIndex.of(suites, settings_of(config)).clear_tasks(found)
    if met and not tasks:
        raise RequestError(f"all {len(met)} tasks that meet rl.tasks are asked by suites, such as {met[0].reason}: import others.")
    _check_tasks(tasks, config, iteration, lake.place.home)
    return tasks, met


def _check_form(condition: str) -> None:
    try:
        statements = duckdb.extract_statements(_query(condition))
    except duckdb.Error as error:
        raise RequestError(f"rl.tasks = {condition!r} is no condition on the table tasks: {first_line(error)}") from error
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise RequestError(f"rl.tasks = {condition!r} is more than a condition on the table tasks: write what follows WHERE alone.")


def _query(condition: str) -> str:
    return f"SELECT key FROM tasks WHERE ({condition}\n)"  # the line ends a comment, if the condition does


def _meeting(lake: Lake, config: FlywheelConfig, iteration: int, at: int | None = None) -> list[Task]:
    """The tasks that meet the condition, none of them a suite's."""
    condition = config.for_turn(iteration).rl.tasks
    try:
        keys = lake.query(_query(condition), at=at).column("key").to_pylist()
    except RequestError as error:
        raise RequestError(f"rl.tasks = {condition!r} is no condition on the table tasks: {error}") from error
    tasks = lake.read(Task, "key IN (SELECT unnest(?))", [keys], at)
    held_out = [task for task in tasks if suite_of(task) is not None or task.split in config.evaluation.all_suites]
    if held_out:
        suites = ", ".join(sorted({suite_of(task) or task.split for task in held_out}))
        raise RequestError(
            f"rl.tasks = {condition!r} meets {len(held_out)} tasks of {suites}, which is for evaluation: leave them out, for example by "
            "AND split = 'train'."
        )
    return tasks


def _of_suites(lake: Lake, config: FlywheelConfig) -> list[Task]:
    return lake.read(Task, "split IN (SELECT unnest(?))", [list(config.evaluation.all_suites)])


def _check_environments(tasks: Sequence[Task], config: FlywheelConfig) -> None:
    """That data may name the environments of tasks, and that they can be made."""
    for name in sorted({task.environment for task in tasks}):
        try:
            check_environment(name, config.rollout.environments)
        except RequestError as error:
            key = next(task.key for task in tasks if task.environment == name)
            raise RequestError(f"the environment of the task {key} cannot be made: {error}") from error


def _check_tasks(tasks: Sequence[Task], config: FlywheelConfig, iteration: int, home: Path) -> None:
    """That there are tasks, in environments that data may name and that can be made, and all that the curriculum wants."""
    if not tasks:
        raise RequestError(_none(config, iteration, home))
    _check_environments(tasks, config)
    check_tasks(tasks, config.for_turn(iteration).rl.horizon)


def _none(config: FlywheelConfig, iteration: int, home: Path) -> str:
    return (
        f"{home} has no task that meets rl.tasks = {config.for_turn(iteration).rl.tasks!r}: import some with `flywheel import tasks`, have "
        "synthesis make some (synth.webshaper.counts, synth.seeds, synth.tool_worlds), or give another condition."
    )
