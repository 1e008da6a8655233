"""A home whose search is imperfect: what synthesis makes of it, and which settings do not go together."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flows.context import RunContext, StageRun
from flows.pipeline import run_attempt
from flows.stages.synthesis.batches import begin, work_off
from flows.stages.synthesis.examples import demonstrations
from flows.stages.synthesis.sources import Material
from rl.envs.base import Resources
from rl.envs.search import SearchEnvironment, create
from rl.renderers.base import Action
from rl.retrieval.indexes import build_indexes
from tests.flows.homes import home_at
from warehouse import Document, Example, PartKind, Task

pytestmark = pytest.mark.slow

IMPERFECT = "rollout.search.imperfect={displaced=0.4, namesakes=0.3, stubs=0.3, empty=0.05}"
PLAYED = 'synth.demonstrations={search="imperfect", second_try=0.25, early_stop=0.5}'
SIZES = ("corpus.train.entities=250", "corpus.held_out.entities=150", "synth.demonstration_questions.counts={1=20, 2=20}")


def demonstrated(context: RunContext) -> list[Example]:
    """The demonstrations of the first turn, as they stand in the lake."""

    def work(at_work: StageRun) -> dict[str, Any]:
        work_off(at_work, demonstrations(*begin(context, 1)))
        return {}

    run_attempt(context.lake, "t1-synth", "synth", 1, {}, work)
    return context.lake.examples(["trajectory"])


def texts(example: Example, kind: PartKind) -> list[str]:
    return [part.text for part in example.parts if part.kind is kind]


def searches_needed(example: Example) -> int:
    """Searches but for those that tried again."""
    return len(texts(example, PartKind.CALL)) - sum(thought.startswith("no ") for thought in texts(example, PartKind.THOUGHT))


def test_the_share_of_the_demonstrations_that_hold_a_second_try_is_what_was_asked_for(tmp_path: Path) -> None:
    with home_at(tmp_path, *SIZES, IMPERFECT, PLAYED) as context:
        examples = demonstrated(context)
        dropped = Counter(failure.kind for failure in context.lake.failures("synth"))
        told = context.lake.query(
            "SELECT split_part(id, '-', 2) AS style, count(*) AS n FROM examples WHERE starts_with(id, 'demonstration-') GROUP BY ALL"
        ).to_pylist()
    styles = {row["style"]: row["n"] for row in told}
    assert len(examples) == 40 and styles["second_try"] == 10
    again = [example for example in examples if any(text.startswith("no ") for text in texts(example, PartKind.THOUGHT))]
    assert {example.id.split("-")[1] for example in again} == {"second_try"} and len(again) == 10
    assert Counter(searches_needed(example) for example in again) == {1: 5, 2: 5}
    assert styles["early_stop"] > 2 and dropped["demonstration_of_other_tries"] > 10
    tools = json.loads(texts(examples[0], PartKind.TOOLS)[0])
    assert "page 2" in tools[0]["function"]["description"]


def test_what_demonstrations_show_is_what_rollouts_of_the_home_find(tmp_path: Path) -> None:
    documents = "rollout.environments.kinds={search={options={documents=2}}}"
    with home_at(tmp_path, *SIZES, IMPERFECT, PLAYED, documents) as context:
        examples = demonstrated(context)
        corpus: list[Document] = list(Material(context, 1).sources.train.documents)
        index = build_indexes(corpus, context.config.rollout.search).train
        environment = create(Resources(index, context.config.rollout.environments.kind("search").options))
    for example in examples:
        assert texts(example, PartKind.RESULT) == played(environment, texts(example, PartKind.CALL))


def played(environment: SearchEnvironment, queries: list[str]) -> list[str]:
    async def play() -> list[str]:
        await environment.reset(Task("k", "search", "?", ()), seed=0)
        return [(await environment.step(Action("search", query))).observation for query in queries]

    return asyncio.run(play())


def test_questions_are_those_of_the_perfect_search(tmp_path: Path) -> None:
    with home_at(tmp_path / "a", *SIZES, IMPERFECT) as one, home_at(tmp_path / "b", *SIZES) as two:
        imperfect, perfect = Material(one, 1), Material(two, 1)
        titles = [document.title for document in perfect.sources.train.documents]
        assert [imperfect.train.retrieve(title) for title in titles] == [perfect.train.retrieve(title) for title in titles]
        assert [imperfect.search(title) for title in titles] != [perfect.search(title) for title in titles]
        read = [imperfect.read(title) for title in titles]
        assert read != [perfect.read(title) for title in titles] and all(one is None or "#" not in one.id for one in read)
