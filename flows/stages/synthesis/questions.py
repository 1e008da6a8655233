"""Questions of a turn: the suites' held-out tasks, the tasks that RL draws from, their rewordings and their expansions by a teacher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from flows.stages.synthesis.batches import Batch, Made
from flows.stages.synthesis.bench import Bench
from flows.stages.synthesis.question_batches import question_batches
from synth.open_corpora.config import ExpanderConfig
from synth.open_corpora.expander import expand
from synth.questions.rewording import RewordingConfig, reword
from warehouse import Task


def suites(bench: Bench) -> Iterator[Batch]:
    """The held-out tasks of every suite."""
    for name, wanted in bench.shop.config.evaluation.suites.items():
        config, part = wanted.model_copy(update={"split": name}), f"suite {name}"
        yield from question_batches(part, bench.held_out, config, bench.seed(part), bench.settings.batch, bench.keys)


def questions(bench: Bench) -> Iterator[Batch]:
    """The tasks that RL trains on."""
    config = bench.settings.webshaper.model_copy(update={"split": "train"})
    seed, refuse = bench.seed("questions"), bench.evaluation.objection
    yield from question_batches("questions", bench.train, config, seed, bench.settings.batch, bench.keys, refuse)


def rewordings(bench: Bench) -> Iterator[Batch]:
    """The questions that RL trains on in a teacher's words."""
    config = bench.settings.rewording
    if config is None:
        return
    for number, tasks in bench.in_batches(_written(bench)):
        yield Batch("rewordings", number, partial(_reword, bench, tasks, config))


def expansions(bench: Bench) -> Iterator[Batch]:
    """The first questions that RL trains on, by key, made deeper by a teacher that searches the documents."""
    config = bench.settings.expander
    if config is None:
        return
    chosen = sorted(_written(bench), key=lambda task: task.key)[: config.count]
    for number, start in enumerate(range(0, len(chosen), config.concurrency)):
        yield Batch("expansions", number, partial(_expand, bench, chosen[start : start + config.concurrency], config))


def _written(bench: Bench) -> list[Task]:
    """The training questions that were built, and not made from others."""
    tasks = bench.shop.lake.tasks(split="train")
    return [task for task in tasks if task.formula and not {"reworded_from", "expanded_from"} & set(task.provenance)]


def _expand(bench: Bench, tasks: Sequence[Task], config: ExpanderConfig) -> Made:
    made = expand(tasks, bench.asked("expander"), bench.train_index, config, bench.seed("expander"), bench.turn)
    kept, removed = bench.evaluation.clear_tasks(made.tasks)
    return [*kept, *made.trajectories], [*made.failures, *removed]


def _reword(bench: Bench, tasks: Sequence[Task], config: RewordingConfig) -> Made:
    made, failures = reword(tasks, bench.asked("rewording"), config, bench.seed("rewording"), bench.train.graph, bench.train.retrieve)
    kept, removed = bench.evaluation.clear_tasks(made)
    return kept, [*failures, *removed]
