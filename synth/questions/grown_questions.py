"""Tasks from questions that grow (`synth.questions.expansion`): layer-wise, random or sequential, in place of paths.

`QuestionConfig.counts` then asks by layers and not by documents: a question of two layers can need four documents, and has that many hops.
What a search does not find and what the proofs object to is dropped with its reason, as it is with paths; of the random structure that is
most, which is what it is there to show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from synth.formulas.proofs import prove
from synth.formulas.triples import depth, formula_digest, is_constant
from synth.knowledge.graph import KnowledgeGraph
from synth.questions.definitions import Definer
from synth.questions.drops import Drop, objection
from synth.questions.expansion import Grown, Growth, Structure, essence, grow, readings
from synth.questions.paths import Retrieve, find_document
from synth.questions.wording import Phrasing, word_question
from warehouse.digests import digest, seed_from
from warehouse.records import Failure, Task

if TYPE_CHECKING:
    from synth.questions.building import QuestionConfig


def expand_questions(
    graph: KnowledgeGraph,
    config: QuestionConfig,
    seed: int,
    retrieve: Retrieve,
    allowed: Callable[[str], bool] | None,
    phrasing: Phrasing,
    known: Iterable[str] = (),
    refuse: Callable[[Task], Failure | None] | None = None,
) -> tuple[list[Task], list[Failure]]:
    """Questions of the structure that `config` names, by rising layers; arguments as in `build_questions`."""
    nursery = _Nursery(graph, config, seed, retrieve, phrasing, frozenset(known), refuse)
    definer = Definer(graph, allowed)
    missing = {layers: nursery.fill(definer, layers, count) for layers, count in config.wanted().items() if count}
    rich = [layers for layers, lacking in missing.items() if not lacking]
    left = sum(missing.values()) if config.count is not None else 0
    for layers in rich:
        left = nursery.fill(definer, layers, left, "in place of others") if left else 0
    return nursery.tasks, nursery.failures


@dataclass(slots=True)
class _Nursery:
    graph: KnowledgeGraph
    config: QuestionConfig
    seed: int
    retrieve: Retrieve
    phrasing: Phrasing
    known: frozenset[str]
    refuse: Callable[[Task], Failure | None] | None
    tasks: list[Task] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def fill(self, definer: Definer, layers: int, count: int, *salt: str) -> int:
        """Add up to `count` questions of so many layers; how many are missing then."""
        have, config = len(self.tasks), self.config
        growth = Growth(Structure(config.structure), layers, config.intersections, config.unions)
        rng = random.Random(seed_from("grown", self.seed, config.split, config.structure, layers, *salt))
        for grown in grow(definer, growth, rng, count):
            self._consider(grown)
            if len(self.tasks) - have >= count:
                return 0
        missing = count - (len(self.tasks) - have)
        reason = f"{missing} of {count} {config.structure} questions of {layers} layers are missing: no more were found"
        item = {"layers": layers, "shape": config.structure, "missing": missing}
        self.failures.append(Failure("synth", Drop.SHORTFALL, reason, item))
        return missing

    def _consider(self, grown: Grown) -> None:
        same = formula_digest(grown.formula)
        if same in self.seen:
            return
        self.seen.add(same)
        hops = readings(grown)
        documents = [find_document(self.graph, hop, self.retrieve) for hop in hops]
        if missed := [hop.query for hop, document in zip(hops, documents, strict=True) if document is None]:
            reason = f"a search for {missed[0]!r} does not find its document"
            self.failures.append(Failure("synth", Drop.NOT_FOUND, reason, {"formula": grown.formula, "query": missed[0]}))
            return
        path = [*dict.fromkeys([*(hop.entity for hop in hops), grown.answer])]
        self._prove(grown, path, len({document.id for document in documents if document}))

    def _prove(self, grown: Grown, path: list[str], documents: int) -> None:
        """Add the task with its proofs, or what they object to."""
        source = next((fact.source for fact in self.graph.about(path[0])), "")
        key = digest([self.config.environment, source, grown.formula])
        if key in self.known:
            return
        rng = random.Random(seed_from("wording", self.seed, key))
        question = word_question(essence(grown.formula), self.phrasing, self.config.variety, rng)
        proofs = prove(self.graph, grown.formula, question, self.retrieve)
        if against := objection(proofs, self.config.allowed_shortcuts, self.config.easy == "drop"):
            self.failures.append(Failure("synth", against[0], against[1], {"formula": grown.formula, "proofs": proofs.record()}))
            return
        task = Task(
            key=key,
            environment=self.config.environment,
            question=question,
            answers=proofs.answers,
            formula=grown.formula,
            split=self.config.split,
            hops=documents,
            constraints=sum(is_constant(node) for triple in grown.formula for node in (triple[0], triple[2])),
            layers=depth(grown.formula),
            provenance={"source": source, "shape": self.config.structure, "path": path},
            proofs=proofs.record(),
        )
        refused = self.refuse(task) if self.refuse is not None else None
        if refused is None:
            self.tasks.append(task)
        else:
            self.failures.append(refused)
