"""Facts from plain text by a teacher: open information extraction, checked against the passage, its names linked to entities.

A document is read in passages. The teacher states facts, each with the words that say so; what cannot be found in the passage is dropped.
A second request, which sees the passage and the claim alone, says whether the passage states it: that is a judgement and no proof, and it
can be switched off. Names are linked to the entities that are known and to each other, so that one name means one entity, as a
`Corpus` wants it. Everything dropped is a `Failure` with its reason and the statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter

from synth.corpora.config import ExtractionConfig
from synth.corpora.grounding import AmbiguousMention, GroundingDefect, Linker, StatedFact, grounding_defect, whether_stated
from synth.corpora.passages import short_passages_of
from synth.questions.text_comparison import plain
from synth.teachers.teacher import Teacher, read_json, read_yes
from warehouse.corpora.corpus import Corpus
from warehouse.forms import form_of
from warehouse.records import Completion, Document, Fact, Failure, Request, user

STAGE = "extraction"


class ExtractionDefect(StrEnum):
    """Why a grounded statement is no fact; what an ungrounded one lacks is a `grounding.Lack`."""

    RELATION_NOT_WANTED = "relation_not_wanted"
    AMBIGUOUS = "ambiguous"
    NOT_STATED = "not_stated"
    NO_VERDICT = "no_verdict"


class TypedFact(StatedFact):
    """A statement that also says what kind of thing its two ends are."""

    subject_type: str = ""
    object_type: str = ""


SYSTEM = """You extract facts from a passage as a JSON list of objects with the keys "subject", "relation", "object", "quote", \
"subject_type" and "object_type". Write out names in full, as the passage or its title has them, and no pronouns. A relation is one or two \
words, a type one word. The quote is the shortest run of words of the passage, copied exactly, that states the fact. State only what \
the passage states. Reply with the JSON alone; a passage without facts gives []."""

EXAMPLES = (
    (
        "Title: Sootlantern\nPassage: Sootlantern is a 1961 play by Orla Vennick. It was first performed in Larkmereth.",
        '[{"subject": "Sootlantern", "relation": "written by", "object": "Orla Vennick", "quote": "a 1961 play by Orla Vennick", '
        '"subject_type": "play", "object_type": "person"}, {"subject": "Sootlantern", "relation": "performed in", "object": "Larkmereth", '
        '"quote": "first performed in Larkmereth", "subject_type": "play", "object_type": "town"}]',
    ),
)

_STATEMENTS = TypeAdapter(list[TypedFact])


@dataclass(frozen=True, slots=True)
class _Claim:
    statement: TypedFact
    document: Document
    passage: str


@dataclass(slots=True)
class _Harvest:
    """What has been found so far."""

    facts: list[Fact] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def drop(self, kind: str, reason: str, claim: _Claim) -> None:
        """Keep what was dropped, and why."""
        item = {"document": claim.document.id, "statement": claim.statement.model_dump()}
        self.failures.append(Failure(STAGE, kind, reason, item))


def extract_facts(
    documents: Sequence[Document],
    teacher: Teacher,
    config: ExtractionConfig,
    entities: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Corpus:
    """The facts that `documents` state, as a corpus with the documents.

    Args:
        entities: names that are known already; mentions of them are linked to them.
        aliases: other names, by which the entity is known.

    A fact names every document that states it. The corpus's failures hold what was dropped and the requests that failed.
    """
    harvest = _Harvest()
    claims = list(_claims(documents, teacher, config, harvest))
    claims = [claim for claim in claims if _grounded(claim, config, harvest)]
    if config.verify:
        claims = _verified(claims, teacher, harvest)
    names = [*entities, *dict.fromkeys(document.title for document in documents)]
    _link(claims, Linker(names, aliases or {}), harvest)
    return Corpus(facts=tuple(_merged(harvest.facts)), documents=tuple(documents), types=harvest.types, failures=tuple(harvest.failures))


def relation_name(text: str) -> str:
    """A relation as facts name it: `was directed by` becomes `was_directed_by`."""
    return plain(text.replace("_", " ")).replace(" ", "_")


def _claims(documents: Sequence[Document], teacher: Teacher, config: ExtractionConfig, harvest: _Harvest) -> Iterator[_Claim]:
    places = [(document, passage) for document in documents for passage in short_passages_of(document.text, config.passage_characters)]
    replies = teacher.complete([_request(document, passage, config) for document, passage in places])
    for (document, passage), reply in zip(places, replies, strict=True):
        read: list[TypedFact] | Failure = reply if isinstance(reply, Failure) else _read(reply)
        if isinstance(read, Failure):
            harvest.failures.append(read)
            continue
        yield from (_Claim(statement, document, passage) for statement in read)


def _read(reply: Completion) -> list[TypedFact] | Failure:
    return read_json(reply, _STATEMENTS)


def _request(document: Document, passage: str, config: ExtractionConfig) -> Request:
    wanted = f"Relations: {', '.join(config.relations)}\n" if config.relations else ""
    asked = f"{wanted}Title: {document.title}\nPassage: {passage}"
    return user(asked, SYSTEM, config.max_tokens, form=form_of(_STATEMENTS), examples=EXAMPLES)


def _grounded(claim: _Claim, config: ExtractionConfig, harvest: _Harvest) -> bool:
    lack = grounding_defect(claim.statement, claim.document.title, claim.passage)
    if lack is not None:
        harvest.drop(lack, "the passage does not hold what was stated", claim)
        return False
    if config.relations and relation_name(claim.statement.relation) not in map(relation_name, config.relations):
        harvest.drop(ExtractionDefect.RELATION_NOT_WANTED, f"{claim.statement.relation!r} is none of the relations wanted", claim)
        return False
    return True


def _verified(claims: Sequence[_Claim], teacher: Teacher, harvest: _Harvest) -> list[_Claim]:
    """The claims that a second reading confirms. Without a verdict a claim is dropped, and the failure says that it was that."""
    kept = []
    replies = teacher.complete([_second_reading(claim) for claim in claims])
    for claim, reply in zip(claims, replies, strict=True):
        verdict = None if isinstance(reply, Failure) else read_yes(reply)
        if verdict:
            kept.append(claim)
        elif verdict is None:
            text = reply.reason if isinstance(reply, Failure) else repr(reply.text)
            harvest.drop(ExtractionDefect.NO_VERDICT, f"the second reading gave neither yes nor no: {text}", claim)
        else:
            harvest.drop(ExtractionDefect.NOT_STATED, "the second reading says that the passage does not state it", claim)
    return kept


def _second_reading(claim: _Claim) -> Request:
    return whether_stated(claim.statement, f"{claim.document.title}\n{claim.passage}")


def _link(claims: Sequence[_Claim], linker: Linker, harvest: _Harvest) -> None:
    """Facts from claims, every name an entity."""
    for claim in claims:
        linker.note_statement(claim.document.id, claim.document.title, claim.statement.subject, claim.statement.object)
    for claim in claims:
        try:
            subject = linker.link(claim.statement.subject, claim.document.id)
            value = linker.link(claim.statement.object, claim.document.id)
        except AmbiguousMention as error:
            harvest.drop(ExtractionDefect.AMBIGUOUS, str(error), claim)
            continue
        if subject == value:
            harvest.drop(GroundingDefect.SELF, f"both names mean {subject!r}", claim)
            continue
        relation, document = relation_name(claim.statement.relation), claim.document
        harvest.facts.append(Fact(subject, relation, value, (document.id,), document.source))
        for entity, kind in ((subject, claim.statement.subject_type), (value, claim.statement.object_type)):
            if plain(kind):
                harvest.types.setdefault(entity, plain(kind))


def _merged(facts: Sequence[Fact]) -> Iterator[Fact]:
    """Each triple once, with all its documents."""
    documents: dict[tuple[str, str, str, str], list[str]] = {}
    for fact in facts:
        documents.setdefault((fact.subject, fact.relation, fact.object, fact.source), []).extend(fact.documents)
    for (subject, relation, value, source), stated in documents.items():
        yield Fact(subject, relation, value, tuple(dict.fromkeys(stated)), source)
