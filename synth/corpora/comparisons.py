"""Comparison questions: which of two names has the earlier date, from one fact of each of two documents.

Code pairs the facts and words the question ("Which film was released first, A or B?"), so the answer follows from two quoted dates. The
formula is empty: knowledge projections (arXiv 2507.15061, section 3) have no order.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from eval.graders.dates import read_date
from synth.corpora.kinds import question_word
from synth.corpora.outlines import QuotedFact, is_name
from synth.corpora.passages import Walk
from synth.corpora.seed_proposals import Seed
from synth.questions.text_comparison import plain, unqualified
from warehouse.digests import digest
from warehouse.records import Triple

_EVENT = re.compile(r"(?:was )?(\w+ed|born|built|made|written)(?: (?:in|on))?")
"""Relations that date an event, and its participle."""


@dataclass(frozen=True, slots=True)
class Comparison(Seed):
    """Two facts with dates as objects; the answer is the subject of the earlier one."""

    @property
    def shape(self) -> str:
        return "comparison"

    @property
    def formula(self) -> tuple[Triple, ...]:
        return ()

    @property
    def key(self) -> str:
        return digest([self.shape, self.words])


def comparisons(facts: Sequence[QuotedFact], count: int, rng: random.Random) -> list[Comparison]:
    """Up to `count` random comparisons of facts with the same relation and type of subject; each fact is used at most once."""
    groups: dict[tuple[str, str], list[tuple[int, QuotedFact]]] = defaultdict(list)
    for each in facts:
        date, event = read_date(each.fact.object), _EVENT.fullmatch(plain(each.fact.relation))
        if date is not None and event is not None and each.types[0] and is_name(each.fact.subject):
            groups[each.types[0], event[1]].append((date.year, each))
    found: list[Comparison] = []
    for (kind, verb), dated in sorted(groups.items()):
        rng.shuffle(dated)
        for (year, one), (other_year, other) in zip(dated[::2], dated[1::2], strict=False):
            if year != other_year and one.passage.document != other.passage.document and one.ends[0] != other.ends[0]:
                first, second = (unqualified(each.fact.subject) for each in (one, other))
                words = f"{question_word(kind)} was {verb} first, {first} or {second}?"
                walk = Walk((one.passage, other.passage), ())
                found.append(Comparison((one, other), first if year < other_year else second, (), words, walk=walk))
    rng.shuffle(found)
    return found[:count]
