"""Questions in batches: where there are more than a batch may hold, in several with a seed of their own each.

Every batch has its share of each depth. A later one leaves out what the lake has already, and all leave out what may not be kept; how
what the graph is short of is made up for is the business of `synth.questions.building.build_questions` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from flows.stages.synthesis.batches import Batch, Made
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.building import QuestionConfig, build_questions
from synth.questions.paths import Retrieve
from warehouse import Failure, Task
from warehouse.digests import seed_from

Refuse = Callable[[Task], Failure | None]
"""Why a task may not be kept; None where it may."""


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """A graph, the first hit of the search over its documents, and the entities that questions may touch (None: all)."""

    graph: KnowledgeGraph
    retrieve: Retrieve
    allowed: Callable[[str], bool] | None


def question_batches(
    part: str,
    source: QuestionSource,
    config: QuestionConfig,
    seed: int,
    largest: int,
    stored: Callable[[], set[str]],
    refuse: Refuse | None = None,
) -> Iterator[Batch]:
    """The batches, of at most `largest` questions each, that make what `config` asks for; `stored` gives the keys that are there."""
    for number, counts in enumerate(_shared_out(config.wanted(), largest)):
        own = config.model_copy(update={"counts": counts, "count": None if config.count is None else sum(counts.values())})
        own_seed = seed_from(seed, number) if number else seed
        yield Batch(part, number, partial(_make, source, own, own_seed, stored if number else set, refuse))


def _shared_out(wanted: Mapping[int, int], largest: int) -> Iterator[dict[int, int]]:
    """`wanted` in parts of `largest` questions and a rest, each with its share of every depth."""
    order = sorted(((place + 0.5) / count, hops) for hops, count in wanted.items() for place in range(count))
    for start in range(0, len(order), largest):
        yield dict(sorted(Counter(hops for _, hops in order[start : start + largest]).items()))


def _make(source: QuestionSource, config: QuestionConfig, seed: int, stored: Callable[[], set[str]], refuse: Refuse | None) -> Made:
    return build_questions(source.graph, config, seed, source.retrieve, source.allowed, known=stored(), refuse=refuse)
