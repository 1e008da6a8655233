"""Near-duplicates: found among many, decided by the exact index."""

from __future__ import annotations

import random

import pytest

from synth.questions.text_comparison import NearDuplicates, jaccard, near_duplicates, shingles_of

WORDS = ["amber", "stone", "river", "cloud", "paper", "light", "north", "sand", "maple", "iron", "glass", "wolf"]


def sentence(rng: random.Random, length: int = 30) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(length))


@pytest.mark.slow
def test_candidates_are_those_of_a_full_comparison() -> None:
    rng = random.Random(3)
    texts = {f"t{number}": sentence(rng) for number in range(300)}
    known = NearDuplicates(threshold=0.7)
    for name, text in texts.items():
        known.add(name, text)
    for name, text in list(texts.items())[:100]:
        words = text.split()
        words[rng.randrange(len(words))] = "changed"
        asked = shingles_of(" ".join(words))
        expected = {other for other, known_text in texts.items() if jaccard(asked, shingles_of(known_text)) >= 0.7}
        assert {other for other, _ in known.matches(" ".join(words))} == expected
        assert name in expected


def test_the_first_of_several_stays() -> None:
    texts = [
        ("a", "one two three four five"),
        ("b", "One two, three four five!"),
        ("c", "six seven eight nine ten"),
        ("d", "one two three four five"),
    ]
    assert list(near_duplicates(texts, 0.9)) == [("b", "a", 1.0), ("d", "a", 1.0)]
