"""Search the documents for evidence against seed questions: passages that contradict a fact, and second answers.

Evidence counts only if its quotation is in the passage it cites. An unreadable reply or a reader that fails its calibration
(`readers.py`) leaves a verdict undetermined (None).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from rl.retrieval.search import SearchIndex
from synth.corpora.grounding import TypedFact
from synth.corpora.outlines import Objection, QuotedFact
from synth.corpora.passages import LinkedPassages, Passage
from synth.corpora.seed_proposals import STAGE, Seed, SeedDefect, numbered
from synth.formulas.triples import is_constant, members
from synth.questions.text_comparison import NameKey, locate, mentions, name_key, unqualified
from synth.teachers.readers import CONTRADICTS, FITS, Readers
from synth.teachers.teacher import Teacher, as_read, ask_for
from warehouse.records import Document, Failure, Request, user

T = TypeVar("T")
Verdict = Objection | bool | None
"""Objection, True (passed), or None (undetermined)."""

MOST_ANSWERS = 10

_CONTRADICTION = """{passages}

Claim: {claim}
Question: does one of these passages contradict the claim, so that both cannot be true? A passage does not if it only adds to the claim, \
or is about something else of the same name. Reply with JSON alone: {{"contradicted": true or false, "passage": its number, "quote": "the \
words of the passage that contradict the claim, copied exactly"}}"""
_ANSWERS = """{passages}

Question: {question}
List every answer to the question that these passages give, each once, with the words that show it, copied exactly. Reply with JSON alone: \
[{{"answer": "...", "passage": 1, "quote": "..."}}]; [] where the passages give none."""
_READER = """You answer questions from the passages that you are shown, and from nothing else. Reply with the JSON {"answer": "..."}: a \
name, title, date or number as the passages have it, never a name that the question gives; null where the passages do not answer."""
_PASSAGES = "[1] Sootlantern\nSootlantern is a play of 1961 by Orla Vennick."
CONTRADICTIONS = (
    (
        _CONTRADICTION.format(passages=_PASSAGES, claim="Sootlantern — year — 1974"),
        '{"contradicted": true, "passage": 1, "quote": "a play of 1961"}',
    ),
    (
        _CONTRADICTION.format(passages=_PASSAGES, claim="Sootlantern — performed in — Larkmereth"),
        '{"contradicted": false, "passage": null, "quote": null}',
    ),
)
READ_ANSWERS = (
    (f"{_PASSAGES}\n\nQuestion: Who wrote Sootlantern?", '{"answer": "Orla Vennick"}'),
    (f"{_PASSAGES}\n\nQuestion: Which play of 1961 is by Orla Vennick?", '{"answer": "Sootlantern"}'),
    (f"{_PASSAGES}\n\nQuestion: Who directed Sootlantern?", '{"answer": null}'),
)
FOUND_ANSWERS = (
    (
        _ANSWERS.format(passages=_PASSAGES, question="Who wrote Sootlantern?"),
        '[{"answer": "Orla Vennick", "passage": 1, "quote": "a play of 1961 by Orla Vennick"}]',
    ),
    (
        _ANSWERS.format(passages=_PASSAGES, question="Which play of 1961 is by Orla Vennick?"),
        '[{"answer": "Sootlantern", "passage": 1, "quote": "Sootlantern is a play of 1961 by Orla Vennick"}]',
    ),
)


class Contradiction(BaseModel):
    """Reply schema: verdict on a claim given retrieved passages."""

    contradicted: bool
    passage: int | None = None
    quote: Annotated[str, Field(max_length=600)] | None = None


class ReadAnswer(BaseModel):
    """Reply schema: a reader's answer to a question."""

    answer: Annotated[str, Field(max_length=200)] | None


class FoundAnswer(BaseModel):
    """Reply schema: an answer found in passages."""

    answer: Annotated[str, Field(max_length=200)]
    passage: int
    quote: str = Field(max_length=600)


VERDICT = TypeAdapter(Contradiction)
READ = TypeAdapter(ReadAnswer)
FOUND = TypeAdapter(Annotated[list[FoundAnswer], Field(max_length=MOST_ANSWERS)])


