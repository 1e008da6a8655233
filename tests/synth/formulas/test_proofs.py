"""Proofs: what they say of hand-made questions, and that plain SQL over the facts agrees with answers and necessity."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

import duckdb
import pyarrow as pa
import pytest

from synth.formulas.projections import solve
from synth.formulas.proofs import Proofs, is_needed, prove, without
from synth.formulas.triples import TARGET, constant, members, unknowns
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, RejectionReason, build_questions
from synth.questions.paths import Retrieve
from warehouse.records import Document, Fact, Triple

QUESTIONS = 10_000


def _documents(*names: str) -> list[Document]:
    return [Document(name, name, f"{name}.", "x") for name in names]


@pytest.fixture
def films() -> KnowledgeGraph:
    """Ann is in three films, Bob in two of these; one fact is stated nowhere, one in a document that the corpus lacks."""
    rows = [("Dawn", "cast", "Ann"), ("Dusk", "cast", "Ann"), ("Noon", "cast", "Ann"), ("Dawn", "cast", "Bob"), ("Dusk", "cast", "Bob")]
    facts = [Fact(s, r, o, (s,)) for s, r, o in rows]
    facts += [Fact("Dawn", "year", "1950", ("Dawn",)), Fact("Dusk", "year", "1951"), Fact("Noon", "year", "1952", ("lost",))]
    return KnowledgeGraph(facts, _documents("Dawn", "Dusk", "Noon"))


def test_a_constraint_is_redundant_where_the_answers_stay_the_same_without_it(films: KnowledgeGraph) -> None:
    both = [("?", "cast", "C@Ann"), ("?", "cast", "C@Bob")]
    assert prove(films, both) == Proofs(answers=("Dawn", "Dusk"), redundant=(0,), shortcuts=(0, 1))
    assert prove(films, [*both, ("?", "year", "C@1950")]).redundant == (0, 1)
    assert prove(films, [("?", "cast", "C@Ann"), ("?", "year", "C@1950")]).redundant == (0,)


def test_the_only_constraint_of_the_target_is_needed_and_what_hangs_on_it_falls_with_it(films: KnowledgeGraph) -> None:
    assert prove(films, [("C@Noon", "cast", "?")]).redundant == ()
    assert without([("V@X", "cast", "?"), ("V@X", "year", "C@1952")], 0) == ()
    chain = [("V@X", "year", "C@1952"), ("V@X", "cast", "?")]
    assert prove(films, chain) == Proofs(answers=("Ann",), redundant=(), shortcuts=(), unsupported=(0,))


def test_facts_that_no_document_of_the_corpus_states_are_unsupported(films: KnowledgeGraph) -> None:
    assert prove(films, [("C@Dawn", "year", "?")]).unsupported == ()
    assert prove(films, [("C@Dusk", "year", "?")]).unsupported == (0,)
    assert prove(films, [("C@Noon", "year", "?")]).unsupported == (0,)


def test_a_question_is_easy_where_one_search_brings_the_document_of_the_answer(films: KnowledgeGraph) -> None:
    formula = [("C@Dawn", "year", "?")]
    assert prove(films, formula, "year of Dawn?", lambda _: films.documents["Dawn"]).easy is True
    assert prove(films, formula, "year of Dawn?", lambda _: films.documents["Dusk"]).easy is False
    assert prove(films, formula, "year of Dawn?", lambda _: None).easy is False
    assert prove(films, formula, "year of Dawn?").easy is None


def test_every_question_carries_its_proofs(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    config = QuestionConfig(counts={1: 40, 2: 40, 3: 40}, intersections=0.5, unions=0.2, identify=0.4)
    tasks, failures = build_questions(graph, config, 3, retrieve)
    assert len(tasks) == 120
    for task in tasks:
        assert task.proofs == prove(graph, task.formula, task.question, retrieve).record()
        assert task.proofs["redundant"] == task.proofs["unsupported"] == task.proofs["constant_edges"] == []
    assert {task.proofs["easy"] for task in tasks} == {True, False}
    assert RejectionReason.REDUNDANT in {failure.kind for failure in failures}


@pytest.mark.slow
def test_easy_questions_and_shortcuts_are_dropped_where_asked(graph: KnowledgeGraph, retrieve: Retrieve) -> None:
    config = QuestionConfig(counts={1: 20, 2: 20}, intersections=0.5, identify=0.5, easy="drop", allowed_shortcuts=1)
    tasks, failures = build_questions(graph, config, 3, retrieve)
    assert tasks
    assert all(task.proofs["easy"] is False and len(task.proofs["shortcuts"]) <= 1 for task in tasks)
    assert {RejectionReason.EASY, RejectionReason.SHORTCUT} <= {failure.kind for failure in failures}


@pytest.mark.long
@pytest.mark.slow
def test_sql_agrees_on_answers_and_on_every_constraint() -> None:
    facts = _random_facts(random.Random(5))
    graph = KnowledgeGraph(facts)
    formulas = [_random_formula(random.Random(f"formula {number}"), facts) for number in range(QUESTIONS)]
    answers = [solve(graph, formula) for formula in formulas]
    asked = {(number, -1): tuple(formula) for number, formula in enumerate(formulas)}
    asked |= {(number, place): without(formula, place) for number, formula in enumerate(formulas) for place in range(len(formula))}
    counted = _count_by_sql(facts, {key: rest for key, rest in asked.items() if rest})
    needless = 0
    for number, (formula, found) in enumerate(zip(formulas, answers, strict=True)):
        count, first, last = counted[number, -1]
        assert (len(found), min(found), max(found)) == (count, first, last)
        for place in range(len(formula)):
            grows = (number, place) not in counted or counted[number, place][0] > count
            assert is_needed(graph, formula, place, found) == grows
            needless += not grows
    assert needless > 1_000


def _random_facts(rng: random.Random) -> list[Fact]:
    """A hundred and fifty entities, four relations, among them one with few values; facts lead in both directions."""
    names = [f"e{number}" for number in range(150)]
    facts = {(rng.choice(names), rng.choice("rst"), rng.choice(names)) for _ in range(400)}
    facts |= {(name, "kind", f"kind {rng.randrange(12)}") for name in names}
    return [Fact(*fact) for fact in sorted(facts)]


def _random_formula(rng: random.Random, facts: Sequence[Fact]) -> list[Triple]:
    """A true formula of one to three triples: it grows from a random entity, each triple from a fact of an unknown that it has."""
    about: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        about[fact.subject].append(fact)
        about[fact.object].append(fact)
    held, formula = {TARGET: rng.choice(facts).subject}, []
    for place in range(rng.randint(1, 3)):
        node = rng.choice(list(held))
        fact = rng.choice(about[held[node]])
        other = fact.object if fact.subject == held[node] else fact.subject
        end = constant(*{other, rng.choice(facts).object}) if rng.random() < 0.2 else constant(other)
        if rng.random() < 0.5:
            end = f"V@X{place}"
            held[end] = other
        formula.append((node, fact.relation, end) if fact.subject == held[node] else (end, fact.relation, node))
    return formula


def _count_by_sql(facts: Iterable[Fact], asked: dict[tuple[int, int], tuple[Triple, ...]]) -> dict[tuple[int, int], tuple[int, str, str]]:
    """For each formula the number of its answers, the first and the last: one join for all formulas of one pattern."""
    with duckdb.connect(config={"threads": 1}) as connection:
        rows = [(fact.subject, fact.relation, fact.object) for fact in facts]
        edges = pa.table(dict(zip("sro", map(list, zip(*rows, strict=True)), strict=True)))
        connection.register("edges", edges)
        connection.execute("CREATE TABLE joined AS SELECT s, r, o FROM edges UNION SELECT o, r, s FROM edges")
        patterns: dict[tuple[tuple[str, str], ...], list[tuple[tuple[int, int], tuple[Triple, ...]]]] = defaultdict(list)
        for key, formula in asked.items():
            patterns[_pattern(formula)].append((key, formula))
        return {key: found for pattern, group in patterns.items() for key, found in _answer(connection, pattern, group).items()}


def _pattern(formula: Sequence[Triple]) -> tuple[tuple[str, str], ...]:
    names = {node: f"n{number}" for number, node in enumerate(unknowns(formula))} | {TARGET: TARGET}
    return tuple((names.get(s, "constant"), names.get(o, "constant")) for s, _, o in formula)


def _answer(
    connection: duckdb.DuckDBPyConnection,
    pattern: tuple[tuple[str, str], ...],
    group: list[tuple[tuple[int, int], tuple[Triple, ...]]],
) -> dict[tuple[int, int], tuple[int, str, str]]:
    columns: dict[str, list[object]] = {"id": list(range(len(group)))}
    joins: list[str] = []
    known: dict[str, str] = {}
    for place, ends in enumerate(pattern):
        columns[f"r{place}"] = [formula[place][1] for _, formula in group]
        terms = [f"f{place}.r = q.r{place}"]
        for end, side in zip(ends, "so", strict=True):
            if end == "constant":
                node = 0 if side == "s" else 2
                columns[f"c{place}{side}"] = [list(members(formula[place][node])) for _, formula in group]
                terms.append(f"list_contains(q.c{place}{side}, f{place}.{side})")
            elif end in known:
                terms.append(f"f{place}.{side} = {known[end]}")
            else:
                known[end] = f"f{place}.{side}"
        joins.append(f"JOIN joined f{place} ON {' AND '.join(terms)}")
    connection.register("questions", pa.table(columns))
    answer = known[TARGET]
    sql = f"SELECT q.id, count(DISTINCT {answer}), min({answer}), max({answer}) FROM questions q {' '.join(joins)} GROUP BY q.id"
    found = connection.execute(sql).fetchall()
    connection.unregister("questions")
    return {group[number][0]: (count, first, last) for number, count, first, last in found}
