"""Questions a second with all proofs, and bytes of memory a fact: `python -m benchmarks.synthesis [--films DIR] [--facts N …] [--json]`.

One core. On the films the search is BM25 over their summaries, and every question has its text support and its grade (easy or not). On
generated graphs of 10⁵, 10⁶ and 10⁷ facts a document is found by its title; each size runs in a process of its own, whose peak memory is
printed. Time to build the graph is not part of the rate.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rl.retrieval.search import SearchIndex
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.questions.builder import QuestionConfig, build_questions
from synth.questions.paths import first_hit
from warehouse.corpora.films import read_films
from warehouse.public_data.catalogue import data_root
from warehouse.records import Document

RELATIONS = tuple(f"relation {number}" for number in range(8))
FACTS_EACH = 5
"""Facts a subject: four that lead to others and one to a kind that many share."""


class Titles(Mapping[str, Document]):
    """A document for each entity, made when it is asked for: text would measure the corpus and not the graph."""

    def __init__(self, entities: int) -> None:
        self._entities = entities

    def __getitem__(self, name: str) -> Document:
        if not self.__contains__(name):
            raise KeyError(name)
        return Document(name, name, name, "generated")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith("entity ") and int(name.removeprefix("entity ")) < self._entities

    def __iter__(self) -> Iterator[str]:
        return (f"entity {number}" for number in range(self._entities))

    def __len__(self) -> int:
        return self._entities


class Titled(KnowledgeGraph):
    """A graph whose documents are titled by their entities."""

    def titled(self, title: str) -> Document | None:
        return self.documents.get(title)

    def _add_documents(self, documents: Mapping[str, Document], types: Mapping[str, str] | None) -> None:
        self.documents, self.types = documents, types or {}


def generated(facts: int, seed: int = 0) -> KnowledgeGraph:
    """A random graph: every entity has four facts about others and one kind, of which there are a hundred whatever the size."""
    rng, entities = np.random.default_rng(seed), facts // FACTS_EACH
    names = pa.array(np.char.add("entity ", np.arange(entities).astype(str)), pa.large_string())
    kinds = pa.array([f"kind {number}" for number in range(100)], pa.large_string())
    subject = np.repeat(np.arange(entities), FACTS_EACH)
    is_kind = np.arange(len(subject)) % FACTS_EACH == FACTS_EACH - 1
    value = np.where(is_kind, entities + rng.integers(100, size=len(subject)), rng.integers(entities, size=len(subject)))
    relation = np.where(is_kind, len(RELATIONS), rng.integers(len(RELATIONS), size=len(subject)))
    subjects = names.take(pa.array(subject))
    objects = pa.concat_arrays([names, kinds]).take(pa.array(value))
    relations = pa.array([*RELATIONS, "kind"], pa.large_string()).take(pa.array(relation))
    return Titled.from_columns(subjects, relations, objects, subjects, texts=Titles(entities))


def rate(graph: KnowledgeGraph, config: QuestionConfig, index: SearchIndex | None) -> dict[str, Any]:
    """Questions a second of processor time, the second of two runs: the first fills what is made once for a graph."""
    retrieve = None if index is None else first_hit(index)
    build_questions(graph, config.model_copy(update={"count": 50}), 1, retrieve)
    started, wall = time.process_time(), time.perf_counter()
    tasks, failures = build_questions(graph, config, 2, retrieve)
    seconds, wall = time.process_time() - started, time.perf_counter() - wall
    assert all(task.proofs["answers"] == list(task.answers) and not task.proofs["redundant"] for task in tasks)
    easy = [task.proofs["easy"] for task in tasks if task.proofs["easy"] is not None]
    return {
        "questions": len(tasks),
        "dropped": len(failures),
        "per_second": len(tasks) / seconds,
        "per_second_wall": len(tasks) / wall,
        "milliseconds_each": 1_000 * seconds / max(len(tasks), 1),
        "easy": sum(easy) / len(easy) if easy else None,
    }


def on_films(folder: Path) -> dict[str, Any]:
    """The films, with search and text support."""
    corpus = read_films(folder, 420)
    graph, index = KnowledgeGraph.of(corpus), SearchIndex(corpus.documents)
    config = QuestionConfig(counts={1: 1_500, 2: 150}, intersections=0.6, unions=0.1, identify=0.5)
    return {"graph": "films", "facts": len(graph.columns.subject), **rate(graph, config, index), **_memory(graph)}


def on_generated(facts: int) -> dict[str, Any]:
    """A generated graph of about so many facts."""
    started = time.process_time()
    graph = generated(facts)
    built = time.process_time() - started
    graph.entities.number("entity 0")
    config = QuestionConfig(counts={1: 500, 2: 500, 3: 500, 4: 500})
    return {
        "graph": "generated",
        "facts": len(graph.columns.subject),
        "build_seconds": built,
        **rate(graph, config, None),
        **_memory(graph),
    }


def _memory(graph: KnowledgeGraph) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"bytes_a_fact": graph.nbytes / len(graph.columns.subject), "peak_mib": peak / 2**20}


def measured(arguments: list[str]) -> dict[str, Any]:
    """One row, measured in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--films", type=Path, default=data_root() / "kg_movies")
    parser.add_argument("--facts", type=int, nargs="*", default=[10**5, 10**6, 10**7])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=("films", "generated"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(on_films(given.films) if given.one == "films" else on_generated(given.facts[0])))
        return
    rows = [measured(["--one", "films", "--films", str(given.films)])] if given.films.exists() else []
    rows += [measured(["--one", "generated", "--facts", str(facts)]) for facts in given.facts]
    grown = [row["milliseconds_each"] for row in rows if row["graph"] == "generated"]
    growth = grown[-1] / grown[0] if grown else None
    if given.json:
        print(json.dumps({"rows": rows, "growth": growth}))
        return
    for row in rows:
        print(
            f"{row['graph']:10} {row['facts']:>11,} facts {row['per_second']:8,.0f} questions/s ({row['milliseconds_each']:.2f} ms)"
            f" {row['bytes_a_fact']:6.0f} bytes a fact, peak {row['peak_mib']:7,.0f} MiB"
        )
    if growth:
        print(f"cost of a question, largest against smallest: {growth:.2f}")


if __name__ == "__main__":
    main()
