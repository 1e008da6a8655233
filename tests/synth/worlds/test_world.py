"""Generated worlds: names, facts and documents."""

from __future__ import annotations

from collections import Counter

import pytest
from transformers import PreTrainedTokenizerBase

from rl.policies.tokenization import multi_token_words
from synth.worlds.names import NAME_WORDS, TWO_WORD_LIMIT, make_names, split_of_name
from synth.worlds.schema import RELATIONS
from synth.worlds.world import WorldConfig, generate_world, world_words


@pytest.mark.parametrize(("count", "words"), [(100, 2), (TWO_WORD_LIMIT, 2), (TWO_WORD_LIMIT + 1, 3)])
def test_names_are_distinct_and_of_two_or_three_words(count: int, words: int) -> None:
    names = make_names(count, "train", seed=1)
    assert len(set(names)) == count
    assert all(len(set(name.split())) == words for name in names)


def test_names_of_the_splits_share_words_but_no_name() -> None:
    train, heldout = make_names(5_000, "train", seed=1), make_names(5_000, "heldout", seed=2)
    assert not set(train) & set(heldout)
    assert {word for name in train for word in name.split()} == set(NAME_WORDS) == {w for n in heldout for w in n.split()}
    assert {split_of_name(name) for name in train} == {"train"}


@pytest.mark.parametrize("variety", [1, 2, 3])
def test_every_entity_has_one_document_that_states_its_facts(variety: int) -> None:
    world = generate_world(WorldConfig(entities=300, prose_variety=variety), "train", seed=5)
    texts = {document.id: document for document in world.documents}
    assert len(texts) == len(world.types) == 300
    assert sorted(document.title for document in world.documents) == sorted(world.types)
    for fact in world.facts:
        (source,) = fact.documents
        assert texts[source].title == fact.subject
        assert texts[source].text.startswith(fact.subject)
        assert fact.object in texts[source].text
        assert texts[source].source == fact.source
        assert variety == 3 or fact.relation in texts[source].text
    assert set(Counter(fact.subject for fact in world.facts).values()) <= {2, 3, 4}


def test_facts_are_functional_typed_and_consistent() -> None:
    world = generate_world(WorldConfig(entities=500), "train", seed=5)
    known = {(fact.subject, fact.relation): fact.object for fact in world.facts}
    assert len(known) == len(world.facts)
    types = {relation.name: (relation.subject, relation.object) for relation in RELATIONS}
    assert all((world.types[f.subject], world.types[f.object]) == types[f.relation] for f in world.facts)
    capitals = [(fact.subject, fact.object) for fact in world.facts if fact.relation == "capital"]
    assert all(known[city, "country"] == country for country, city in capitals)


def test_a_world_follows_from_its_configuration_split_and_seed() -> None:
    config = WorldConfig(entities=200)
    assert generate_world(config, "train", 3) == generate_world(config, "train", 3)
    assert generate_world(config, "train", 3).facts != generate_world(config, "train", 4).facts
    train, heldout = generate_world(config, "train", 3), generate_world(config, "heldout", 3)
    assert not set(train.types) & set(heldout.types)
    assert not {document.id for document in train.documents} & {document.id for document in heldout.documents}
    assert not {f.object for f in train.facts} & {f.object for f in heldout.facts}


@pytest.mark.slow
def test_words_of_the_world_are_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert multi_token_words(tokenizer, world_words()) == []
