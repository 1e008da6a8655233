"""Facts as a question or a description: the name that is asked for, what the words must name, and what they must not.

Facts are edges between names, and an outline is a tree of them. One name of the tree is the answer, the other inner ones are unknowns that
the words leave out, the ends are named. So the formula (WebShaper's knowledge projections, arXiv 2507.15061, section 3) is known before a
word is written, each of its triples has a quotation, and a teacher only words it: a seed question, or the Expander's description.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from synth.corpora.grounding import TypedFact
from synth.corpora.passages import Passage
from synth.formulas.triples import TARGET, UNION, VARIABLE, constant
from synth.questions.text_comparison import NameKey, mentions, name_key, numbers, plain, unqualified
from warehouse.records import Triple

MOST_FACTS = 3
"""Most facts of one outline."""
LETTERS = "XYZ"
"""What stands for unknowns where an outline is worded; none is a word."""
UNTYPED = "thing"
"""The type of names without one."""
LONGEST_NAME = 8
"""Most words of a name that an outline may name or ask for; longer ones are clauses."""


class ProposalDefect(StrEnum):
    """Why what a teacher proposes is rejected; ungrounded facts have a `GroundingDefect`."""

    NO_PROPOSAL = "no_proposal"
    NO_CONSTANT = "no_constant"
    NOT_ABOUT_CONSTANT = "not_about_constant"
    LEAKED = "leaked"
    NOT_NAMED = "not_named"
    NOT_ASKED = "not_asked"
    NUMBER_NOT_STATED = "number_not_stated"
    NOT_STATED = "not_stated"
    ALREADY_USED = "already_used"
    LAYER_INCOMPLETE = "layer_incomplete"
    NOT_UNIQUE = "not_unique"
    REDUNDANT = "redundant_constraint"
    MALFORMED_FORMULA = "malformed_formula"
    TYPE_INCONSISTENT = "type_inconsistent"
    TOO_SIMPLE = "too_simple"


@dataclass(frozen=True, slots=True)
class Objection:
    """Kind and reason of a failure."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class QuotedFact:
    """A fact with its own words in a passage."""

    fact: TypedFact
    passage: Passage

    @property
    def names(self) -> tuple[str, str]:
        """Subject and object."""
        return self.fact.subject, self.fact.object

    @property
    def ends(self) -> tuple[NameKey, NameKey]:
        """What spellings of subject and object share."""
        return key_of(self.fact.subject), key_of(self.fact.object)

    @property
    def types(self) -> tuple[str, str]:
        """The types of subject and object, empty where not stated."""
        return plain(self.fact.subject_type), plain(self.fact.object_type)


def key_of(name: str) -> NameKey:
    """What spellings of a name share, with or without a qualifier."""
    return name_key(unqualified(name))


