"""What speaks against a question elsewhere in the documents: passages that say otherwise, and other answers that fit.

A search brings the passages, a teacher reads them, and what it says counts where its quotation stands in the passage that it names. So a
contradiction or an answer that it made up drops no question; a contradiction without its quotation, and a reply that cannot be read,
leave the verdict open (None). What no search brings is not found: neither verdict is a proof, and the question says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from rl.retrieval.search import SearchIndex
from synth.corpora.linked_passages import LinkedPassages, Passage
from synth.corpora.proposals import Objection
from synth.corpora.seed_proposals import Name, ProposedProjection, Seed, SeedDefect, numbered
from synth.formulas.triples import is_constant, members
from synth.questions.text_comparison import NameKey, mentions, name_key, unqualified
from synth.teachers.asking import ask_for
from synth.teachers.teacher import Teacher, read_yes
from warehouse.records import Document, Failure, Request, user

T = TypeVar("T")
Verdict = Objection | bool | None
"""What speaks against a question, True where nothing that was found does, None where that is not clear."""

MOST_ANSWERS = 10
"""Answers of one list."""

_CONTRADICTION = """{passages}

Claim: {claim}
Question: does one of these passages contradict the claim, so that both cannot be true? A passage does not if it only adds to the claim, \
or is about something else of the same name. Reply with JSON alone: {{"contradicted": true or false, "passage": its number, "quote": "the \
words of the passage that contradict the claim, copied exactly"}}"""
_ANSWERS = """{passages}

Question: {question}
List every answer to the question that these passages give, each once, with the words that show it, copied exactly. Reply with JSON alone: \
[{{"answer": "...", "passage": 1, "quote": "..."}}]; [] where the passages give none."""
_FITS = """{passages}

