"""Generate seed questions from documents: a teacher states facts of linked passages and words a question over them; checks filter.

WebShaper lets a model write seeds about the pages of a random walk, and an agent must find the answer (arXiv 2507.15061). Here every
projection is quoted, and the documents are searched for counter-evidence. The steps:

    facts           the teacher states facts of the walk's passages, each with a quotation that names both ends
    outlined        select facts, the answer, the names given and the names hidden (`seed_proposals.outline`)
    stated          a second reader confirms each fact from passage and claim alone
    worded          the teacher words the question; it hides answer and unknowns, contains all other names, adds no number, and is new
    uncontradicted  no retrieved passage about the same subject contradicts a fact
    only_answer     a reader of the walk's and retrieved passages finds the answer and no other that fits

Comparisons (`comparisons.py`) are worded by code; their facts pass `stated` and `uncontradicted`.

Each rejection is a `Failure`. Evidence counts only if its quotation is in the passage it cites. An unreadable reply or a reader that fails
its calibration (`readers.py`) leaves a verdict undetermined (None). The last two checks are no proofs; undetermined verdicts are listed
under `unproven` in the proofs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from rl.retrieval.search import SearchIndex
from synth.corpora.comparisons import comparisons
from synth.corpora.config import SeedsConfig
from synth.corpora.grounding import TypedFact, stated_case
from synth.corpora.outlines import UNTYPED, Objection, ProposalDefect, QuotedFact
from synth.corpora.passages import LinkedPassages, Passage, Walk
from synth.corpora.proposals import KnownFacts, proofs_of_seed
from synth.corpora.seed_proposals import (
    Seed,
    SeedDefect,
    numbered,
    objection_to_question,
    outline,
    question_pattern,
    question_word,
    task_of,
)
from synth.corpora.statements import state_facts
from synth.formulas.triples import is_constant, members
from synth.questions.text_comparison import NameKey, locate, mentions, name_key, unqualified
from synth.teachers.readers import CONTRADICTS, FITS, STATED, Readers
from synth.teachers.teacher import Teacher, as_read, ask_for
from warehouse.digests import seed_from
from warehouse.records import Document, Failure, Request, Task, user
from warehouse.replies import form_of

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


class FoundAnswer(BaseModel):
    """Reply schema: an answer found in passages."""

    answer: Annotated[str, Field(max_length=200)]
    passage: int
    quote: str = Field(max_length=600)


_VERDICT = TypeAdapter(Contradiction)
_FOUND = TypeAdapter(Annotated[list[FoundAnswer], Field(max_length=MOST_ANSWERS)])


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
            user(_CONTRADICTION.format(passages=numbered(found), claim=each.fact.claim), max_tokens=256, examples=_CONTRADICTIONS)
            for _, each, found in asked
        ]
        replies = self._ask(requests, _VERDICT)
        verdicts: list[Verdict] = [True] * len(seeds)
        for (place, _, _), said in zip(met, suspected, strict=True):
            verdicts[place] = _worse(verdicts[place], None if said is None else True)
        for (place, each, found), reply in zip(asked, replies, strict=True):
            verdicts[place] = _worse(verdicts[place], _contradicted(each.fact, found, reply))
        return verdicts

    def second_answers(self, seeds: Sequence[Seed]) -> list[Verdict]:
        """For each seed, check that its passages answer the question and that retrieved passages give no other answer.

        The walk's passages are read alone first, since more passages distract small readers. Retrieved passages are read only if the reader
        is calibrated for `FITS`.
        """
        lists = self._ask([self._list(seed, seed.walk.passages) for seed in seeds], _FOUND)
        verdicts: list[Verdict] = [_answered(seed, found) for seed, found in zip(seeds, lists, strict=True)]
        left = [place for place, verdict in enumerate(verdicts) if verdict is True]
        if not left or not self.readers.is_fit(FITS):
            return [None if verdict is True else verdict for verdict in verdicts]
        shown = {place: [*seeds[place].walk.passages, *self._about(seeds[place])] for place in left}
        more = self._ask([self._list(seeds[place], shown[place]) for place in left], _FOUND)
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
        return user(asked, max_tokens=self.max_tokens, examples=_FOUND_ANSWERS)

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


def _answered(seed: Seed, found: Sequence[FoundAnswer] | None) -> Verdict:
    if found is None:
        return None
    own = seed.answer
    if any(mentions(each.answer, own) or mentions(own, each.answer) for each in found):
        return True
    listed = "; ".join(each.answer for each in found) or "nothing"
    return Objection(SeedDefect.NOT_ANSWERED, f"a reader of the passages answers {listed} instead of {own!r}")


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


STAGE = "seeds"
CHECKS = ("facts", "outlined", "stated", "worded", "uncontradicted", "only_answer")
"""Checks in order; the survivors of each are counted under its name."""
ASKED = "walks"
"""Key of the number of walks in `survived`."""

_WORDING = """{facts}

