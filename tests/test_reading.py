"""Text for a policy that is to read: seeded, answerable from itself, and nothing of the wheel in it."""

from __future__ import annotations

import re

from benchmarks.reader import KINDS, reading_texts
from synth.worlds.names import NAME_WORDS
from synth.worlds.schema import ASKED, RELATIONS, TYPE_SHARES

TEXTS = list(reading_texts(2_000, seed=1))


def test_the_same_seed_gives_the_same_texts_and_another_others() -> None:
    assert list(reading_texts(50, 1)) == TEXTS[:50]
    assert not set(reading_texts(200, 2)) & set(TEXTS)


def test_every_answer_stands_in_the_passage() -> None:
    answered = [(text, found[1]) for text in TEXTS if (found := re.search(r" Answer: ([^.]+)\.", text))]
    assert len(answered) > 150
    for text, answer in answered:
        assert text.count(answer) >= 2, text


def test_nothing_of_the_wheels_form_is_in_it() -> None:
    everything = " ".join(TEXTS)
    assert "<" not in everything and "search" not in everything.casefold()
    said = {*re.findall(r"\b[a-z]+\b", everything)}
    assert not said & {*(relation.name for relation in RELATIONS), *ASKED.values(), *TYPE_SHARES}
    assert not KINDS.keys() & TYPE_SHARES.keys()


def test_no_name_is_one_that_a_world_has() -> None:
    words = set(NAME_WORDS)
    of_two = re.compile(r"(?<![\w] )\b([A-Z][a-z]+) ([A-Z][a-z]+)\b(?! [A-Z])")
    pairs = [found for text in TEXTS[:500] for found in of_two.findall(text)]
    assert len(pairs) > 200
    both = [pair for pair in pairs if set(pair) <= words]
    assert len(both) < 0.2 * len(pairs), "two words of the list meet where a sentence ends and a name begins, or within a name of three"
