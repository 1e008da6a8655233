"""Generated worlds: entities, functional facts between them, and one short document per entity that states its facts.

The embedded default corpus: seeded, without download or model, from a hundred to a million entities. Assignments are uniform, except that a
country's capital lies in it. Training and held-out worlds share no name, hence no document and no fact.

Every text begins with the name of its entity. Prose of variety 1 and 2 states a relation by its keyword; variety 3 mostly does not, so that
reading it takes more than matching words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from synth.worlds.names import NAME_WORDS, Split, make_names
from synth.worlds.schema import ASKED, RELATIONS, TYPE_SHARES, WORDINGS, Relation, relations_of
from warehouse.corpora.corpus import Corpus
from warehouse.digests import digest, seed_from
from warehouse.records import Document, DocumentSplit, Fact
from warehouse.settings import Section

_KEYWORD_SENTENCES = ("The {r} of {s} is {o}.", "{s} has {o} as {r}.", "{o} is the {r} of {s}.", "As {r}, {s} has {o}.")


def sentence_choices(relation: Relation, variety: int) -> int:
    """Number of ways to state a fact of `relation` in prose of `variety`."""
    return {1: 1, 2: len(_KEYWORD_SENTENCES), 3: len(_KEYWORD_SENTENCES) + len(relation.sentences)}[variety]


def write_keywords(title: str, stated: Sequence[tuple[str, str]]) -> str:
    """Document of variety 1: "Amber Stone: employer Blue River, birthplace Green Lake."; `stated` holds (relation, object)."""
    return f"{title}: {', '.join([f'{relation} {value}' for relation, value in stated])}."


def write_sentences(title: str, kind: str, stated: Sequence[tuple[Relation, str]], choices: Sequence[int]) -> str:
    """Document of variety 2 or 3: a sentence with the type, then one sentence per fact; `choices` holds the template numbers."""
    sentences = [_state(relation, title, value, choice) for (relation, value), choice in zip(stated, choices, strict=True)]
    return " ".join([f"{title} is a {kind}.", *sentences])


def _state(relation: Relation, subject: str, value: str, choice: int) -> str:
    templates = (*_KEYWORD_SENTENCES, *relation.sentences)
    return templates[choice].format(s=subject, o=value, r=relation.name)


_Assignment = dict[tuple[str, str], NDArray[np.int64]]
"""For each (subject type, relation): index of the object among entities of its type, per subject."""


class WorldConfig(Section):
    """A generated world."""

    entities: int = Field(default=3_000, ge=100, le=1_000_000)
    """Number of entities, one document each."""
    prose_variety: int = Field(default=1, ge=1, le=3)
    """Documents state facts by keyword (1), in sentences with the keyword (2), or in free sentences (3)."""


def generate_world(config: WorldConfig, split: Split, seed: int) -> Corpus:
    """World of `config`, `split` and `seed`: facts, one document per entity for searches of `split`, types and wordings."""
    name = world_name(config, split, seed)
    rng = np.random.default_rng(seed_from("world", seed, split))
    names = _names_by_type(config.entities, split, seed)
    links = _assign({kind: len(members) for kind, members in names.items()}, rng)
    facts: list[Fact] = []
    documents: list[Document] = []
    for kind in names:
        for document, stated in _describe(kind, names, links, config.prose_variety, name, rng):
            documents.append(replace(document, split=DocumentSplit(split)))
            facts.extend(stated)
    types = {entity: kind for kind, members in names.items() for entity in members}
    return Corpus(facts=tuple(facts), documents=tuple(documents), types=types, wordings=WORDINGS)


def world_name(config: WorldConfig, split: Split, seed: int) -> str:
    """Name of a world, also the `source` of its documents; unique per configuration and seed."""
    return f"world-{split}-{digest([config.model_dump(), seed], 8)}"


def world_words() -> tuple[str, ...]:
    """Words that a tokenizer for generated worlds should hold as single tokens: names, relations and types."""
    return tuple(dict.fromkeys([*NAME_WORDS, *(relation.name for relation in RELATIONS), *ASKED.values(), *TYPE_SHARES]))


def _names_by_type(entities: int, split: Split, seed: int) -> dict[str, list[str]]:
    names = make_names(entities, split, seed)
    bounds = np.round(np.cumsum([0.0, *TYPE_SHARES.values()]) * entities).astype(int).tolist()
    return {kind: names[low:high] for kind, low, high in zip(TYPE_SHARES, bounds, bounds[1:], strict=False)}


def _assign(sizes: dict[str, int], rng: np.random.Generator) -> _Assignment:
    links = {(r.subject, r.name): rng.integers(sizes[r.object], size=sizes[r.subject]) for r in RELATIONS}
    countries, cities = sizes["country"], sizes["city"]
    links["city", "country"] = np.arange(cities) % countries
    links["country", "capital"] = np.arange(countries)
    return links


def _describe(
    kind: str, names: dict[str, list[str]], links: _Assignment, variety: int, world: str, rng: np.random.Generator
) -> Iterator[tuple[Document, list[Fact]]]:
    relations = relations_of(kind)
    members = names[kind]
    objects = [_values(names[relation.object], links[kind, relation.name]) for relation in relations]
    orders = rng.permuted(np.tile(np.arange(len(relations)), (len(members), 1)), axis=1).tolist()
    choices = _choices(relations, len(members), variety, rng)
    for entity, title in enumerate(members):
        stated = [(relations[i], objects[i][entity]) for i in orders[entity]]
        picked = [choices[i][entity] for i in orders[entity]]
        document = _document(title, kind, stated, picked, variety, world)
        ids = (document.id,)
        yield document, [Fact(title, relation.name, value, ids, world) for relation, value in stated]


def _values(names: list[str], places: NDArray[np.int64]) -> list[str]:
    return [names[place] for place in places.tolist()]


def _choices(relations: tuple[Relation, ...], count: int, variety: int, rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(sentence_choices(relation, variety), size=count).tolist() for relation in relations]


def _document(title: str, kind: str, stated: list[tuple[Relation, str]], choices: list[int], variety: int, world: str) -> Document:
    if variety == 1:
        text = write_keywords(title, [(relation.name, value) for relation, value in stated])
    else:
        text = write_sentences(title, kind, stated, choices)
    return Document(id=f"{world}/{title.replace(' ', '-').lower()}", title=title, text=text, source=world)
