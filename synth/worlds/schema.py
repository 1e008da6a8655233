"""Types and relations of the generated worlds, and their wordings.

A relation has one subject type and a different object type, so its undirected image (WebShaper's knowledge projection) equals the directed
one. Forward, every relation has exactly one object. Its name is one word, which alone states it in the plainest prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from warehouse.corpora.corpus import Wording

TYPE_SHARES: dict[str, float] = {
    "person": 0.38,
    "company": 0.14,
    "city": 0.14,
    "film": 0.16,
    "university": 0.07,
    "product": 0.07,
    "country": 0.04,
}
"""Share of each type among a world's entities."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation type.

    Plain documents state it by `name`, plain questions ask for it by `asked`. With one word for both, the question's continuation would
    compete with the document's, and a policy would learn to look facts up much later. In varied prose, `sentences` state it with `{s}` and
    `{o}`; `phrases` ask for its object and end with `{s}`, so that they can be nested.
    """

    name: str
    asked: str
    subject: str
    object: str
    sentences: tuple[str, ...]
    phrases: tuple[str, ...]


_RELATIONS = """
employer, workplace: person -> company
    {s} works for {o}. | {s} earns a living at {o}. | The payroll of {o} lists {s}.
    the employer of {s} | the company that employs {s}
birthplace, hometown: person -> city
    {s} was born in {o}. | {s} came into the world in {o}. | The city of {o} saw the birth of {s}.
    the birthplace of {s} | the city that saw the birth of {s}
school, college: person -> university
    {s} studied at {o}. | {s} holds a degree from {o}. | The classrooms of {o} taught {s}.
    the school of {s} | the university that taught {s}
seat, base: company -> city
    {s} is based in {o}. | {s} runs its business from {o}. | The head office of {s} stands in {o}.
    the seat of {s} | the city that houses {s}
founder, creator: company -> person
    {s} was founded by {o}. | {s} goes back to {o}. | It was {o} who started {s}.
    the founder of {s} | the person who started {s}
flagship, bestseller: company -> product
    {s} is best known for {o}. | {s} lives on the sales of {o}. | The pride of {s} is called {o}.
    the flagship of {s} | the best-known product of {s}
country, nation: city -> country
    {s} lies in {o}. | {s} belongs to {o}. | On the map of {o} one finds {s}.
    the country of {s} | the country that holds {s}
mayor, governor: city -> person
    {s} is governed by {o}. | {s} elected {o}. | The town hall of {s} is led by {o}.
    the mayor of {s} | the person who governs {s}
director, filmmaker: film -> person
    {s} was directed by {o}. | {s} is the work of {o}. | The camera of {s} followed the orders of {o}.
    the director of {s} | the person who directed {s}
studio, producer: film -> company
    {s} was produced by {o}. | {s} was paid for by {o}. | The budget of {s} came from {o}.
    the studio of {s} | the company that produced {s}
location, setting: film -> city
    {s} was shot in {o}. | {s} was filmed on the streets of {o}. | The scenes of {s} show {o}.
    the location of {s} | the city that was the set of {s}
star, lead: film -> person
    {s} features {o}. | {s} made {o} famous. | The main part in {s} is played by {o}.
    the star of {s} | the person who plays the main part in {s}
campus, grounds: university -> city
    {s} teaches in {o}. | {s} has its halls in {o}. | The students of {s} live in {o}.
    the campus of {s} | the city that hosts {s}
rector, head: university -> person
    {s} is headed by {o}. | {s} follows the lead of {o}. | The degrees of {s} are signed by {o}.
    the rector of {s} | the person who heads {s}
inventor, originator: product -> person
    {s} was invented by {o}. | {s} began as an idea of {o}. | The patent for {s} names {o}.
    the inventor of {s} | the person who invented {s}
maker, manufacturer: product -> company
    {s} is made by {o}. | {s} leaves the factory of {o}. | The label on {s} reads {o}.
    the maker of {s} | the company that makes {s}
capital, metropolis: country -> city
    {s} is ruled from {o}. | {s} has its parliament in {o}. | The embassies in {s} stand in {o}.
    the capital of {s} | the city that governs {s}
leader, president: country -> person
    {s} is led by {o}. | {s} is in the hands of {o}. | The head of state of {s} is {o}.
    the leader of {s} | the person who leads {s}
"""
"""Three lines per relation: `name, asked: subject -> object`, its sentences, and its phrases."""


def _read_relations(table: str) -> Iterator[Relation]:
    lines = table.strip().splitlines()
    for head, sentences, phrases in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, asked, subject, value = re.split(", |: | -> ", head)
        yield Relation(name, asked, subject, value, tuple(sentences.strip().split(" | ")), tuple(phrases.strip().split(" | ")))


RELATIONS: tuple[Relation, ...] = tuple(_read_relations(_RELATIONS))
"""All relations. Their order determines what a seed draws."""

ASKED: dict[str, str] = {relation.name: relation.asked for relation in RELATIONS}
"""Word that plain questions use for each relation."""

WORDINGS: dict[str, Wording] = {relation.name: Wording(phrases=relation.phrases, word=relation.asked) for relation in RELATIONS}
"""Wordings for questions about a generated world; other worlds may have relations of the same names."""


def relations_of(subject: str) -> tuple[Relation, ...]:
    return tuple(relation for relation in RELATIONS if relation.subject == subject)
