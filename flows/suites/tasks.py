"""Tasks and documents of a suite, drawn from its source deterministically by its seed."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eval.suites.tasks import enter_suite
from flows.config import FlywheelConfig
from flows.inputs import bringing_tasks
from flows.stages.synthesis.questions import explain_shortfall
from flows.stages.synthesis.sources import on_side
from flows.suites.config import GeneratedSource, GraphSource, HomeSource, QuestionSetSource, SuiteConfig, check_data, is_own, place_of
from rl.envs.base import ENVIRONMENTS
from rl.retrieval.search import SearchIndex
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions
from synth.questions.decontamination import HELD_OUT
from synth.questions.difficulty import deepest
from synth.questions.paths import first_hit
from synth.worlds.world import generate_world
from warehouse import Document, Failure, Lake, Task
from warehouse.benchmark_sets import read_gsm8k, read_humaneval, read_mbpp, read_musique, read_tasks
from warehouse.corpora.corpus import Corpus
from warehouse.corpora.countries import read_countries
from warehouse.corpora.files import read_documents, read_pages
from warehouse.corpora.films import read_films
from warehouse.digests import digest, seed_from
from warehouse.errors import RequestError

log = logging.getLogger("flywheel")

_FILES: dict[str, Callable[[Path], list[Task]]] = {"gsm8k": read_gsm8k, "humaneval": read_humaneval, "mbpp": read_mbpp}


@dataclass(frozen=True, slots=True)
class SuiteTasks:
    """Tasks by key, the suite's own documents (None: the home's), and what the source dropped."""

    tasks: tuple[Task, ...]
    documents: tuple[Document, ...] | None = None
    failures: tuple[Failure, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of the tasks' questions and answers."""
        return digest_of(self.tasks)

    @property
    def documents_digest(self) -> str | None:
        """Digest of the suite's own documents; None for the home's."""
        return None if self.documents is None else digest(sorted([one.id, one.title, one.text] for one in self.documents))


def digest_of(tasks: Iterable[Task]) -> str:
    """Digest of the tasks' questions and answers, independent of their order."""
    return digest(sorted([task.key, task.digest] for task in tasks))


def draw_tasks(suite: SuiteConfig, config: FlywheelConfig, lake: Lake) -> SuiteTasks:
    """Draw the tasks of `suite` for a home. Raise RequestError if the source's data is missing or broken, or no task matches."""
    check_data(suite)
    source = _read(suite, lake)
    found = source.tasks
    chosen = deepest(found, suite.number) if suite.draw == "deepest" else _any(found, suite)
    if not chosen:
        raise RequestError(
            f"the suite {suite.name} has no task: its source gives {len(found)}, and none is selected; check source, number and draw."
        )
    if suite.number is not None and len(chosen) < suite.number:
        few = f"number of the suite {suite.name} asks for {suite.number} tasks, and its source gives {len(chosen)}"
        log.warning("%s", few)
        source = replace(source, failures=(*source.failures, Failure("suite", RejectionReason.SHORTFALL, few, {"suite": suite.name})))
    if not is_own(suite):
        chosen = [enter_suite(task, suite.name, suite.environment, suite.verifier, suite.rollout) for task in chosen]
    check_environments(chosen, suite, config)
    return replace(source, tasks=tuple(sorted(chosen, key=lambda task: task.key)))


def _read(suite: SuiteConfig, lake: Lake) -> SuiteTasks:
    source = suite.source
    if isinstance(source, GeneratedSource):
        corpus = generate_world(source.world, "heldout", seed_from(suite.seed, "suite"))
        return _proven(suite, source.questions, corpus, None)
    if isinstance(source, GraphSource):
        folder = place_of(source)
        corpus = read_films(folder, source.longest_document) if source.kind == "films" else read_countries(folder)
        return _proven(suite, source.questions, corpus, on_side(HELD_OUT) if source.entities == "held_out" else None)
    if isinstance(source, QuestionSetSource):
        if source.kind == "musique":
            questions, passages = read_musique(place_of(source))
            return SuiteTasks(tuple(questions), tuple(passages))
        return SuiteTasks(tuple(_FILES[source.kind](place_of(source))), ())
    if isinstance(source, HomeSource):
        tasks = [task for split in source.splits for task in lake.tasks(split=split)]
        if not tasks:
            commands = bringing_tasks(lake.place.home, source.splits[0])
            raise RequestError(f"{lake.place.home} has no task in {', '.join(source.splits)} yet: {commands}.")
        return SuiteTasks(tuple(tasks))
    documents = None if source.documents is None else _documents(source.documents)
    failures = () if documents is None else documents.failures
    return SuiteTasks(tuple(read_tasks(source.path)), None if documents is None else documents.documents, failures)


def _documents(path: Path) -> Corpus:
    return read_pages(path) if path.is_dir() else read_documents(path)


def _proven(suite: SuiteConfig, wanted: QuestionConfig, corpus: Corpus, allowed: Callable[[str], bool] | None) -> SuiteTasks:
    seed = seed_from(suite.seed, suite.source.kind)
    tasks, failures = build_questions(KnowledgeGraph.of(corpus), wanted, seed, first_hit(SearchIndex(corpus.documents)), allowed)
    failures = explain_shortfall(tasks, failures, wanted, f"source.questions.{wanted.asked_by} of the suite {suite.name}")
    return SuiteTasks(tuple(tasks), corpus.documents, (*corpus.failures, *failures))


def _any(tasks: Sequence[Task], suite: SuiteConfig) -> list[Task]:
    if suite.number is None or suite.number >= len(tasks):
        return list(tasks)
    return random.Random(seed_from(suite.seed, "draw")).sample(sorted(tasks, key=lambda task: task.key), suite.number)


def check_environment(suite: SuiteConfig, config: FlywheelConfig) -> None:
    """Raise RequestError if the suite's environment does not exist."""
    if suite.environment is not None:
        ENVIRONMENTS.resolve_recorded(suite.environment, _listed(suite, config))


def _listed(suite: SuiteConfig, config: FlywheelConfig) -> dict[str, str]:
    return {**config.rollout.environments.listed, **({suite.environment: suite.environment} if suite.environment else {})}


def check_environments(tasks: Iterable[Task], suite: SuiteConfig, config: FlywheelConfig) -> None:
    """Raise RequestError for a task with an environment that task data may not name."""
    listed = _listed(suite, config)
    for task in tasks:
        try:
            ENVIRONMENTS.resolve_recorded(task.environment, listed)
        except RequestError as error:
            raise RequestError(f"task {task.key!r:.100}: {error} Or set the suite's environment with --set environment=NAME.") from error
