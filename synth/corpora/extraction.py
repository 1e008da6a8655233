"""Open information extraction by a teacher: facts are checked against the passage, and names linked to entities.

The teacher states facts with quotations; facts whose quotation is not in the passage are dropped. An optional second request confirms each
fact from passage and claim alone (a judgement, not a proof). `Linker` maps names to entities by the first rule that applies:

    the document's title, with or without its qualifier in brackets          -> the title's entity
    a known name, ignoring case, accents and punctuation (not figures, C++)  -> that entity
    an alias                                                                 -> the entity of the alias
    part of exactly one longer name in the document                          -> that entity ("Stone" -> "Amber Stone")
    part of several longer names                                             -> ambiguous; dropped
    part only of names paired with it in a statement                         -> a new entity ("University of Oxford", "Oxford")
    otherwise                                                                -> a new entity, spelled as first written

A qualifier in brackets is part of a name: "Blue River (film)" and "Blue River" are different entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from synth.corpora.config import ExtractionConfig
from synth.corpora.grounding import GroundingDefect, stated_case
from synth.corpora.outlines import QuotedFact
from synth.corpora.passages import Passage, short_passages_of
from synth.corpora.statements import state_facts
from synth.questions.text_comparison import NameKey, name_key, plain, unqualified
from synth.teachers.readers import STATED, Readers
from synth.teachers.teacher import Teacher
from warehouse.corpora.corpus import Corpus
from warehouse.records import Document, Fact, Failure

STAGE = "extraction"


class ExtractionDefect(StrEnum):
    """Why a grounded statement was dropped; for ungrounded ones see `GroundingDefect`."""

    RELATION_NOT_WANTED = "relation_not_wanted"
    AMBIGUOUS = "ambiguous"
    NOT_STATED = "not_stated"


MOST_FACTS = 40


@dataclass(slots=True)
class _Harvest:
    facts: list[Fact] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def drop(self, kind: str, reason: str, claim: QuotedFact) -> None:
        item = {"document": claim.passage.document, "passage": claim.passage.id, "statement": claim.fact.model_dump()}
        self.failures.append(Failure(STAGE, kind, reason, item))


def extract_facts(
    documents: Sequence[Document],
    teacher: Teacher,
    readers: Readers,
    config: ExtractionConfig,
    entities: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Corpus:
    """Extract facts from `documents` into a corpus that includes them; `failures` lists dropped facts.

    Args:
        entities: known names to link mentions to.
        aliases: alternative names mapped to entities.
    """
    harvest = _Harvest()
    passages = [
        Passage(f"{document.id}#{number}", document.id, document.title, text)
        for document in documents
        for number, text in enumerate(short_passages_of(document.text, config.passage_characters))
    ]
    wanted = f"State only these relations: {', '.join(config.relations)}" if config.relations else ""
    claims, harvest.failures = state_facts(teacher, passages, STAGE, config.max_tokens, wanted, MOST_FACTS)
    claims = _wanted(claims, config.relations, harvest)
    if config.verify:
        claims = _verified(claims, readers, harvest)
    names = [*entities, *dict.fromkeys(document.title for document in documents)]
    sources = {document.id: document.source for document in documents}
    _link(claims, sources, Linker(names, aliases or {}), harvest)
    return Corpus(facts=tuple(_merged(harvest.facts)), documents=tuple(documents), types=harvest.types, failures=tuple(harvest.failures))


def relation_name(text: str) -> str:
    """Normalised relation name: `was directed by` becomes `was_directed_by`."""
    return plain(text.replace("_", " ")).replace(" ", "_")


def _wanted(claims: Sequence[QuotedFact], relations: Sequence[str], harvest: _Harvest) -> list[QuotedFact]:
    kept, names = [], {relation_name(relation) for relation in relations}
    for claim in claims:
        if names and relation_name(claim.fact.relation) not in names:
            reason = f"{claim.fact.relation!r} is not among the wanted relations"
            harvest.drop(ExtractionDefect.RELATION_NOT_WANTED, reason, claim)
        else:
            kept.append(claim)
    return kept


def _verified(claims: Sequence[QuotedFact], readers: Readers, harvest: _Harvest) -> list[QuotedFact]:
    """Claims that the second reader does not deny. A missing verdict or an uncalibrated reader drops nothing."""
    cases = [stated_case(claim.fact, claim.passage.title, claim.passage.text) for claim in claims]
    kept = []
    for claim, verdict in zip(claims, readers.read(STATED, cases), strict=True):
        if verdict is False:
            harvest.drop(ExtractionDefect.NOT_STATED, "the second reader denies that the passage states it", claim)
        else:
            kept.append(claim)
    harvest.failures += readers.drain()
    return kept


def _link(claims: Sequence[QuotedFact], sources: Mapping[str, str], linker: Linker, harvest: _Harvest) -> None:
    for claim in claims:
        linker.note_statement(claim.passage.document, claim.passage.title, *claim.names)
    for claim in claims:
        document = claim.passage.document
        try:
            subject, value = (linker.link(name, document) for name in claim.names)
        except AmbiguousMention as error:
            harvest.drop(ExtractionDefect.AMBIGUOUS, str(error), claim)
            continue
        if subject == value:
            harvest.drop(GroundingDefect.SELF, f"both names mean {subject!r}", claim)
            continue
        harvest.facts.append(Fact(subject, relation_name(claim.fact.relation), value, (document,), sources[document]))
        for entity, kind in zip((subject, value), claim.types, strict=True):
            if kind:
                harvest.types.setdefault(entity, kind)


def _merged(facts: Sequence[Fact]) -> Iterator[Fact]:
    documents: dict[tuple[str, str, str, str], list[str]] = {}
    for fact in facts:
        documents.setdefault((fact.subject, fact.relation, fact.object, fact.source), []).extend(fact.documents)
    for (subject, relation, value, source), stated in documents.items():
        yield Fact(subject, relation, value, tuple(dict.fromkeys(stated)), source)


class AmbiguousMention(Exception):
    """A mention matches several entities."""


class Linker:
    """Links mentions to known entities and to full names in the same document."""

    def __init__(self, entities: Iterable[str], aliases: Mapping[str, str]) -> None:
        self._known: dict[NameKey, str] = {}
        for entity in entities:
            self._known.setdefault(name_key(entity), entity)
        self._aliases = {name_key(alias): entity for alias, entity in aliases.items()}
        self._new: dict[NameKey, str] = {}
        self._titles: dict[str, str] = {}
        self._mentioned: dict[str, dict[NameKey, str]] = {}
        self._distinct: dict[str, set[tuple[NameKey, NameKey]]] = {}

    def note(self, document: str, title: str, names: Iterable[str]) -> None:
        """Record a document's title and the names it mentions; shorter names may refer to longer ones."""
        self._titles[document] = title
        mentioned = self._mentioned.setdefault(document, {})
        for name in (title, *names):
            mentioned.setdefault(name_key(name), name)

    def note_statement(self, document: str, title: str, subject: str, value: str) -> None:
        """Record the two names of a statement as different entities."""
        self.note(document, title, (subject, value))
        one, other = name_key(subject), name_key(value)
        self._distinct.setdefault(document, set()).update(((one, other), (other, one)))

    def link(self, name: str, document: str) -> str:
        """Entity of `name` in a document. Raises AmbiguousMention."""
        title = self._titles.get(document, "")
        if name_key(name) == name_key(unqualified(title)) and title:
            return self._entity(title)
        return self._stored(name) or self._longer(name, document) or self._entity(name)

    def _stored(self, name: str) -> str | None:
        return self._known.get(name_key(name)) or self._aliases.get(name_key(name))

    def _entity(self, name: str) -> str:
        return self._stored(name) or self._new.setdefault(name_key(name), name)

    def _longer(self, name: str, document: str) -> str | None:
        """Entity of the single longest name in the document that contains `name`, if any. Raises AmbiguousMention."""
        own, distinct = name_key(name), self._distinct.get(document, set())
        longer = {key: text for key, text in self._mentioned.get(document, {}).items() if _is_part(own, key)}
        others = {key: text for key, text in longer.items() if (own, key) not in distinct}
        longest = [text for key, text in others.items() if not any(_is_part(key, other) for other in others)]
        entities = sorted({self._entity(text) for text in longest} | ({name} if longest and others != longer else set()))
        if len(entities) > 1:
            raise AmbiguousMention(f"{name!r} may mean {' or '.join(map(repr, entities))}")
        return entities[0] if entities else None


def _is_part(name: NameKey, other: NameKey) -> bool:
    (words, signs), (more_words, more_signs) = name, other
    return words != more_words and f" {words} " in f" {more_words} " and set(signs) <= set(more_signs)
