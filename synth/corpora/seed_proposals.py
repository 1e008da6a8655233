"""A question about a walk, from facts that its passages state: which facts it takes, what it asks for, what it must name and must not.

The facts are edges between names, and an outline is a tree of them, over as many documents as it can. One name of the tree is the answer,
the other inner ones are unknowns that the question leaves out, the ends are named. So the formula (WebShaper's knowledge projections, arXiv
2507.15061, section 3) is known before the question is written, each of its triples has a quotation, and a teacher only writes the words.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from synth.corpora.grounding import TypedFact
from synth.corpora.passages import Passage, Walk
from synth.corpora.proposals import Objection, ProposalDefect
from synth.formulas.triples import TARGET, UNION, VARIABLE, constant, count_constants, depth, formula_digest, validate
from synth.questions.rewording import asks
from synth.questions.text_comparison import NameKey, mentions, name_key, numbers, plain, unqualified
from warehouse.digests import digest
from warehouse.records import Task, Triple

MOST_FACTS = 3
"""Most facts of one question."""
LETTERS = "XYZ"
"""What stands for unknowns where a question is worded; none is a word."""
LONGEST_NAME = 8
"""Most words of a name that a question may name or ask for; longer ones are clauses, and names begin with a capital or a figure."""


class SeedDefect(StrEnum):
    """Why a seed is rejected, in addition to `GroundingDefect` and `ProposalDefect`."""

    NO_FACTS = "no_facts"
    NO_OUTLINE = "no_outline"
    DOUBLE = "double"
    CONTRADICTED = "contradicted"
    NOT_ANSWERED = "not_answered"
    SECOND_ANSWER = "second_answer"


@dataclass(frozen=True, slots=True)
class QuotedFact:
    """A fact with its own words in a passage."""

    fact: TypedFact
    passage: Passage

    @property
    def ends(self) -> tuple[NameKey, NameKey]:
        return _key(self.fact.subject), _key(self.fact.object)

    @property
    def types(self) -> tuple[str, str]:
        return plain(self.fact.subject_type), plain(self.fact.object_type)


@dataclass(frozen=True, slots=True)
class Seed:
    """Facts of a walk as a question: its answer, the unknowns on the way, and its words, empty while it is an outline."""

    walk: Walk
    facts: tuple[QuotedFact, ...]
    answer: str
    unknowns: tuple[str, ...]
    question: str = ""

    @property
    def formula(self) -> tuple[Triple, ...]:
        nodes = {_key(text): f"{VARIABLE}x{number}" for number, text in enumerate(self.unknowns)} | {_key(self.answer): TARGET}
        stated = ((each.fact, *each.ends) for each in self.facts)
        return tuple(
            (nodes.get(one) or constant(f.subject), f.relation, nodes.get(other) or constant(f.object)) for f, one, other in stated
        )

    @property
    def asked(self) -> str:
        """The type of the answer, as the facts have it."""
        return self._types.get(_key(self.answer)) or "thing"

    @property
    def masked(self) -> list[str]:
        """The facts with `?` for the answer and letters for the unknowns, each with its type: its writer cannot give them away."""
        letters = {_key(text): letter for text, letter in zip(self.unknowns, LETTERS, strict=False)} | {_key(self.answer): "?"}
        marks = {key: f"{letter} ({self._types.get(key) or 'thing'})" for key, letter in letters.items()}

        def shown(text: str) -> str:
            return marks.get(_key(text), unqualified(text))

        return [f"{shown(each.fact.subject)} — {each.fact.relation} — {shown(each.fact.object)}" for each in self.facts]

    @property
    def _types(self) -> dict[NameKey, str]:
        kinds = ((end, kind) for each in self.facts for end, kind in zip(each.ends, each.types, strict=True))
        return {end: kind for end, kind in kinds if kind}

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the question must not name."""
        return (self.answer, *self.unknowns)

    @property
    def named(self) -> list[str]:
        """What the question must name: all else."""
        secret = set(map(_key, self.secrets))
        texts = (text for each in self.facts for text in (each.fact.subject, each.fact.object))
        return [unqualified(text) for text in dict.fromkeys(texts) if _key(text) not in secret]

    @property
    def documents(self) -> list[str]:
        """Sorted ids of the quoted documents."""
        return sorted({each.passage.document for each in self.facts})

    @property
    def key(self) -> str:
        """Key of its task: equal for questions that ask the same and have the same answer."""
        return digest(["seed", formula_digest(self.formula), plain(self.answer)])


