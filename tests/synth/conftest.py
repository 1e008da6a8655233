"""A small world with its graph and its search, shared by the tests of this room."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerBase

from rl.policies.tokenization import build_tokenizer
from rl.retrieval.search import SearchIndex
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import Retrieve, first_hit
from synth.worlds.world import WorldConfig, generate_world, world_words
from warehouse.corpora.corpus import Corpus
from warehouse.records import Task


@pytest.fixture(scope="session")
def world() -> Corpus:
    """Four hundred entities in the plainest prose."""
    return generate_world(WorldConfig(entities=400), "train", seed=11)


@pytest.fixture(scope="session")
def graph(world: Corpus) -> KnowledgeGraph:
    """The graph of the world."""
    return KnowledgeGraph.of(world)


@pytest.fixture(scope="session")
def retrieve(world: Corpus) -> Retrieve:
    """The first hit of a search over the world."""
    return first_hit(SearchIndex(world.documents))


@pytest.fixture(scope="session")
def tasks(graph: KnowledgeGraph, retrieve: Retrieve) -> list[Task]:
    """Paths of one to six hops through the world, of every shape, by ascending hops."""
    config = QuestionConfig(counts={1: 60, 2: 60, 3: 60, 4: 40, 5: 20, 6: 20}, intersections=0.3, unions=0.15, identify=0.3)
    return build_questions(graph, config, 1, retrieve)[0]


@pytest.fixture(scope="session")
def tokenizer(world: Corpus) -> PreTrainedTokenizerBase:
    """A tokenizer trained on the world."""
    return build_tokenizer([document.text for document in world.documents], 1_500, world_words())
