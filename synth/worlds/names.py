"""Names of entities: two words ("Amber Stone"), or three for large worlds; each name belongs to one split permanently.

Of two names that differ only in whether the last word's index is 2h or 2h + 1, one is for training and the other is held out; a hash of the
rest decides, not a seed. Training and held-out worlds therefore never share a name, whatever their seeds and sizes, and both use every word
in every position. The choice must have no pattern: under an even-odd rule a policy learns which pairs of words never occur in training, and
refuses to copy the held-out ones (measured: 0 % success).

The words are short and common, and none is a relation or type of the generated world. Each should be one token of a tokenizer trained on
the world's texts (after a space), since a small policy learns to copy a name only if its words are whole tokens.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

_WORDS = """
Able Acid Acorn Agate Alder Alpha Amber Angel Apple April Arch Arrow Ashen Aspen Atlas Azure
Baker Bald Bamboo Bank Bare Barley Barn Basil Bay Beach Bear Beech Bell Bench Berry Birch
Black Blaze Blue Board Bold Bone Boot Bound Brass Brave Bread Brick Bridge Brier Bright Brook
Broom Brown Brush Butter Cabin Calm Camel Candle Canoe Canyon Carbon Castle Cave Cedar Chain Chalk
Cherry Chest Clay Clean Clear Cliff Clock Cloud Clover Coal Coast Cobalt Cold Comet Cool Copper
Coral Cork Corn Cotton Court Cove Crane Cream Creek Crest Crow Crown Crystal Dale Damp Dark
Dawn Deep Deer Delta Desert Dew Door Dove Dragon Dream Drift Drum Dry Dune Dust Eagle
Early East Ebony Echo Edge Elder Elm Ember Empty Falcon Farm Feather Fern Field Finch Fine
Fire Firm Flag Flame Flat Flint Flower Foam Fog Forest Forge Fort Fox Free Fresh Frost
Garden Gate Gem Gentle Giant Glass Glen Globe Gold Grand Granite Grape Grass Gravel Gray Green
Grove Gull Hall Happy Harbor Hard Hare Harp Hawk Hazel Heart Heath Heron Hidden High Hill
Holly Honey Horn Horse House Humble Ice Indigo Iron Island Ivory Ivy Jade Jasper Jolly Jungle
Juniper Keen Kettle Kind King Kite Lake Lamb Lamp Large Lark Laurel Lavender Leaf Lemon Light
Lily Lime Linen Lion Little Lodge Lone Long Loud Low Lucky Lunar Lynx Magic Maple Marble
March Marsh Meadow Mellow Melon Mild Mill Mint Mirror Mist Moon Moss Mount Mountain Myrtle Narrow
Navy New Night Noble North Nut Oak Oasis Oat Ocean Old Olive Onyx Opal Open Orange
Orchid Otter Owl Palm Panda Paper Peach Pearl Pebble Pepper Pine Pink Plain Plum Pond Poplar
Poppy Port Prairie Proud Pure Purple Quail Quartz Quick Quiet Rain Rapid Raven Red Reed Reef
Rich Ridge Ring River Robin Rock Roof Root Rose Rough Round Royal Ruby Rust Saddle Sage
Sail Salt Sand Sapphire Scarlet Shadow Sharp Shell Shore Silent Silk Silver Simple Sky Slate Small
"""

NAME_WORDS: tuple[str, ...] = tuple(_WORDS.split())
"""Distinct words in alphabetical order. Changing them or their order changes which names are held out."""


Split = Literal["train", "heldout"]
"""Families of worlds; no name is in both."""

_SIDE: dict[Split, int] = {"train": 0, "heldout": 1}
TWO_WORD_LIMIT = 50_000
"""Maximum number of entities with two-word names."""


def make_names(count: int, split: Split, seed: int) -> list[str]:
    """`count` distinct names of `split`, in an order drawn from `seed`; no name repeats a word."""
    length = 2 if count <= TWO_WORD_LIMIT else 3
    rng = np.random.default_rng(seed)
    places = _distinct_places(count, length, _SIDE[split], rng)
    columns = np.asarray(NAME_WORDS, dtype=object)[places]
    return [" ".join(words) for words in columns.tolist()]


def _distinct_places(count: int, length: int, side: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` distinct rows of `length` distinct word indices, all names of one side; (count, length)."""
    capacity = len(NAME_WORDS) ** length // 2
    drawn = min(capacity, count + count // 20 + 1_000)  # spare rows, since rows that repeat a word are dropped
    while True:
        codes = rng.permutation(capacity) if drawn == capacity else rng.choice(capacity, size=drawn, replace=False)
        rows = _decode(codes, length, side)
        ordered = np.sort(rows, axis=1)
        rows = rows[(np.diff(ordered, axis=1) > 0).all(axis=1)]
        if len(rows) >= count:
            return rows[:count]
        drawn = min(capacity, 2 * drawn)


def _decode(codes: NDArray[np.int64], length: int, side: int) -> NDArray[np.int64]:
    words = len(NAME_WORDS)
    half, rest = codes % (words // 2), codes // (words // 2)
    first = [rest // words**position % words for position in range(length - 1)]
    return np.stack([*first, 2 * half + (_toss(first, half) ^ side)], axis=1)


def _toss(first: list[NDArray[np.int64]], half: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 or 1 for each name without its last word's parity, by the finaliser of splitmix64 (Steele et al. 2014)."""
    state = half.astype(np.uint64)
    for place in first:
        state = state * np.uint64(1_000_003) + place.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) & np.uint64(1)).astype(np.int64)
