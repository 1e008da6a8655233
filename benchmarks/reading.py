"""Plain reading: passages of prose, and questions about them in prose, for a first policy that can read before it learns to act.

Nothing here is of the wheel's form: no tools, no tags, no chains of searches, none of the generated worlds' kinds and relations. Names
are of one or three words, where a world's have two, or of two that belong to no world. What is learnt is to find in a text what a question
asks for, and to copy it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from synth.worlds.names import NAME_WORDS
from warehouse.digests import seed_from

_KINDS = """
boat
    {s} was built by {o}. | The boat {s} left the yard of {o}. | {o} drew the plans of {s}.
    Who built {s}? | By whom was {s} built?
    {s} is kept by {o}. | It is {o} that looks after {s}. | The ropes of {s} are in the care of {o}.
    Who keeps {s}? | Who looks after {s}?
    {s} carries {o}. | In the hold of {s} lies {o}. | {s} is loaded with {o}.
    What does {s} carry? | What lies in the hold of {s}?
garden
    {s} was planted by {o}. | The hedges of {s} are the idea of {o}. | {o} laid out {s}.
    Who planted {s}? | Who laid out {s}?
    {s} grows around {o}. | In the middle of {s} stands {o}. | All paths of {s} go to {o}.
    What stands in the middle of {s}? | What does {s} grow around?
    {s} is watered from {o}. | The water of {s} comes from {o}. | {o} feeds the ponds of {s}.
    Where does the water of {s} come from? | What is {s} watered from?
song
    {s} was written by {o}. | The words of {s} are by {o}. | {o} wrote {s} on a train.
    Who wrote {s}? | Whose words are those of {s}?
    {s} was first sung by {o}. | The voice in {s} is that of {o}. | {o} sang {s} before anybody else.
    Who sang {s} first? | Whose voice is heard in {s}?
    {s} tells of {o}. | The story in {s} is about {o}. | {o} is what {s} remembers.
    What does {s} tell of? | What is {s} about?
tower
    {s} is guarded by {o}. | The keys of {s} hang at the belt of {o}. | {o} stands watch on {s}.
    Who guards {s}? | Who has the keys of {s}?
    {s} looks over {o}. | From {s} one sees {o}. | {o} lies at the feet of {s}.
    What does {s} look over? | What is seen from {s}?
    {s} is named after {o}. | The name of {s} recalls {o}. | {o} gave {s} its name.
    Whom is {s} named after? | Whose name does {s} recall?
horse
    {s} is ridden by {o}. | In the saddle of {s} sits {o}. | {o} rides {s} every morning.
    Who rides {s}? | Who sits in the saddle of {s}?
    {s} is trained by {o}. | {s} learnt to jump from {o}. | {o} trains {s} with patience.
    Who trains {s}? | From whom did {s} learn to jump?
    {s} sleeps at {o}. | The stable of {s} is {o}. | At night {s} is found at {o}.
    Where does {s} sleep? | Which stable is that of {s}?
painting
    {s} was painted by {o}. | The brush behind {s} was held by {o}. | {o} finished {s} in a week.
    Who painted {s}? | Who held the brush behind {s}?
    {s} hangs at {o}. | Visitors of {o} admire {s}. | {s} has its wall at {o}.
    Where does {s} hang? | On whose wall is {s}?
    {s} shows {o}. | In {s} one recognises {o}. | {o} can be seen in {s}.
    What does {s} show? | What can be seen in {s}?
club
    {s} meets at {o}. | The members of {s} gather at {o}. | {o} opens its doors to {s}.
    Where does {s} meet? | Where do the members of {s} gather?
    {s} is chaired by {o}. | At the table of {s} {o} speaks last. | The hammer of {s} belongs to {o}.
    Who chairs {s}? | Who speaks last at the table of {s}?
    {s} fights {o}. | The rival of {s} is {o}. | Every summer {s} plays against {o}.
    Who is the rival of {s}? | Against whom does {s} play?
"""
"""Each kind, and for each of its relations a line of sentences and a line of questions."""

_FORMS = ("Question: {q} Answer: {a}.", "Q: {q} A: {a}.", "{q} {a}.", "{q} It is {a}.", '"{q}" "{a}."', "Asked «{q}», say: {a}.")
_QUESTIONS_BEFORE = 0.3
"""Share of the texts whose questions stand before the passage, to be answered after it."""
_MERE_TEXT = 0.15
"""Share of the texts that ask nothing."""
_SYLLABLES = ("ba", "do", "fe", "ga", "hi", "ka", "lo", "mi", "na", "pe", "ra", "so", "ta", "vu", "wi", "zo")


@dataclass(frozen=True, slots=True)
class _Relation:
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


def _read_kinds(table: str) -> dict[str, tuple[_Relation, ...]]:
    kinds: dict[str, tuple[_Relation, ...]] = {}
    for block in re.split(r"\n(?=\S)", table.strip()):
        name, *lines = (line.strip() for line in block.splitlines())
        pairs = zip(lines[::2], lines[1::2], strict=True)
        kinds[name] = tuple(_Relation(tuple(sentences.split(" | ")), tuple(questions.split(" | "))) for sentences, questions in pairs)
    return kinds


KINDS: dict[str, tuple[_Relation, ...]] = _read_kinds(_KINDS)


def reading_texts(count: int, seed: int) -> Iterator[str]:
    """`count` texts, each of one to four things, two or three facts of each, and up to three questions; the same for the same seed."""
    for number in range(count):
        yield _text(random.Random(seed_from("reading", seed, number)))


def _text(rng: random.Random) -> str:
    facts = [fact for kind in rng.choices(sorted(KINDS), k=rng.choice((1, 2, 2, 3, 4))) for fact in _facts(kind, rng)]
    passage = " ".join(rng.choice(relation.sentences).format(s=s, o=o) for _, relation, s, o in facts)
    if rng.random() < _MERE_TEXT:
        return passage
    form, asked = rng.choice(_FORMS), rng.sample(facts, rng.randint(1, min(3, len(facts))))
    if rng.random() < _QUESTIONS_BEFORE:
        _, relation, s, o = asked[0]
        question = rng.choice(relation.questions).format(s=s)
        return f"{question} {passage} {form.format(q=question, a=o)}"
    answered = (form.format(q=rng.choice(relation.questions).format(s=s), a=o) for _, relation, s, o in asked)
    return " ".join([passage, *answered])


def _facts(kind: str, rng: random.Random) -> Sequence[tuple[str, _Relation, str, str]]:
    subject = _name(rng)
    chosen = rng.sample(KINDS[kind], rng.choice((2, 3)))
    return [(kind, relation, subject, _name(rng)) for relation in chosen]


def _name(rng: random.Random) -> str:
    """One word or three of the list, or one of it beside an invented one: names that no generated world has."""
    length = rng.choice((1, 2, 2, 3))
    words = rng.sample(NAME_WORDS, length)
    if length == 2:
        words[rng.randrange(2)] = "".join(rng.choices(_SYLLABLES, k=2)).capitalize()
    return " ".join(words)
