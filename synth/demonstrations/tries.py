"""The oracle at a search that need not show the right document at once: it reads on, or asks in other words, until one shows it.

It knows which document it needs, so it sees at once whether a search has shown that: not a document of another name, not a namesake, not a
stub that lacks the fact. What it shows a policy is what rollouts of the same searches would. After a search in vain it thinks of what was
not there ("no employer") and tries again, by chance with the next page or in other words first: the name and what is wanted of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rl.retrieval.search import Hits, shown
from synth.demonstrations.oracle import OracleStep, Solution
from synth.parts import Parts, acted, asked, came
from warehouse.records import ANSWER, Document

Search = Callable[[str], Hits]
"""What a rollout's search brings for a query, its documents in the order in which they are shown."""
MOST_TRIES = 5
"""Searches for one document, beyond which the oracle gives up."""
_PAGES = (2, 3)
"""The further pages that it reads."""


@dataclass(frozen=True, slots=True)
class Try:
    """One search for a document: the query, and what it brought."""

    query: str
    hits: Hits

    def shows(self, document: Document) -> bool:
        """Whether the document stands among the hits, on its own page or on one with foreign text around it."""
        return any(hit.id == document.id for hit in self.hits.documents)


Tries = tuple[Try, ...]
"""The searches for one document; the last one shows it."""


def is_shown_at_once(solution: Solution, search: Search) -> bool:
    """Whether every search of a solution shows its document by itself."""
    return all(Try(step.query, search(step.query)).shows(step.document) for step in solution.steps)


def all_tries(solution: Solution, search: Search, rng: random.Random) -> tuple[Tries, ...] | None:
    """The searches that the oracle makes for each document of a solution; None where one of them is not found in `MOST_TRIES`."""
    tried = tuple(_tries(step, search, rng) for step in solution.steps)
    return tried if all(tried) else None


def transcript_with(question: str, solution: Solution, tried: Sequence[Tries]) -> Parts:
    """The whole trajectory with every search that was made; what is learnt of it is what the policy says and does."""
    parts = asked(question)
    for step, tries in zip(solution.steps, tried, strict=True):
        think = step.think
        for each in tries:
            parts += acted("search", each.query, think) + came(shown(each.hits))
            think = f"no {step.wanted}"
    return parts + acted(ANSWER, solution.answer, solution.think)


def _tries(step: OracleStep, search: Search, rng: random.Random) -> Tries:
    """The searches for the document of one step; none where it is not found."""
    first = Try(step.query, search(step.query))
    tried = [first]
    for query in _others(step, first.hits, rng):
        if tried[-1].shows(step.document):
            return tuple(tried)
        if len(tried) == MOST_TRIES:
            break
        tried.append(Try(query, search(query)))
    return tuple(tried) if tried[-1].shows(step.document) else ()


def _others(step: OracleStep, first: Hits, rng: random.Random) -> Iterator[str]:
    """What may be searched for after the first search, in the order in which it is; where that found nothing, no page of it does."""
    on = [f"{step.query} page {number}" for number in _PAGES] if first.documents else []
    words = [f"{step.query} {step.wanted}", f"{step.wanted} {step.query}", f"{step.wanted} of {step.query}"]
    rng.shuffle(words)
    yield from (*on, *words) if rng.random() < 0.5 else (*words[:1], *on, *words[1:])
