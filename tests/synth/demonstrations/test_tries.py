"""Demonstrations against an imperfect search: what they show is what a rollout would see, and a second try stands where one is needed."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from rl.envs.search import SearchEnvironment
from rl.renderers.base import Action
from rl.retrieval.config import ImperfectSearchConfig
from rl.retrieval.indexes import ImperfectIndex
from rl.retrieval.search import Hits, SearchIndex
from synth.demonstrations.cold_start import DemonstrationConfig, Style, build_demonstrations, needs_second_try
from synth.demonstrations.oracle import MOST_TRIES, OracleStep, Solution, all_tries, solution_of
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Retrieve
from warehouse.corpora.corpus import Corpus
from warehouse.records import Document, Example, PartKind, Task

SETTINGS = ImperfectSearchConfig(displaced=0.4, namesakes=0.4, stubs=0.3, empty=0.1)
IMPERFECT = DemonstrationConfig(search="imperfect")


def texts(example: Example, kind: PartKind) -> list[str]:
    return [part.text for part in example.parts if part.kind is kind]


def style_of(example: Example) -> Style:
    return Style(example.id.split("-")[1])


def seen(index: ImperfectIndex, queries: list[str], documents: int = 1) -> list[str]:
    """What the environment shows for these searches."""
    environment = SearchEnvironment(index, documents)

    async def play() -> list[str]:
        await environment.reset(Task("k", "search", "?", ()), seed=0)
        return [(await environment.step(Action("search", query))).observation for query in queries]

    return asyncio.run(play())


@pytest.mark.parametrize("foreign", [0.0, 1.0])
def test_each_search_shows_what_the_environment_shows(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], world: Corpus, foreign: float
) -> None:
    index = ImperfectIndex(SearchIndex(world.documents), SETTINGS.model_copy(update={"foreign": foreign}))
    for documents in (1, 2):
        some = tasks[::2]
        examples, failures = build_demonstrations(graph, some, IMPERFECT, 1, retrieve, search=partial(index.find, k=documents))
        assert len(examples) > 0.95 * len(some) and len(examples) + len(failures) == len(some)
        for example in examples:
            assert texts(example, PartKind.RESULT) == seen(index, texts(example, PartKind.CALL), documents)


def test_a_second_try_is_shown_exactly_where_one_is_needed(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], world: Corpus
) -> None:
    search = ImperfectIndex(SearchIndex(world.documents), SETTINGS).find
    examples, _ = build_demonstrations(graph, tasks, IMPERFECT, 1, retrieve, search=search)
    by_key = {example.sources[0]: example for example in examples}
    styles = {Style.CLEAN: 0, Style.SECOND_TRY: 0}
    for task in tasks:
        solution, example = solution_of(graph, task, retrieve), by_key.get(task.key)
        assert solution is not None
        needed = any(step.document not in search(step.query).documents for step in solution.steps)
        assert needs_second_try(graph, task, 1, retrieve, search) is (None if example is None else needed)
        if example is not None:
            styles[style_of(example)] += 1
            assert style_of(example) is (Style.SECOND_TRY if needed else Style.CLEAN)
            assert (len(texts(example, PartKind.CALL)) > len(solution.steps)) is needed
            assert texts(example, PartKind.ANSWER) == [solution.answer]
    assert min(styles.values()) > 30


def test_the_oracle_gives_up_where_nothing_shows_the_document() -> None:
    wanted, other = Document("d", "Amber Stone", "Amber Stone: maker X.", "w"), Document("o", "Red", "Red.", "w")
    asked: list[str] = []

    def search(query: str) -> Hits:
        asked.append(query)
        return Hits((other,))

    solution = Solution((OracleStep("", "Amber Stone", wanted, "maker"),), "maker X", "X")
    assert all_tries(solution, search, random.Random(1)) is None and len(asked) == MOST_TRIES
