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

Each rejection is a `Failure`. The last two checks (`counter_evidence.py`) are no proofs; undetermined verdicts are listed under `unproven`
in the proofs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter

from rl.retrieval.search import SearchIndex
from synth.corpora.comparisons import comparisons
from synth.corpora.config import SeedsConfig
from synth.corpora.counter_evidence import PassageSearch, Searcher, Verdict
from synth.corpora.grounding import stated_case
from synth.corpora.kinds import question_pattern, question_word, said_kind
from synth.corpora.outlines import Objection, ProposalDefect, QuotedFact
from synth.corpora.passages import Walk
from synth.corpora.proposals import KnownFacts, proofs_of_seed
from synth.corpora.seed_proposals import (
    STAGE,
    Seed,
    SeedDefect,
    objection_to_question,
    outline,
    task_of,
)
from synth.corpora.statements import state_facts
from synth.teachers.readers import STATED, Readers
from synth.teachers.teacher import Teacher, ask_for
from warehouse.digests import seed_from
from warehouse.records import Failure, Request, Task, user
from warehouse.replies import form_of

CHECKS = ("facts", "outlined", "stated", "worded", "uncontradicted", "only_answer")
"""Checks in order; the survivors of each are counted under its name."""
ASKED = "walks"
"""Key of the number of walks in `survived`."""

_WORDER = """You word questions. A question asks, in plain words, for what is "?" in the facts; letters stand for things that it does not \
name but describes by the facts. Reply with the JSON {"question": "..."}."""
_WORDING = """{facts}

Write a question that begins with "{word}", asks for the {asked} and names {named}."""
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
        rng = random.Random(seed_from("comparisons", seed, *(passage.id for walk in walks for passage in walk.passages)))
        compared = comparisons(facts, round(self.config.comparisons * len(walks)), rng)
        left += self._compared([each for each in compared if each.key not in stored], searcher, result)
        for candidate in left:
            made = self._task(candidate)
            result.tasks += [made] if isinstance(made, Task) else []
            result.failures += [_dropped(made, candidate.seed)] if isinstance(made, Objection) else []
        result.failures += self.readers.drain()
        return result

    def _facts(self, walks: Sequence[Walk], result: SeedQuestions) -> list[QuotedFact]:
        passages = list({passage.id: passage for walk in walks for passage in walk.passages}.values())
        facts, failures = state_facts(self.teacher, passages, STAGE, self.config.max_tokens)
        result.failures += failures
        return [_as_said(fact) for fact in facts]

    def _compared(self, made: Sequence[Seed], searcher: Searcher, result: SeedQuestions) -> list[_Candidate]:
        """Comparisons whose facts pass the checks; each counts as a walk."""
        result.survived[ASKED] += len(made)
        apart = SeedQuestions(failures=result.failures)  # survivors of `result` are those of the walks' own questions
        left = [_Candidate(each) for each in made]
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
        form = form_of(WORDED, question=question_pattern(word))
        return user(asked, _WORDER, max_tokens=128, temperature=self.config.temperature, seed=own, examples=WORDINGS, form=form)

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


def _as_said(each: QuotedFact) -> QuotedFact:
    """The fact without types that its passage does not say: a small teacher calls a film a play if its example has a play."""
    text, fact = each.passage.text, each.fact
    types = {"subject_type": said_kind(fact.subject_type, text), "object_type": said_kind(fact.object_type, text)}
    return replace(each, fact=fact.model_copy(update=types))


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