def _key(text: str) -> NameKey:
    return name_key(unqualified(text))


def outline(walk: Walk, facts: Sequence[QuotedFact], rng: random.Random) -> Seed | None:
    """A random question over as many documents of the walk as a tree of `facts` reaches; None if there is none."""
    usable = [each for each in facts if _is_name(each.fact.subject) and _is_name(each.fact.object)]
    trees = [tree for size in range(1, MOST_FACTS + 1) for tree in combinations(usable, size) if _is_tree(tree)]
    found = [seed for tree in trees for seed in _asking(walk, tree)]
    most = max((len(seed.documents) for seed in found), default=0)
    widest = [seed for seed in found if len(seed.documents) == most]
    return rng.choice(widest) if widest else None


def _is_name(text: str) -> bool:
    return (text[:1].isupper() or text[:1].isdigit()) and len(text.split()) <= LONGEST_NAME and UNION not in text


def _is_tree(facts: Sequence[QuotedFact]) -> bool:
    """Whether the facts are connected, and no two join the same names."""
    nodes = {end for each in facts for end in each.ends}
    reached, left = set(facts[0].ends), list(facts[1:])
    while joined := [each for each in left if reached & set(each.ends)]:
        reached |= {end for each in joined for end in each.ends}
        left = [each for each in left if each not in joined]
    return reached == nodes and len(nodes) == len(facts) + 1


def _asking(walk: Walk, facts: Sequence[QuotedFact]) -> list[Seed]:
    """The questions over a tree of facts, one per name that can be asked for."""
    names = {end: text for each in facts for end, text in zip(each.ends, (each.fact.subject, each.fact.object), strict=True)}
    degrees = Counter(end for each in facts for end in each.ends)
    inner = [end for end in names if degrees[end] > 1]
    seeds = (Seed(walk, tuple(facts), names[end], tuple(names[each] for each in inner if each != end)) for end in names)
    return [seed for seed in seeds if not _gives_away(seed) and not validate(seed.formula)]


def _gives_away(seed: Seed) -> bool:
    return any(mentions(text, secret) for text in seed.named for secret in seed.secrets)


def objection_to_words(seed: Seed) -> Objection | None:
    """What the question gives away, fails to name, or adds."""
    if not asks(seed.question):
        return Objection(ProposalDefect.NOT_ASKED, "it is no question, or one for yes or no")
    if any(re.search(rf"\b{letter}\b", seed.question) for letter in LETTERS[: len(seed.unknowns)]):
        return Objection(ProposalDefect.NOT_ASKED, "it must describe what a letter stands for, instead of the letter")
    for secret in seed.secrets:
        if mentions(seed.question, unqualified(secret)):
            return Objection(ProposalDefect.LEAKED, f"the question must not name {secret!r}")
    for text in seed.named:
        if not mentions(seed.question, text):
            return Objection(ProposalDefect.NOT_NAMED, f"the question must name {text!r}")
    stated = [text for each in seed.facts for text in (each.fact.subject, each.fact.object, each.fact.quote)]
    if new := numbers(seed.question) - {number for text in stated for number in numbers(text)}:
        return Objection(ProposalDefect.NUMBER_NOT_STATED, f"the question contains {min(new)}, which no fact states")
    return None


def task_of(seed: Seed, teacher: str, environment: str) -> Task:
    """The seed as a task, without proofs."""
    provenance = {
        "seeded_by": teacher,
        "shape": "seed",
        "path": list(seed.unknowns),
        "walk": [passage.id for passage in seed.walk.passages],
        "linked_by": [{"kind": link.kind, "words": link.words} for link in seed.walk.links],
        "projections": [
            {
                **each.fact.model_dump(include={"subject", "relation", "object", "quote"}),
                "document": each.passage.document,
                "passage": each.passage.id,
            }
            for each in seed.facts
        ],
    }
    return Task(
        key=seed.key,
        environment=environment,
        question=seed.question.strip(),
        answers=(unqualified(seed.answer.strip()),),
        formula=seed.formula,
        hops=len(seed.documents),
        constraints=count_constants(seed.formula),
        layers=depth(seed.formula),
        provenance=provenance,
    )


def numbered(passages: Sequence[Passage]) -> str:
    """Passages as shown to a teacher, numbered from 1."""
    return "\n\n".join(f"[{number}] {passage.title}\n{passage.text}" for number, passage in enumerate(passages, 1))
