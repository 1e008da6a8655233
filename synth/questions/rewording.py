"""Reword questions with a teacher; keep rewordings that provably ask the same.

A rewording must be a question, not a yes-or-no one, name every constant, add no number, and name neither the answer nor an entity on the
way. Relations are checked by words (their own, other forms of these, and related question words) or by reading back: a teacher that sees
only the rewording and a list of relations writes its formula, which must be isomorphic to the task's (including direction if both ends of a
relation have the same type). A rejected rewording is returned to its writer with the reason.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveInt, TypeAdapter

from synth.formulas.projections import witness
from synth.formulas.proofs import prove
from synth.formulas.triples import TARGET, is_constant, members, nodes_of, validate
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.paths import Retrieve
from synth.questions.text_comparison import mentions, numbers, plain, share_a_stem, without
from synth.questions.wording import Phrasing, spoken
from synth.teachers.teacher import Teacher, ask_repaired, parted, read_json
from warehouse.digests import digest, seed_from
from warehouse.records import Completion, Failure, Request, Task, Triple, user
from warehouse.replies import form_of
from warehouse.settings import Section

if TYPE_CHECKING:
    import networkx

STAGE = "rewording"
MAX_QUESTION_TOKENS, MAX_FORMULA_TOKENS = 256, 1024
LISTED_RELATIONS = 40
"""Relations offered to the reader: those of the formula, filled up with others of the graph."""


class RewordingConfig(Section):
    """Rewording of questions by the teacher, with a check that the meaning is unchanged."""

    variants: PositiveInt = 1
    """Rewordings requested per question."""
    relations: Literal["reading", "words"] = "reading"
    """Check of relations: `reading`: a teacher writes the rewording's formula; `words`: known words must occur."""
    temperature: float = Field(default=0.8, ge=0)
    """Sampling temperature of rewordings."""


class RewordingDefect(StrEnum):
    UNCHANGED = "unchanged"
    DOUBLE = "double"
    NOT_ASKED = "not_asked"
    SEVERAL_LINES = "several_lines"
    CONSTANT_MISSING = "constant_missing"
    NUMBER_ADDED = "number_added"
    ANSWER_LEAKED = "answer_leaked"
    WAY_LEAKED = "way_leaked"
    RELATION_MISSING = "relation_missing"
    OTHER_KIND = "other_kind"
    READ_DIFFERENTLY = "read_differently"
    UNREADABLE = "unreadable"


_MARKS = ("?", "？", "؟", ";")
"""Question marks, including the full-width, Arabic and Greek ones."""
_REQUESTS = frozenset(["find", "give", "identify", "list", "name", "please", "provide", "say", "specify", "state", "tell"])
_YES_OR_NO = frozenset(["are", "did", "do", "does", "had", "has", "have", "is", "was", "were"])
"""English first words of requests and of yes-or-no questions."""
PERSON = "person"
_PERSONAL = re.compile(r"\b(?:who|whom|whose)\b", re.I)


_FILLERS = frozenset(
    ["a", "an", "by", "did", "does", "for", "in", "is", "of", "on", "that", "the", "to", "was", "what", "which", "who", "with"]
)
_ASKED_BY = {
    "year": "when date come came out released",
    "date": "when day",
    "cast": "with star stars starred starring featuring featured features actor actress played play plays appear appears appeared lead",
    "starring": "actor actress actors cast played plays appears appeared features lead",
    "director": "made filmmaker helmed",
    "writer": "wrote written author screenplay script",
    "author": "wrote written writer",
    "capital": "seat",
    "borders": "neighbour neighbours neighbor neighbors neighboring next adjacent",
    "country": "nation where",
    "language": "spoken speak tongue",
    "genre": "kind type sort category",
    "currency": "money",
    "population": "people inhabitants",
    "birthplace": "born",
}
"""Further words that ask for a relation whose name contains a form of the key."""


@dataclass(frozen=True, slots=True)
class Finding:
    defect: RewordingDefect
    detail: str


SYSTEM = """You reword questions. Keep the meaning exactly: every name, number and relation of the question must be asked for in the \
rewording, and nothing may be added. Write names as they stand. Do not answer. Reply with the reworded question alone, on one line."""

READER = """You translate questions into triples [subject, relation, object], as a JSON list of lists of three strings. What is asked for \
is written "?", every other unknown "V@a", "V@b" and so on, and a name "C@" followed by the name; alternatives are one constant, \
"C@one | two". Use only the relations of the list. Reply with the JSON alone."""

EXAMPLES = (
    ("Who directed the film with Orla Vennick and released in 1962?", "The film of 1962 in which Orla Vennick plays was directed by whom?"),
    ("What is the genre of Sootlantern?", "To which genre does Sootlantern belong?"),
    ("Name the town of Tamsin Rookhope and of Orla Vennick.", "In which town do both Tamsin Rookhope and Orla Vennick live?"),
)
READINGS = (
    (
        "Relations: genre, hometown, star\nQuestion: Which town is the hometown of a star of Glasheron or Sootlantern?",
        '[["C@Glasheron | Sootlantern", "star", "V@a"], ["V@a", "hometown", "?"]]',
    ),
    ("Relations: genre, release year\nQuestion: To which genre does Sootlantern belong?", '[["C@Sootlantern", "genre", "?"]]'),
)

