"""Demonstrations against an imperfect search: what they show is what a rollout would see, and a second try stands where one is needed."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest
from pydantic import ValidationError

from rl.envs.search import SearchEnvironment
from rl.renderers.base import Action
from rl.retrieval.config import ImperfectSearchConfig
from rl.retrieval.indexes import ImperfectIndex, split_page
from rl.retrieval.search import Hits, Miss, SearchIndex
from synth.demonstrations.cold_start import DemonstrationConfig, Style, build_demonstrations, needs_second_try
from synth.demonstrations.oracle import MOST_TRIES, OracleStep, Search, Solution, all_tries, solution_of
from synth.fas.reasoning import FasConfig, build_fas
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import Retrieve, first_real_hit
from warehouse.corpora.corpus import Corpus
from warehouse.records import Document, Example, PartKind, Task

SETTINGS = ImperfectSearchConfig(displaced=0.4, namesakes=0.4, stubs=0.3, empty=0.1)
IMPERFECT = DemonstrationConfig(search="imperfect")


@pytest.fixture(scope="module")
def index(world: Corpus) -> ImperfectIndex:
    return ImperfectIndex(SearchIndex(world.documents), SETTINGS)


@pytest.fixture(scope="module")
def search(index: ImperfectIndex) -> Search:
    return index.find


@pytest.fixture(scope="module")
def tasks(graph: KnowledgeGraph, retrieve: Retrieve) -> list[Task]:
    config = QuestionConfig(counts={1: 60, 2: 60, 3: 60}, intersections=0.2, unions=0.1)
    return build_questions(graph, config, 1, retrieve)[0]


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
        examples, failures = build_demonstrations(graph, tasks, IMPERFECT, 1, retrieve, search=partial(index.find, k=documents))
        assert len(examples) > 0.97 * len(tasks) and len(examples) + len(failures) == len(tasks)
        for example in examples:
            assert texts(example, PartKind.RESULT) == seen(index, texts(example, PartKind.CALL), documents)


def test_a_second_try_stands_where_one_is_needed_and_nowhere_else(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], search: Search
) -> None:
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


def test_the_oracle_reads_on_or_asks_in_other_words_and_says_what_was_missing(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], search: Search
) -> None:
    examples, _ = build_demonstrations(graph, tasks, IMPERFECT, 1, retrieve, search=search)
    pages = words = 0
    for example in (each for each in examples if style_of(each) is Style.SECOND_TRY):
        parts, calls = example.parts, texts(example, PartKind.CALL)
        vain = [place for place, part in enumerate(parts) if part.kind is PartKind.THOUGHT and part.text.startswith("no ")]
        assert vain and all(parts[place].learnt and parts[place + 1].kind is PartKind.CALL for place in vain)
        assert len(calls) == len(set(calls)), "the same search would bring the same"
        pages += any(split_page(call)[1] > 1 for call in calls)
        words += any(split_page(parts[place + 1].text)[1] == 1 for place in vain)
    assert pages > 20 and words > 20


def test_what_found_nothing_is_asked_in_other_words_and_not_on_another_page() -> None:
    wanted = Document("d", "Amber Stone", "Amber Stone: maker Blue River.", "w")
    other = Document("o", "Red Lake", "Red Lake: seat Far Hill.", "w")
    answers = {"Amber Stone": Hits((), Miss.NO_HIT), "Amber Stone maker": Hits((other,)), "maker Amber Stone": Hits((wanted,))}
    solution = Solution((OracleStep("", "Amber Stone", wanted, "maker"),), "maker Blue River", "Blue River")
    for seed in range(20):
        tried = all_tries(solution, lambda query: answers.get(query, Hits((other,))), random.Random(seed))
        assert tried is not None and tried[0][-1].query == "maker Amber Stone" and len(tried[0]) <= MOST_TRIES
        assert not any("page" in each.query for each in tried[0])


def test_the_oracle_gives_up_where_nothing_shows_the_document() -> None:
    wanted, other = Document("d", "Amber Stone", "Amber Stone: maker X.", "w"), Document("o", "Red", "Red.", "w")
    asked: list[str] = []

    def search(query: str) -> Hits:
        asked.append(query)
        return Hits((other,))

    solution = Solution((OracleStep("", "Amber Stone", wanted, "maker"),), "maker X", "X")
    assert all_tries(solution, search, random.Random(1)) is None and len(asked) == MOST_TRIES


def test_corrupted_demonstrations_search_once_for_each_document(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], search: Search
) -> None:
    config = DemonstrationConfig(search="imperfect", early_stop=0.4, wrong_turn=0.6)
    deep = [task for task in tasks if task.hops > 1]
    examples, _ = build_demonstrations(graph, deep, config, 1, retrieve, search=search)
    corrupted = [example for example in examples if style_of(example) in (Style.EARLY_STOP, Style.WRONG_TURN)]
    assert len(corrupted) > 60 and {style_of(example) for example in corrupted} == {Style.EARLY_STOP, Style.WRONG_TURN}
    assert not any(thought.startswith("no ") for example in corrupted for thought in texts(example, PartKind.THOUGHT))
    answers = {task.key: task.answers for task in deep}
    rest = [example for example in examples if example not in corrupted]
    assert all(texts(example, PartKind.ANSWER)[0] in answers[example.sources[0]] for example in rest)


def test_demonstrations_are_the_same_for_the_same_seed(
    graph: KnowledgeGraph, retrieve: Retrieve, tasks: list[Task], search: Search
) -> None:
    one, two = (build_demonstrations(graph, tasks, IMPERFECT, 1, retrieve, search=search) for _ in range(2))
    assert one == two != build_demonstrations(graph, tasks, IMPERFECT, 2, retrieve, search=search)


def test_the_document_that_was_read_is_one_of_the_corpus(index: ImperfectIndex, graph: KnowledgeGraph, world: Corpus) -> None:
    read = first_real_hit(index, graph.documents)
    found = [(read(document.title), index.find(document.title).documents) for document in world.documents]
    assert all(one is None if not hits or "#" in hits[0].id else one == hits[0] for one, hits in found)
    assert {one is None for one, _ in found} == {True, False}


@pytest.mark.parametrize("wrong", [{"second_try": 0.1}, {"search": "imperfect", "in_order": 0.5}, {"search": "bad"}])
def test_what_does_not_go_together_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DemonstrationConfig.model_validate(wrong)


def test_reasoning_that_meets_the_search_of_rollouts_searches_again_where_it_must(
    graph: KnowledgeGraph, retrieve: Retrieve, index: ImperfectIndex
) -> None:
    config = FasConfig(plan_slices=0, reasoning={1: 100, 2: 100}, imperfect=0.5)
    plain, _ = build_fas(graph, config.model_copy(update={"imperfect": 0.0}), 1, retrieve, search=index.find)
    mixed, dropped = build_fas(graph, config, 1, retrieve, search=index.find)
    again = [example for example in mixed if any(text.startswith("no ") for text in texts(example, PartKind.THOUGHT))]
    assert len(mixed) + len(dropped) == len(plain) and {failure.kind for failure in dropped} <= {"fas_reason_not_found"}
    assert 20 < len(again) < 90, "of some hundred that meet it, those that it does not serve at once"
    for example in again:
        assert texts(example, PartKind.RESULT) == seen(index, texts(example, PartKind.CALL))
    assert {each.id for each in mixed if each not in again} <= {each.id for each in plain}
    assert {each.sources[0]: texts(each, PartKind.ANSWER) for each in plain}.items() >= {
        each.sources[0]: texts(each, PartKind.ANSWER) for each in mixed
    }.items()
