"""The questions of the report, a question of each kind with its formula, and the shape of the graphs that they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from synth.graph.knowledge_graph import KnowledgeGraph, Topology, describe
from warehouse import Lake
from warehouse.bounds import read_json
from warehouse.records import Triple

DRAWN = 12
"""Questions that are drawn at the most."""
MOST_TRIPLES = 24
"""Triples of a formula that is drawn: more are no picture."""
MOST_FACTS = 500_000
"""Facts of a graph whose shape a report tells: `flywheel graph` looks at larger ones."""


@dataclass(frozen=True, slots=True)
class DrawnQuestion:
    """A question of one kind with its formula, and the formula that it was made from where it was expanded."""

    key: str
    question: str
    hops: int
    layers: int
    shape: str
    formula: tuple[Triple, ...]
    before: tuple[Triple, ...]
    alike: int
    """Stored questions of the same hops, layers and shape."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The graph of one source; `topology` is None where it has too many facts to look at here."""

    source: str
    facts: int
    topology: Topology | None


_QUESTIONS = """
WITH drawn AS (
    SELECT key, question, hops, layers, coalesce(provenance->>'shape', '') AS shape, formula, provenance->>'expanded_from' AS origin
    FROM tasks WHERE json_array_length(formula) > 0
), counted AS (
    SELECT *, count(*) OVER kind AS alike, row_number() OVER (kind ORDER BY key) AS place FROM drawn
    WHERE json_array_length(formula) <= ? WINDOW kind AS (PARTITION BY hops, layers, shape, origin IS NULL)
)
SELECT c.* EXCLUDE (place, origin), o.formula AS before FROM counted c LEFT JOIN tasks o ON o.key = c.origin
WHERE c.place = 1 ORDER BY c.layers, c.hops, c.shape, c.key LIMIT ?
"""


def read_questions(lake: Lake) -> tuple[DrawnQuestion, ...]:
    """A question of each kind that has a formula, the simple ones first."""
    rows = lake.query(_QUESTIONS, [MOST_TRIPLES, DRAWN]).to_pylist()
    return tuple(DrawnQuestion(**{**row, "formula": _triples(row["formula"]), "before": _triples(row["before"])}) for row in rows)


def read_graphs(lake: Lake) -> tuple[GraphShape, ...]:
    """The graph of each source of facts."""
    sources = lake.query("SELECT source, count(*) AS facts FROM facts GROUP BY source ORDER BY source").to_pylist()
    return tuple(GraphShape(row["source"], row["facts"], _shape(lake, row["source"], row["facts"])) for row in sources)


def _shape(lake: Lake, source: str, facts: int) -> Topology | None:
    if facts > MOST_FACTS:
        return None
    rows = lake.query("SELECT subject, relation, object, documents FROM facts WHERE source = ? ORDER BY ALL", [source])
    subjects, relations, objects, documents = rows.columns
    return describe(KnowledgeGraph.from_columns(subjects, relations, objects, documents, source))


def _triples(formula: str | None) -> tuple[Triple, ...]:
    return tuple((str(s), str(r), str(o)) for s, r, o in read_json(formula)) if formula else ()
