"""Tool worlds that a teacher writes from descriptions: one batch per world, with its tasks, demonstrations and failures.

Training tasks are decontaminated against the suites, including the tasks of the same world that a suite takes. A task with a simulated user
is compared by the user's goal, because its question says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from flows.stages.synthesis.batches import Batch, Guard, Made, Work
from synth.questions.decontamination import EvaluationIndex
from synth.worlds.world_writer import write_world
from synth.worlds.writing_config import STAGE, WrittenWorldsConfig, read_description
from synth.worlds.written_tasks import demonstrate, goal_in_words, share_out
from warehouse import Task
from warehouse.digests import seed_from
from warehouse.records import Failure


def tool_worlds(work: Work, guard: Guard) -> Iterator[Batch]:
    """The worlds of every description, one after the other."""
    config = work.settings.tool_worlds
    if config is None:
        return
    described = [(path, number) for path in config.descriptions for number in range(config.worlds)]
    for place, (path, number) in enumerate(described):
        yield Batch(STAGE, place, partial(_write, work, guard, config, path, number))


def _write(work: Work, guard: Guard, config: WrittenWorldsConfig, path: Path, number: int) -> Made:
    name = path.stem if config.worlds == 1 else f"{path.stem}-{number}"
    seed = seed_from(work.seed(STAGE), path.name, number)
    made = write_world(name, read_description(path), work.asked(STAGE), config, seed)
    stored = work.keys()
    shared = share_out([task for task in made.tasks if task.key not in stored], config, seed)
    suites = guard.suites()
    suites[config.suite] = [*suites.get(config.suite, ()), *shared.held_out]
    index = EvaluationIndex.of(suites, work.settings.decontamination)
    trained, met = _clear(index, shared.trained)
    demonstrated, met_too = _clear(index, shared.demonstrated)
    examples, dropped = index.clear_examples(demonstrate(demonstrated, work.turn))
    work.count(
        **made.counts,
        conversations=sum(task.question != goal_in_words(task) for task in trained),
        held_out=len(shared.held_out),
        demonstrated=len(examples),
    )
    return [*trained, *shared.held_out, *demonstrated, *examples], [*made.failures, *met, *met_too, *dropped]


def _clear(index: EvaluationIndex, tasks: Sequence[Task]) -> tuple[list[Task], list[Failure]]:
    """The tasks that match no suite, and a failure for each of the others."""
    clear, met = index.clear_tasks([replace(task, question=goal_in_words(task)) for task in tasks])
    kept = {task.key for task in clear}
    return [task for task in tasks if task.key in kept], met