_FORMULA = TypeAdapter(list[tuple[str, str, str]])


def reword(
    tasks: Sequence[Task],
    teacher: Teacher,
    config: RewordingConfig,
    seed: int,
    graph: KnowledgeGraph,
    retrieve: Retrieve | None = None,
) -> tuple[list[Task], list[Failure]]:
    """Rewordings of `tasks` as new tasks with the same answers and formula, and failures.

    Tasks without a formula fail. `retrieve` is the top hit of the agent's search and determines anew whether a question is easy; without
    it, `easy` becomes None.
    """
    phrasing = Phrasing.of(graph) if config.relations == "words" else None
    wanted = [(task, variant) for task in tasks if task.formula for variant in range(config.variants)]
    failures = [
        Failure(STAGE, RewordingDefect.UNREADABLE, "the task has no formula to check against", {"task": t.key})
        for t in tasks
        if not t.formula
    ]
    hidden = {task.key: hidden_of(graph, task) for task in tasks if task.formula}
    seen: dict[tuple[str, str], int] = {}

    def read(place: int, reply: Completion) -> Task | Failure:
        task, variant = wanted[place]
        question = reply.text.strip().strip('"').strip()
        findings = check(question, task, hidden[task.key], phrasing, graph.types.get(task.answers[0], ""))
        if seen.setdefault((task.key, plain(question)), place) != place:
            findings = [Finding(RewordingDefect.DOUBLE, "another rewording of the task has the same words")]
        return _failure(findings[0], task, question, teacher) if findings else _reworded(task, variant, question, teacher, config)

    requests = [_request(task, config, seed_from(seed, task.key, variant)) for task, variant in wanted]
    results, before = ask_repaired(teacher, requests, read)
    made, rejected = parted(results)
    failures += [*before, *rejected]
    if config.relations == "reading":
        made, misread = _read_back(made, teacher, seed, graph)
        failures += misread
    return [_graded(task, graph, retrieve) for task in made], failures


def check(question: str, task: Task, hidden: Collection[str], phrasing: Phrasing | None = None, kind: str = "") -> list[Finding]:
    """All defects of `question` as a rewording of the task.

    Args:
        hidden: entities on the way, which it must not name.
        phrasing: if given, each relation must be asked for by its words, forms of these, or known related words.
        kind: type of the answer. If the task asks for "the film", the rewording must not ask who.
    """
    constants = [member for node in dict.fromkeys(nodes_of(task.formula)) if is_constant(node) for member in members(node)]
    rest = without(question, constants)
    new_numbers = numbers(question) - numbers(task.question) - {number for text in constants for number in numbers(text)}
    findings = [Finding(RewordingDefect.SEVERAL_LINES, "the reply is more than a question")] if "\n" in question else []
    findings += [Finding(RewordingDefect.UNCHANGED, "the question is as it was")] if plain(question) == plain(task.question) else []
    findings += [Finding(RewordingDefect.NOT_ASKED, "it asks nothing, or a yes-or-no question")] if not asks(question) else []
    findings += [Finding(RewordingDefect.CONSTANT_MISSING, f"{text!r} is missing") for text in constants if not mentions(question, text)]
    findings += [Finding(RewordingDefect.NUMBER_ADDED, f"{number} is not in the question") for number in sorted(new_numbers)]
    findings += [Finding(RewordingDefect.ANSWER_LEAKED, f"the answer {text!r} is named") for text in task.answers if mentions(rest, text)]
    findings += [
        Finding(RewordingDefect.WAY_LEAKED, f"{text!r}, on the way to the answer, is named")
        for text in sorted(hidden)
        if mentions(rest, text)
    ]
    if kind not in ("", PERSON) and re.search(rf"\b(?:the|which|what) {re.escape(kind)}\b", task.question, re.I) and _PERSONAL.search(rest):
        findings.append(Finding(RewordingDefect.OTHER_KIND, f"it asks for a person, and the question for a {kind}"))
    return findings + (_unspoken(rest, task.formula, phrasing) if phrasing else [])


def hidden_of(graph: KnowledgeGraph, task: Task) -> set[str]:
    """Values of the unknowns other than the target; empty if the graph does not prove the answer."""
    constants = {member for node in nodes_of(task.formula) if is_constant(node) for member in members(node)}
    values = [witness(graph, task.formula, answer) or {} for answer in task.answers]
    return {value for found in values for node, value in found.items() if node != TARGET} - constants - set(task.answers)


def same_formula(one: Sequence[Triple], other: Sequence[Triple], graph: KnowledgeGraph) -> bool:
    """Whether two formulas are isomorphic. Direction counts only for relations that `graph` reports as directed."""
    from networkx import is_isomorphic
    from networkx.algorithms.isomorphism import categorical_multiedge_match, categorical_node_match

    nodes, edges = categorical_node_match("label", None), categorical_multiedge_match("relation", None)
    directed = {_plain_relation(name) for name in {triple[1] for triple in (*one, *other)} if graph.is_directed(name)}
    return bool(is_isomorphic(_shape(one, directed), _shape(other, directed), node_match=nodes, edge_match=edges))