@dataclass(frozen=True, slots=True)
class Outline:
    """A tree of facts: its answer, the unknowns on the way, and its words, empty until it is worded."""

    facts: tuple[QuotedFact, ...]
    answer: str
    unknowns: tuple[str, ...] = ()
    words: str = ""

    def triples(self, nodes: Mapping[NameKey, str]) -> tuple[Triple, ...]:
        """The facts as triples: names in `nodes` as those nodes, all others as constants."""
        stated = ((each.fact, *each.ends) for each in self.facts)
        return tuple(
            (nodes.get(one) or constant(f.subject), f.relation, nodes.get(other) or constant(f.object)) for f, one, other in stated
        )

    @property
    def formula(self) -> tuple[Triple, ...]:
        """The question that the outline asks."""
        variables = {key_of(text): f"{VARIABLE}x{number}" for number, text in enumerate(self.unknowns)}
        return self.triples(variables | {key_of(self.answer): TARGET})

    @property
    def asked(self) -> str:
        """The type of the answer, as most facts have it."""
        return self._type(self.answer)

    @property
    def masked(self) -> list[str]:
        """The facts with `?` for the answer and letters for the unknowns, each with its type: its writer cannot give them away."""
        marks = {key_of(text): f"{letter} ({self._type(text)})" for text, letter in zip(self.unknowns, LETTERS, strict=False)}
        marks[key_of(self.answer)] = f"? ({self.asked})"
        shown = ([marks.get(end) or unqualified(name) for end, name in zip(each.ends, each.names, strict=True)] for each in self.facts)
        return [f"{one} — {each.fact.relation} — {other}" for each, (one, other) in zip(self.facts, shown, strict=True)]

    def _type(self, name: str) -> str:
        typed = (pair for each in self.facts for pair in zip(each.ends, each.types, strict=True))
        kinds = Counter(kind for end, kind in typed if kind and end == key_of(name))
        return kinds.most_common(1)[0][0] if kinds else UNTYPED

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the words must not name."""
        return (self.answer, *self.unknowns)

    @property
    def named(self) -> list[str]:
        """What the words must name: all else."""
        secret = set(map(key_of, self.secrets))
        texts = (text for each in self.facts for text in each.names)
        return [unqualified(text) for text in dict.fromkeys(texts) if key_of(text) not in secret]

    @property
    def documents(self) -> list[str]:
        """Sorted ids of the quoted documents."""
        return sorted({each.passage.document for each in self.facts})


def outlines(facts: Sequence[QuotedFact]) -> list[Outline]:
    """All outlines of at most `MOST_FACTS` facts, one per tree and name that can be asked for."""
    usable = [each for each in facts if all(map(is_name, each.names))]
    trees = (tree for size in range(1, MOST_FACTS + 1) for tree in combinations(usable, size) if _is_tree(tree))
    return [outline for tree in trees for outline in _asking(tree)]


def is_name(text: str) -> bool:
    """Whether a text may be a name: one that begins and ends with a capital or a figure, as "1921 silent film" does not, and no union."""
    words = unqualified(text).split()
    return 0 < len(words) <= LONGEST_NAME and not any(word[:1].islower() for word in (words[0], words[-1])) and UNION not in text


def _is_tree(facts: Sequence[QuotedFact]) -> bool:
    """Whether the facts are connected, and no two join the same names."""
    nodes = {end for each in facts for end in each.ends}
    reached, left = set(facts[0].ends), list(facts[1:])
    while joined := [each for each in left if reached & set(each.ends)]:
        reached |= {end for each in joined for end in each.ends}
        left = [each for each in left if each not in joined]
    return reached == nodes and len(nodes) == len(facts) + 1


def _asking(facts: Sequence[QuotedFact]) -> list[Outline]:
    names = {end: text for each in facts for end, text in zip(each.ends, each.names, strict=True)}
    degrees = Counter(end for each in facts for end in each.ends)
    inner = [end for end in names if degrees[end] > 1]
    made = (Outline(tuple(facts), names[end], tuple(names[each] for each in inner if each != end)) for end in names)
    return [outline for outline in made if not _gives_away(outline)]


def _gives_away(outline: Outline) -> bool:
    return any(mentions(text, secret) for text in outline.named for secret in outline.secrets)


def objection_to_words(outline: Outline) -> Objection | None:
    """What the words give away, fail to name, or add."""
    if any(re.search(rf"\b{letter}\b", outline.words) for letter in LETTERS[: len(outline.unknowns)]):
        return Objection(ProposalDefect.NOT_ASKED, "it must describe what a letter stands for, instead of the letter")
    for secret in outline.secrets:
        if mentions(outline.words, unqualified(secret)):
            return Objection(ProposalDefect.LEAKED, f"it must not name {secret!r}")
    for text in outline.named:
        if not mentions(outline.words, text):
            return Objection(ProposalDefect.NOT_NAMED, f"it must name {text!r}")
    stated = [text for each in outline.facts for text in (*each.names, each.fact.quote)]
    if new := numbers(outline.words) - {number for text in stated for number in numbers(text)}:
        return Objection(ProposalDefect.NUMBER_NOT_STATED, f"it contains {min(new)}, which no fact states")
    return None
