"""Tool worlds that a teacher writes from descriptions, a few worlds per batch, with their tasks, demonstrations and failures.

The worlds of a batch are written concurrently: the parts of a world are sequential, and engines are fast only with many requests. Training
tasks are decontaminated against the suites, including the held-out tasks of the same world. A task with a simulated user is compared by the
user's goal, since its question is uninformative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from flows.stages.synthesis.batches import Batch, Guard, Made, Work
from synth.questions.decontamination import EvaluationIndex
from synth.worlds.world_writer import WrittenTasks, write_world
from synth.worlds.writing_config import STAGE, WrittenWorldsConfig, read_description
from synth.worlds.written_tasks import demonstrate, goal_in_words, share_out
from warehouse import Task
from warehouse.digests import seed_from
from warehouse.records import Failure

AT_ONCE = 4
"""Worlds per batch."""


def tool_worlds(work: Work, guard: Guard) -> Iterator[Batch]:
    config = work.settings.tool_worlds
    if config is None:
        return
    described = [(path, number) for path in config.descriptions for number in range(config.worlds)]
    for place, worlds in work.in_batches(described, AT_ONCE):
        yield Batch(STAGE, place, partial(_write, work, guard, config, worlds))


def _write(work: Work, guard: Guard, config: WrittenWorldsConfig, worlds: Sequence[tuple[Path, int]]) -> Made:
    seed, teacher = work.seed(STAGE), work.asked(f"synth.{STAGE}")

    def write(path: Path, number: int) -> WrittenTasks:
        name = path.stem if config.worlds == 1 else f"{path.stem}-{number}"
        return write_world(name, read_description(path), teacher, config, seed_from(seed, path.name, number))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        made = list(threads.map(write, *zip(*worlds, strict=True)))
    stored = work.keys()
    shared = share_out([task for each in made for task in each.tasks if task.key not in stored], config, seed)
    suites = guard.suites()
    suites[config.suite] = [*suites.get(config.suite, ()), *shared.held_out]
    index = EvaluationIndex.of(suites, work.settings.decontamination)
    trained, met = _clear(index, shared.trained)
    demonstrated, met_too = _clear(index, shared.demonstrated)
    examples, dropped = index.clear_examples(demonstrate(demonstrated, work.turn))
    for each in made:
        work.count(**each.counts)
    work.count(
        conversations=sum(task.question != goal_in_words(task) for task in trained),
        held_out=len(shared.held_out),
        demonstrated=len(examples),
    )
    failures = [failure for each in made for failure in each.failures]
    return [*trained, *shared.held_out, *demonstrated, *examples], [*failures, *met, *met_too, *dropped]


def _clear(index: EvaluationIndex, tasks: Sequence[Task]) -> tuple[list[Task], list[Failure]]:
    """Return the tasks that match no suite, and a failure for each of the others."""
    clear, met = index.clear_tasks([replace(task, question=goal_in_words(task)) for task in tasks])
    kept = {task.key for task in clear}
    return [task for task in tasks if task.key in kept], met