class PassageSearch:
    def __init__(self, linked: LinkedPassages) -> None:
        self._linked = linked
        self._places = {passage.id: place for place, passage in enumerate(linked.passages)}
        self._index = SearchIndex(Document(passage.id, passage.title, passage.text, passage.document) for passage in linked.passages)

    def find(self, queries: Iterable[str], k: int, without: Iterable[Passage] = ()) -> list[Passage]:
        """Top `k` passages of each query that are not in `without`."""
        known, found = {passage.id for passage in without}, dict[str, Passage]()
        for query in queries:
            hits = [hit.id for hit in self._index.search(query, k + len(known)) if hit.id not in known]
            found.update((hit, self._linked.passages[self._places[hit]]) for hit in hits[:k])
        return list(found.values())

    def onward(self, passages: Sequence[Passage], k: int) -> list[Passage]:
        """Up to `k` other passages that these link to, round robin."""
        known, found = {passage.id for passage in passages}, dict[str, Passage]()
        for turn in zip_longest(*map(self._led_to, passages)):
            found.update((passage.id, passage) for passage in turn if passage is not None and passage.id not in known)
        return list(found.values())[:k]

    def _led_to(self, passage: Passage) -> list[Passage]:
        links = self._linked.links[self._places[passage.id]]
        return [self._linked.passages[link.to] for link in links if link.words in passage.text]


@dataclass(frozen=True, slots=True)
class Searcher:
    """Searches for evidence against questions. Unreadable replies are requested again; the failures go to `failures`."""

    teacher: Teacher
    search: PassageSearch
    k: int
    max_tokens: int
    readers: Readers
    failures: list[Failure]

    def contradictions(self, seeds: Sequence[Seed]) -> list[Verdict]:
        """For each seed, check that no passage retrieved for its facts contradicts one, by a reader's verdict and a quotation."""
        facts = ((place, each) for place, seed in enumerate(seeds) for each in seed.facts)
        met = [(place, each, found) for place, each in facts if (found := self._on(each))]
        cases = [{"passages": numbered(found), "claim": each.fact.claim} for _, each, found in met]
        suspected = self.readers.read(CONTRADICTS, cases)
        asked = [case for case, said in zip(met, suspected, strict=True) if said]
        requests = [
            user(_CONTRADICTION.format(passages=numbered(found), claim=each.fact.claim), max_tokens=256, examples=CONTRADICTIONS)
            for _, each, found in asked
        ]
        replies = self._ask(requests, VERDICT)
        verdicts: list[Verdict] = [True] * len(seeds)
        for (place, _, _), said in zip(met, suspected, strict=True):
            verdicts[place] = _worse(verdicts[place], None if said is None else True)
        for (place, each, found), reply in zip(asked, replies, strict=True):
            verdicts[place] = _worse(verdicts[place], _contradicted(each.fact, found, reply))
        return verdicts

    def second_answers(self, seeds: Sequence[Seed]) -> list[Verdict]:
        """For each seed, check that its passages answer the question and that retrieved passages give no other answer.

        The walk's passages are read alone first, since more passages distract small readers. Other answers are searched for only if the
        reader is calibrated for `FITS`.
        """
        verdicts = self._answered(seeds)
        left = [place for place, verdict in enumerate(verdicts) if verdict is True]
        if not left or not self.readers.is_fit(FITS):
            return [None if verdict is True else verdict for verdict in verdicts]
        shown = {place: [*seeds[place].walk.passages, *self._about(seeds[place])] for place in left}
        more = self._ask([self._list(seeds[place], shown[place]) for place in left], FOUND)
        for place, found in zip(left, more, strict=True):
            verdicts[place] = None if found is None else True
        others = [
            (place, candidate)
            for place, found in zip(left, more, strict=True)
            if found is not None
            for candidate in _candidates(seeds[place], found, shown[place])
        ]
        cases = [_fitting(seeds[place], candidate, shown[place]) for place, candidate in others]
        for (place, candidate), fits in zip(others, self.readers.read(FITS, cases), strict=True):
            objection = Objection(SeedDefect.SECOND_ANSWER, f"{candidate.answer!r} fits as well: {candidate.quote!r}")
            verdicts[place] = _worse(verdicts[place], objection if fits else None if fits is None else True)
        return verdicts

    def _answered(self, seeds: Sequence[Seed]) -> list[Verdict]:
        """For each seed, whether a reader of its walk's passages gives the answer; one that repeats a name given in it is asked again."""

        def check(place: int, read: ReadAnswer) -> ReadAnswer | Failure:
            if read.answer is None or not mentions(seeds[place].words, read.answer):
                return read
            reason = f"the question itself names {read.answer!r}; it asks for something else"
            return Failure(STAGE, SeedDefect.NOT_ANSWERED, reason, {"question": seeds[place].words})

        asked = [f"{numbered(seed.walk.passages)}\n\nQuestion: {seed.words}" for seed in seeds]
        requests = [user(text, _READER, max_tokens=64, examples=READ_ANSWERS) for text in asked]
        results, before = ask_for(self.teacher, requests, READ, check)
        failed = (result for result in results if isinstance(result, Failure) and result.kind != SeedDefect.NOT_ANSWERED)
        self.failures.extend([*before, *failed])
        return [_objection_to_answer(seed, read) for seed, read in zip(seeds, results, strict=True)]

    def _on(self, each: QuotedFact) -> list[Passage]:
        subject, relation = unqualified(each.fact.subject), each.fact.relation
        found = self.search.find((f"{subject} {relation} {each.fact.object}", f"{subject} {relation}"), self.k, [each.passage])
        return [passage for passage in found if _is_about(passage, subject)]

    def _about(self, seed: Seed) -> list[Passage]:
        """Hits outside the walk for the question and for each named constant with its relation, and the passages they link to.

        Links matter if an alternative answer needs an intermediate page.
        """
        said = [words for subject, relation, value in seed.formula if (words := _said(subject, relation, value))]
        hits = self.search.find((seed.words, *said), self.k, seed.walk.passages)[: 2 * self.k]
        return [*hits, *self.search.onward([*seed.walk.passages, *hits], 2 * self.k)]

    def _list(self, seed: Seed, passages: Sequence[Passage]) -> Request:
        asked = _ANSWERS.format(passages=numbered(passages), question=seed.words)
        return user(asked, max_tokens=self.max_tokens, examples=FOUND_ANSWERS)

    def _ask(self, requests: Sequence[Request], shape: TypeAdapter[T]) -> list[T | None]:
        results, before = ask_for(self.teacher, requests, shape, as_read)
        self.failures.extend([*before, *(result for result in results if isinstance(result, Failure))])
        return [None if isinstance(result, Failure) else result for result in results]