def asks(question: str) -> bool:
    """Whether the text is a question or request and not a yes-or-no question (in English)."""
    first = plain(question).split(" ", 1)[0]
    return first in _REQUESTS or (question.endswith(_MARKS) and first not in _YES_OR_NO)


def _request(task: Task, config: RewordingConfig, seed: int) -> Request:
    return user(task.question, SYSTEM, MAX_QUESTION_TOKENS, config.temperature, seed, examples=EXAMPLES)


def _unspoken(rest: str, formula: Sequence[Triple], phrasing: Phrasing) -> list[Finding]:
    """Relations for which the rewording has neither a form of their words nor a related question word."""
    said = plain(rest).split()
    findings = []
    for relation in dict.fromkeys(triple[1] for triple in formula):
        fragments = [part for phrase in phrasing.phrases.get(relation, ()) for part in phrase.split("{s}")]
        texts = [set(plain(text).split()) for text in (spoken(relation), phrasing.word(relation), *fragments)]
        words = {word for text in texts for word in text - _FILLERS or text}
        asked = {word for kind, askers in _ASKED_BY.items() if share_a_stem([kind], words) for word in askers.split()}
        if not (words & set(said) or asked & set(said) or share_a_stem(words, said)):
            findings.append(Finding(RewordingDefect.RELATION_MISSING, f"it does not ask for the {spoken(relation)}"))
    return findings


def _read_back(tasks: Sequence[Task], teacher: Teacher, seed: int, graph: KnowledgeGraph) -> tuple[list[Task], list[Failure]]:
    replies = teacher.complete([_reading_request(task, seed, graph) for task in tasks])
    return parted(
        reply if isinstance(reply, Failure) else _compared(reply, task, teacher, graph) for task, reply in zip(tasks, replies, strict=True)
    )


def _reading_request(task: Task, seed: int, graph: KnowledgeGraph) -> Request:
    own = {triple[1] for triple in task.formula}
    others = sorted(set(graph.relations) - own)
    rng = random.Random(seed_from("listed relations", seed, task.key))
    listed = sorted(own | set(rng.sample(others, min(len(others), max(0, LISTED_RELATIONS - len(own))))))
    asked = f"Relations: {', '.join(listed)}\nQuestion: {task.question}"
    return user(asked, READER, MAX_FORMULA_TOKENS, form=form_of(_FORMULA), examples=READINGS)


def _compared(reply: Completion, task: Task, teacher: Teacher, graph: KnowledgeGraph) -> Task | Failure:
    read = read_json(reply, _FORMULA)
    if isinstance(read, Failure):
        return read
    if problems := validate(read):
        finding = Finding(RewordingDefect.UNREADABLE, f"the reader's formula is malformed: {problems[0].detail}")
    elif same_formula(read, task.formula, graph):
        return task
    else:
        finding = Finding(RewordingDefect.READ_DIFFERENTLY, f"it is read as {read}")
    return _failure(finding, task, task.question, teacher)


def _reworded(task: Task, variant: int, question: str, teacher: Teacher, config: RewordingConfig) -> Task:
    about = {"reworded_from": task.key, "original": task.question, "teacher": teacher.name, "relations_checked_by": config.relations}
    key = digest([task.key, "reworded", teacher.name, variant])
    return replace(task, key=key, question=question, provenance={**task.provenance, **about})


def _graded(task: Task, graph: KnowledgeGraph, retrieve: Retrieve | None) -> Task:
    if not task.proofs:
        return task
    easy = prove(graph, task.formula, task.question, retrieve).easy if retrieve else None
    return replace(task, proofs={**task.proofs, "easy": easy})


def _failure(finding: Finding, task: Task, question: str, teacher: Teacher) -> Failure:
    return Failure(STAGE, finding.defect, finding.detail, {"task": task.key, "text": question, "teacher": teacher.name})


def _plain_relation(relation: str) -> str:
    return plain(spoken(relation))


def _shape(formula: Sequence[Triple], directed: Collection[str]) -> networkx.MultiDiGraph:
    """Formula as a graph; each mention of a constant is a node, and an undirected relation an edge each way."""
    from networkx import MultiDiGraph

    graph = MultiDiGraph()
    for number, (subject, relation, value) in enumerate(formula):
        ends = []
        for place, node in (("s", subject), ("o", value)):
            name = f"{number}{place}" if is_constant(node) else node
            graph.add_node(name, label=_label(node))
            ends.append(name)
        label = _plain_relation(relation)
        for edge in (ends,) if label in directed else (ends, ends[::-1]):
            graph.add_edge(*edge, relation=label)
    return graph


def _label(node: str) -> str:
    if is_constant(node):
        return "C@" + "|".join(sorted(map(plain, members(node))))
    return TARGET if node == TARGET else "V@"