Question: {question}
By these passages, is {candidate!r} a right answer to the question, and another one than {answer!r}? Answer yes or no."""


_PASSAGES = "[1] Sootlantern\nSootlantern is a play of 1961 by Orla Vennick."
_CONTRADICTIONS = (
    (
        _CONTRADICTION.format(passages=_PASSAGES, claim="Sootlantern — year — 1974"),
        '{"contradicted": true, "passage": 1, "quote": "a play of 1961"}',
    ),
    (
        _CONTRADICTION.format(passages=_PASSAGES, claim="Sootlantern — performed in — Larkmereth"),
        '{"contradicted": false, "passage": null, "quote": null}',
    ),
)
_FOUND_ANSWERS = (
    (
        _ANSWERS.format(passages=_PASSAGES, question="Who wrote Sootlantern?"),
        '[{"answer": "Orla Vennick", "passage": 1, "quote": "a play of 1961 by Orla Vennick"}]',
    ),
)


class Contradiction(BaseModel):
    """What a teacher says of a claim and the passages that a search for it brought."""

    contradicted: bool
    passage: int | None = None
    quote: Annotated[str, Field(max_length=600)] | None = None


class FoundAnswer(BaseModel):
    """An answer that a teacher finds in passages."""

    answer: Name
    passage: int
    quote: str = Field(max_length=600)


_VERDICT = TypeAdapter(Contradiction)
_FOUND = TypeAdapter(Annotated[list[FoundAnswer], Field(max_length=MOST_ANSWERS)])


class PassageSearch:
    """The search over passages, and the links that lead on from what it brings."""

    def __init__(self, linked: LinkedPassages) -> None:
        self._linked = linked
        self._places = {passage.id: place for place, passage in enumerate(linked.passages)}
        self._index = SearchIndex(Document(passage.id, passage.title, passage.text, passage.document) for passage in linked.passages)

    def find(self, queries: Iterable[str], k: int, without: Iterable[Passage] = ()) -> list[Passage]:
        """The best `k` passages of each query that are not among those `without`, each once."""
        known, found = {passage.id for passage in without}, dict[str, Passage]()
        for query in queries:
            hits = [hit.id for hit in self._index.search(query, k + len(known)) if hit.id not in known]
            found.update((hit, self._linked.passages[self._places[hit]]) for hit in hits[:k])
        return list(found.values())

    def onward(self, passages: Sequence[Passage], k: int) -> list[Passage]:
        """Up to `k` other passages that these lead to by words of their own, in turns one of each."""
        known, found = {passage.id for passage in passages}, dict[str, Passage]()
        for turn in zip_longest(*map(self._led_to, passages)):
            found.update((passage.id, passage) for passage in turn if passage is not None and passage.id not in known)
        return list(found.values())[:k]

    def _led_to(self, passage: Passage) -> list[Passage]:
        links = self._linked.links[self._places[passage.id]]
        return [self._linked.passages[link.to] for link in links if link.words in passage.text]


@dataclass(frozen=True, slots=True)
class Searcher:
    """Looks, by a search and a teacher, for what speaks against questions; a reply that cannot be read is asked for twice.

    `failures` takes the replies that were no use.
    """

    teacher: Teacher
    search: PassageSearch
    k: int
    max_tokens: int
    failures: list[Failure]

    def contradictions(self, seeds: Sequence[Seed]) -> list[Verdict]:
        """For each seed, whether a passage that a search for one of its facts brings says otherwise."""
        facts = ((place, seed, fact) for place, seed in enumerate(seeds) for fact in seed.proposal.projections)
        asked = [(place, fact, found) for place, seed, fact in facts if (found := self._on(seed, fact))]
        requests = [
            user(_CONTRADICTION.format(passages=numbered(found), claim=fact.claim), max_tokens=256, examples=_CONTRADICTIONS)
            for _, fact, found in asked
        ]
        replies = self._ask(requests, _VERDICT)
        verdicts: list[Verdict] = [True] * len(seeds)
        for (place, fact, found), reply in zip(asked, replies, strict=True):
            verdicts[place] = _worse(verdicts[place], _contradicted(fact, found, reply))
        return verdicts

    def second_answers(self, seeds: Sequence[Seed]) -> list[Verdict]:
        """For each seed, whether passages that searches bring, with its own, answer its question otherwise, or not at all."""
        shown = [[*seed.walk.passages, *self._about(seed)] for seed in seeds]
        lists = self._ask([self._list(seed, passages) for seed, passages in zip(seeds, shown, strict=True)], _FOUND)
        verdicts: list[Verdict] = [_answered(seed, found) for seed, found in zip(seeds, lists, strict=True)]
        others = [
            (place, candidate)
            for place, found in enumerate(lists)
            if found is not None and verdicts[place] is True
            for candidate in _candidates(seeds[place], found, shown[place])
        ]
        requests = [_whether_it_fits(seeds[place], candidate, shown[place]) for place, candidate in others]
        for (place, candidate), reply in zip(others, self.teacher.complete(requests), strict=True):
            fits = None if isinstance(reply, Failure) else read_yes(reply)
            objection = Objection(SeedDefect.SECOND_ANSWER, f"{candidate.answer!r} fits as well: {candidate.quote!r}")
            verdicts[place] = _worse(verdicts[place], objection if fits else None if fits is None else True)
        return verdicts

    def _on(self, seed: Seed, fact: ProposedProjection) -> list[Passage]:
        queries = (f"{fact.subject} {fact.relation} {fact.object}", f"{fact.subject} {fact.relation}")
        return self.search.find(queries, self.k, [seed.passage_of(fact)])

    def _about(self, seed: Seed) -> list[Passage]:
        """What searches for the question and for each thing that its names are said to have bring beside the walk, and where links lead.

        The links matter where something else has to be found on the way to another answer: of two directors each has a page.
        """
        said = [words for subject, relation, value in seed.proposal.formula if (words := _said(subject, relation, value))]
        hits = self.search.find((seed.proposal.question, *said), self.k, seed.walk.passages)[: 2 * self.k]
        return [*hits, *self.search.onward([*seed.walk.passages, *hits], 2 * self.k)]

    def _list(self, seed: Seed, passages: Sequence[Passage]) -> Request:
        asked = _ANSWERS.format(passages=numbered(passages), question=seed.proposal.question)
        return user(asked, max_tokens=self.max_tokens, examples=_FOUND_ANSWERS)

    def _ask(self, requests: Sequence[Request], shape: TypeAdapter[T]) -> list[T | None]:
        """What was replied in that shape; None where nothing was."""
        results, before = ask_for(self.teacher, requests, shape)
        self.failures.extend([*before, *(result for result in results if isinstance(result, Failure))])
        return [None if isinstance(result, Failure) else result for result in results]


def _said(subject: str, relation: str, value: str) -> str:
    """A projection about a constant as words to look for; none where it joins two unknowns."""
    named = [member for node in (subject, value) if is_constant(node) for member in members(node)]
    return " ".join((*named, relation)) if named else ""


def _worse(one: Verdict, other: Verdict) -> Verdict:
    """The one that says more against a question."""
    return one if isinstance(one, Objection) or (one is None and not isinstance(other, Objection)) else other


def _contradicted(fact: ProposedProjection, found: Sequence[Passage], said: Contradiction | None) -> Verdict:
    if said is None or not said.contradicted:
        return None if said is None else True
    passage, quote = _passage(found, said.passage), said.quote or ""
    if passage is None or not mentions(passage.text, quote):
        return None
    return Objection(SeedDefect.CONTRADICTED, f"{fact.claim}: {passage.id} says {quote!r}")


def _answered(seed: Seed, found: Sequence[FoundAnswer] | None) -> Verdict:
    """Whether the answer is among those found, in more or fewer words; whether the others are answers is asked of each."""
    if found is None:
        return None
    own = seed.proposal.answer
    if any(mentions(each.answer, own) or mentions(own, each.answer) for each in found):
        return True
    listed = "; ".join(each.answer for each in found) or "nothing"
    return Objection(SeedDefect.NOT_ANSWERED, f"who reads the passages answers {listed}, and not {own!r}")


def _candidates(seed: Seed, found: Sequence[FoundAnswer], shown: Sequence[Passage]) -> list[FoundAnswer]:
    """Other names than the answer's that stand in words of a passage."""
    others: dict[NameKey, FoundAnswer] = {}
    for each in found:
        passage = _passage(shown, each.passage)
        if passage is not None and mentions(passage.text, each.quote) and _names(each, passage.title):
            others.setdefault(name_key(unqualified(each.answer)), each)
    others.pop(name_key(unqualified(seed.proposal.answer)), None)
    return list(others.values())


def _names(each: FoundAnswer, title: str) -> bool:
    return bool(mentions(each.quote, each.answer)) or name_key(unqualified(each.answer)) == name_key(unqualified(title))


def _passage(passages: Sequence[Passage], number: int | None) -> Passage | None:
    return passages[number - 1] if number is not None and 1 <= number <= len(passages) else None


def _whether_it_fits(seed: Seed, candidate: FoundAnswer, shown: Sequence[Passage]) -> Request:
    asked, answer = seed.proposal.question, seed.proposal.answer
    return user(_FITS.format(passages=numbered(shown), question=asked, candidate=candidate.answer, answer=answer), max_tokens=64)