def _is_about(passage: Passage, subject: str) -> bool:
    """Whether a passage is titled `subject` or, for names of several words, contains it."""
    if name_key(unqualified(passage.title)) == name_key(subject):
        return True
    return " " in subject and mentions(passage.text, subject) > 0


def _said(subject: str, relation: str, value: str) -> str:
    named = [member for node in (subject, value) if is_constant(node) for member in members(node)]
    return " ".join((*named, relation)) if named else ""


def _worse(one: Verdict, other: Verdict) -> Verdict:
    return one if isinstance(one, Objection) or (one is None and not isinstance(other, Objection)) else other


def _contradicted(fact: TypedFact, found: Sequence[Passage], said: Contradiction | None) -> Verdict:
    if said is None or not said.contradicted:
        return None if said is None else True
    passage = _passage(found, said.passage)
    quote = None if passage is None else locate(passage.text, said.quote or "")
    if passage is None or quote is None or mentions(quote, fact.object):
        return None
    return Objection(SeedDefect.CONTRADICTED, f"{fact.claim}: {passage.id} says {quote!r}")


def _objection_to_answer(seed: Seed, read: ReadAnswer | Failure) -> Verdict:
    if isinstance(read, Failure):
        return Objection(SeedDefect.NOT_ANSWERED, read.reason) if read.kind == SeedDefect.NOT_ANSWERED else None
    if read.answer is not None and (mentions(read.answer, seed.answer) or mentions(seed.answer, read.answer)):
        return True
    return Objection(SeedDefect.NOT_ANSWERED, f"a reader of the passages answers {read.answer or 'nothing'} instead of {seed.answer!r}")


def _candidates(seed: Seed, found: Sequence[FoundAnswer], shown: Sequence[Passage]) -> list[FoundAnswer]:
    others: dict[NameKey, FoundAnswer] = {}
    for each in found:
        passage = _passage(shown, each.passage)
        if passage is not None and locate(passage.text, each.quote) and _names(each, passage.title):
            others.setdefault(name_key(unqualified(each.answer)), each)
    others.pop(name_key(unqualified(seed.answer)), None)
    return list(others.values())


def _names(each: FoundAnswer, title: str) -> bool:
    return bool(mentions(each.quote, each.answer)) or name_key(unqualified(each.answer)) == name_key(unqualified(title))


def _passage(passages: Sequence[Passage], number: int | None) -> Passage | None:
    return passages[number - 1] if number is not None and 1 <= number <= len(passages) else None


def _fitting(seed: Seed, candidate: FoundAnswer, shown: Sequence[Passage]) -> dict[str, str]:
    return {"passages": numbered(shown), "question": seed.words, "candidate": candidate.answer, "answer": seed.answer}