Write one question in plain words that begins with "{word}" and asks for the {asked} that is "?" in these facts. Letters stand \
for things that the question does not name but describes by the facts. The question names {named}. Reply with JSON alone: \
{{"question": "..."}}"""
WORDINGS = (
    (
        _WORDING.format(
            facts="Sootlantern — author — X (person)\nX (person) — grew up in — ? (town)",
            word="Which town",
            asked="town",
            named="Sootlantern",
        ),
        '{"question": "Which town did the author of Sootlantern grow up in?"}',
    ),
    (
        _WORDING.format(
            facts="? (person) — home — Larkmereth\nGlasheron — author — ? (person)",
            word="Who",
            asked="person",
            named="Larkmereth and Glasheron",
        ),
        '{"question": "Who has a home in Larkmereth and wrote Glasheron?"}',
    ),
    (
        _WORDING.format(
            facts="? (play) — written by — Orla Vennick\n? (play) — performed in — Larkmereth",
            word="Which play",
            asked="play",
            named="Orla Vennick and Larkmereth",
        ),
        '{"question": "Which play by Orla Vennick was performed in Larkmereth?"}',
    ),
)


class Worded(BaseModel):
    question: str = Field(min_length=1, max_length=600)


WORDED = TypeAdapter(Worded)


@dataclass(slots=True)
class SeedQuestions:
    """Tasks, failures, and the number of survivors per check."""

    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    survived: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Candidate:
    seed: Seed
    verdicts: dict[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SeedGenerator:
    """Generates questions about walks.

    Args:
        readers: readers that verify the teacher's output.
        passages: search for evidence against a question.
        index: the policy's search, used to detect questions that it answers directly.
        known: graph used for proofs, if any.
        environment: environment of the tasks.
    """

    teacher: Teacher
    readers: Readers
    passages: PassageSearch
    index: SearchIndex
    config: SeedsConfig
    environment: str = "search"
    known: KnownFacts | None = None

    def make(self, walks: Sequence[Walk], seed: int, stored: AbstractSet[str] = frozenset()) -> SeedQuestions:
        """Generate at most one question per walk; `stored` are keys of existing tasks. Raises RequestError if the teacher is unusable."""
        result = SeedQuestions(survived={ASKED: len(walks)})
        facts = self._facts(walks, result)
        left = [_Candidate(seed) for seed in self._outlined(walks, facts, seed, result)]
        left = _sift("stated", left, self._stated(left), result)
        left = self._worded(left, seed, stored, result)
        searcher = Searcher(self.teacher, self.passages, self.config.searched, self.config.max_tokens, self.readers, result.failures)
        left = _sift("uncontradicted", left, searcher.contradictions([candidate.seed for candidate in left]), result)
        left = _sift("only_answer", left, searcher.second_answers([candidate.seed for candidate in left]), result)
        for candidate in [*left, *self._compared(walks, facts, seed, stored, searcher, result)]:
            made = self._task(candidate)
            result.tasks += [made] if isinstance(made, Task) else []
            result.failures += [_dropped(made, candidate.seed)] if isinstance(made, Objection) else []
        result.failures += self.readers.drain()
        return result

    def _facts(self, walks: Sequence[Walk], result: SeedQuestions) -> list[QuotedFact]:
        passages = list({passage.id: passage for walk in walks for passage in walk.passages}.values())
        facts, failures = state_facts(self.teacher, passages, STAGE, self.config.max_tokens)
        result.failures += failures
        return facts

    def _compared(
        self,
        walks: Sequence[Walk],
        facts: Sequence[QuotedFact],
        seed: int,
        stored: AbstractSet[str],
        searcher: Searcher,
        result: SeedQuestions,
    ) -> list[_Candidate]:
        """Comparisons whose facts pass the checks; each counts as a walk."""
        rng = random.Random(seed_from("comparisons", seed, *(passage.id for walk in walks for passage in walk.passages)))
        made = comparisons(facts, round(self.config.comparisons * len(walks)), rng)
        left = [_Candidate(each) for each in made if each.key not in stored]
        result.survived[ASKED] += len(left)
        apart = SeedQuestions(failures=result.failures)  # survivors of `result` are those of the walks' own questions
        left = _sift("stated", left, self._stated(left), apart)
        return _sift("uncontradicted", left, searcher.contradictions([candidate.seed for candidate in left]), apart)

    def _outlined(self, walks: Sequence[Walk], facts: Sequence[QuotedFact], seed: int, result: SeedQuestions) -> list[Seed]:
        found: list[Seed] = []
        with_facts = 0
        for walk in walks:
            stated = [each for each in facts if each.passage in walk.passages]
            rng = random.Random(seed_from("outline", seed, *(passage.id for passage in walk.passages)))
            made = outline(walk, stated, self.index, rng) if stated else Objection(SeedDefect.NO_FACTS, "its passages gave no fact")
            with_facts += bool(stated)
            if isinstance(made, Objection):
                result.failures.append(Failure(STAGE, made.kind, made.reason, {"walk": [passage.id for passage in walk.passages]}))
            else:
                found.append(made)
        result.survived |= {"facts": with_facts, "outlined": len(found)}
        return found

    def _worded(self, left: Sequence[_Candidate], seed: int, stored: AbstractSet[str], result: SeedQuestions) -> list[_Candidate]:
        """Word the candidates; stored and duplicate ones are dropped first."""
        new: dict[str, _Candidate] = {}
        for candidate in left:
            if candidate.seed.key in stored or candidate.seed.key in new:
                reason = "another question asks the same and has the same answer"
                result.failures.append(_dropped(Objection(SeedDefect.DOUBLE, reason), candidate.seed))
            else:
                new[candidate.seed.key] = candidate
        candidates = list(new.values())

        def check(place: int, worded: Worded) -> Seed | Failure:
            question = replace(candidates[place].seed, words=worded.question.strip())
            objection = objection_to_question(question)
            return question if objection is None else _dropped(objection, question)

        requests = [self._request(candidate.seed, seed) for candidate in candidates]
        read, before = ask_for(self.teacher, requests, WORDED, check)
        result.failures += [*before, *(each for each in read if isinstance(each, Failure))]
        kept = [replace(candidate, seed=each) for candidate, each in zip(candidates, read, strict=True) if not isinstance(each, Failure)]
        result.survived["worded"] = len(kept)
        return kept

    def _request(self, seed: Seed, number: int) -> Request:
        word, named = question_word(seed.asked), " and ".join(seed.named)
        asked = _WORDING.format(facts="\n".join(seed.masked), word=word, asked=seed.asked, named=named)
        own = seed_from("worded", number, seed.key)
        form = None if seed.asked == UNTYPED else form_of(WORDED, question=question_pattern(word))
        return user(asked, max_tokens=128, temperature=self.config.temperature, seed=own, examples=WORDINGS, form=form)

    def _stated(self, left: Sequence[_Candidate]) -> list[Verdict]:
        places = [(place, each) for place, candidate in enumerate(left) for each in candidate.seed.facts]
        read = self.readers.read(STATED, [stated_case(each.fact, each.passage.title, each.passage.text) for _, each in places])
        verdicts: list[Verdict] = [True] * len(left)
        for (place, each), said in zip(places, read, strict=True):
            if said is False:
                reason = f"the second reader denies that the passage states: {each.fact.claim}"
                verdicts[place] = Objection(ProposalDefect.NOT_STATED, reason)
            elif said is None and verdicts[place] is True:
                verdicts[place] = None
        return verdicts

    def _task(self, candidate: _Candidate) -> Task | Objection:
        task = task_of(candidate.seed, self.teacher.name, self.environment)
        proven = proofs_of_seed(task, self.index, self.known)
        if isinstance(proven, Objection):
            return proven
        shown: Mapping[str, Any] = {**proven, **candidate.verdicts}
        return replace(task, proofs={**shown, "unproven": [name for name, value in shown.items() if value is None]})


def _sift(check: str, left: Sequence[_Candidate], verdicts: Sequence[Verdict], result: SeedQuestions) -> list[_Candidate]:
    kept = []
    for candidate, verdict in zip(left, verdicts, strict=True):
        if isinstance(verdict, Objection):
            result.failures.append(_dropped(verdict, candidate.seed))
            continue
        candidate.verdicts[check] = verdict
        kept.append(candidate)
    result.survived[check] = len(kept)
    return kept


def _dropped(objection: Objection, seed: Seed) -> Failure:
    proposal = {
        "question": seed.words,
        "answer": seed.answer,
        "unknowns": list(seed.unknowns),
        "formula": [list(t) for t in seed.formula],
    }
    item = {"walk": [passage.id for passage in seed.walk.passages], "proposal": proposal}
    return Failure(STAGE, objection.kind, objection.reason, item)


def shortfall(wanted: int, found: int, longest: int) -> Failure:
    reason = f"the documents have {found} walks over linked passages, but synth.seeds.count asks for {wanted}"
    if not found and longest > 1:
        reason += ": no passage is linked with one of another document; synth.seeds.passages = 1 asks about single ones"
    return Failure(STAGE, "shortfall", reason, {"wanted": wanted, "found": found})
