"""Demonstrations for the cold start: the oracle's trajectories, some of them corrupted on purpose, and the policy's own successes.

Half-good demonstrations leave a policy's decisions open, when to go on and which relation to follow, so that reinforcement
learning has something to choose from. A clean set gives a policy that is sure of everything and gains nothing. Played against the search of
rollouts, a share of them shows that one can search again. Later iterations start from rejection sampling: the policy's successes, one for a
task, in the token ids that were sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from rl.retrieval.search import passage
from synth.demonstrations.oracle import OracleStep, Show, Solution, paths_of, solution_of, thought, transcript, walk
from synth.demonstrations.tries import Search, all_tries, is_shown_at_once, transcript_with
from synth.graph.knowledge_graph import KnowledgeGraph
from synth.parts import Parts, identity
from synth.questions.paths import Hop, Retrieve, Route
from warehouse.digests import digest, seed_from
from warehouse.records import Document, Example, Failure, Part, PartKind, Task, Trajectory
from warehouse.settings import Section


class Style(StrEnum):
    """How a demonstration goes: to the answer, there with more than one search for a document, to an answer too early, or astray."""

    CLEAN = "clean"
    SECOND_TRY = "second_try"
    EARLY_STOP = "early_stop"
    WRONG_TURN = "wrong_turn"


class DemonstrationConfig(Section):
    """Demonstrations of the oracle: their search, and the share with mistakes."""

    search: Literal["perfect", "imperfect"] = "perfect"
    """A perfect search, or that of rollouts (`rollout.search.imperfect`)."""
    second_try: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of demonstrations, per depth, that search more than once for a document."""
    early_stop: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that a multi-hop demonstration answers too early."""
    wrong_turn: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that a demonstration follows a wrong relation to a wrong answer."""
    in_order: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that a clean demonstration tries several possible values in the document's order."""

    @model_validator(mode="after")
    def _check(self) -> DemonstrationConfig:
        if self.early_stop + self.wrong_turn > 1:
            raise ValueError("early_stop and wrong_turn are probabilities of one draw: together at most 1")
        if self.search == "perfect" and self.second_try:
            raise ValueError("second_try needs an imperfect search, for no other asks for one: set search = imperfect")
        if self.search == "imperfect" and self.in_order:
            raise ValueError("in_order is shown by a perfect search: set it to 0, or search = perfect")
        return self

    @property
    def clean(self) -> DemonstrationConfig:
        """The same without any that is corrupted."""
        return self.model_copy(update={"early_stop": 0.0, "wrong_turn": 0.0})


def build_demonstrations(
    graph: KnowledgeGraph,
    tasks: Iterable[Task],
    config: DemonstrationConfig,
    seed: int,
    retrieve: Retrieve | None = None,
    show: Show = passage,
    wheel_turn: int = 1,
    search: Search | None = None,
) -> tuple[list[Example], list[Failure]]:
    """One demonstration a task, in the order of the tasks; the style of each stands in its id.

    Args:
        retrieve: first hit of the perfect search; anchored hops need it.
        show: how an observation shows a document; give what the environment does.
        search: the search of rollouts, where the demonstrations are to be played against that.
    """
    examples: list[Example] = []
    failures: list[Failure] = []
    for task in tasks:
        demonstration = _demonstrate(graph, task, config, seed, retrieve, show, search)
        if demonstration is not None:
            style, parts = demonstration
            identifier = f"demonstration-{style}-{identity(task.key, parts=parts, by_mask=True)}"
            examples.append(Example(identifier, "trajectory", parts, (task.key,), wheel_turn))
        else:
            failures.append(Failure("synth", "no_demonstration", "the graph does not carry the task's formula", task.key))
    return examples, failures


def _demonstrate(
    graph: KnowledgeGraph,
    task: Task,
    config: DemonstrationConfig,
    seed: int,
    retrieve: Retrieve | None,
    show: Show,
    search: Search | None,
) -> tuple[Style, Parts] | None:
    paths = paths_of(graph, task)
    if not paths:
        return None
    rng = random.Random(seed_from("demonstration", seed, task.key))
    style, taken = corrupt(graph, paths[0], config, rng, partial(_is_shown, graph, retrieve, search))
    solution = walk(graph, paths if style is Style.CLEAN else [taken], retrieve)
    if solution is None:
        return None
    if search is not None:
        tried = all_tries(solution, search, rng)
        if tried is None:
            return None
        style = Style.SECOND_TRY if any(len(tries) > 1 for tries in tried) else style
        return style, transcript_with(task.question, solution, tried)
    if style is Style.CLEAN and retrieve is not None and len(paths) == 1 and config.in_order and rng.random() < config.in_order:
        solution = _tried_in_order(graph, paths[0], solution, retrieve)
    return style, transcript(task.question, solution, show)


def needs_second_try(graph: KnowledgeGraph, task: Task, seed: int, retrieve: Retrieve, search: Search) -> bool | None:
    """Whether a clean demonstration of `task` has to search for a document more than once; None where it does not find one at all."""
    solution = solution_of(graph, task, retrieve)
    if solution is None:
        return None
    if is_shown_at_once(solution, search):
        return False
    found = _demonstrate(graph, task, DemonstrationConfig(), seed, retrieve, passage, search)
    return None if found is None else True


def _is_shown(graph: KnowledgeGraph, retrieve: Retrieve | None, search: Search | None, route: Route) -> bool:
    """Whether a demonstration may go along `route`: corrupted ones search once for each document."""
    if search is None:
        return True
    solution = walk(graph, [route], retrieve)
    return solution is not None and is_shown_at_once(solution, search)


def corrupt(
    graph: KnowledgeGraph,
    path: Route,
    config: DemonstrationConfig,
    rng: random.Random,
    may_go: Callable[[Route], bool] = lambda route: True,
) -> tuple[Style, Route]:
    """The path that a demonstration takes instead of `path`, by one draw; `path` itself where it cannot be corrupted so."""
    draw = rng.random()
    if draw < config.early_stop and len(path) > 1:
        early = path[: rng.randrange(1, len(path))]
        return (Style.EARLY_STOP, early) if may_go(early) else (Style.CLEAN, path)
    if config.early_stop <= draw < config.early_stop + config.wrong_turn:
        wrong = _wrong_turn(graph, path, rng, may_go)
        if wrong is not None:
            return Style.WRONG_TURN, wrong
    return Style.CLEAN, path


def _tried_in_order(graph: KnowledgeGraph, path: Route, solution: Solution, retrieve: Retrieve) -> Solution:
    """The solution of `path` with the searches that its documents suggest before the one that leads on; they lead nowhere."""
    if len(solution.steps) != len(path):
        return solution
    steps = list(solution.steps[:1])
    for (hop, following), read, step in zip(pairwise(path), solution.steps, solution.steps[1:], strict=False):
        for value in _before(graph, hop, read.document) if any(anchor.linked for anchor in following.anchors) else ():
            tried = replace(following, anchors=tuple(replace(each, values=(value,)) if each.linked else each for each in following.anchors))
            document = retrieve(tried.query)
            if document is not None and document != step.document:
                steps.append(OracleStep(thought(graph, replace(hop, value=value)), tried.query, document))
        steps.append(step)
    return replace(solution, steps=tuple(steps))


def _before(graph: KnowledgeGraph, hop: Hop, document: Document) -> list[str]:
    """The values of a hop's relation that its document names before the one that leads on."""
    assert hop.relation is not None, "another hop follows"
    stated = [value for value in graph.objects(hop.entity, hop.relation) if document.id in graph.stating(hop.entity, hop.relation, value)]
    places = {value: document.text.find(value) for value in stated}
    return sorted((value for value in stated if 0 <= places[value] < places[hop.value]), key=lambda value: places[value])


def _wrong_turn(graph: KnowledgeGraph, path: Route, rng: random.Random, may_go: Callable[[Route], bool]) -> Route | None:
    """`path` with a wrong turn at one of its hops, as many hops long where the graph goes on; None where it cannot go wrong."""
    for position in rng.sample(range(len(path)), len(path)):
        hop = path[position]
        turns = [fact for fact in graph.about(hop.entity) if fact.documents and fact.object not in (hop.value, path[-1].value)]
        rng.shuffle(turns)
        for turn in turns:
            wrong = (*path[:position], Hop(hop.entity, turn.relation, turn.object, hop.anchors))
            wrong = _go_on(graph, wrong, path[position + 1 :], rng)
            if wrong[-1].value != path[-1].value and may_go(wrong):
                return wrong
    return None


def _go_on(graph: KnowledgeGraph, path: Route, wanted: Route, rng: random.Random) -> Route:
    """`path` led on by the relations of `wanted` where its entities have them, by others where not, as far as documents go."""
    for hop in wanted:
        entity = path[-1].value
        facts = [fact for fact in graph.about(entity) if fact.documents]
        if not facts or graph.titled(entity) is None:
            break
        fact = next((fact for fact in facts if fact.relation == hop.relation), None) or rng.choice(facts)
        path = (*path, Hop(entity, fact.relation, fact.object))
    return path


def choose_successes(trajectories: Iterable[Trajectory], hops: Mapping[str, int], count: int, seed: int, wheel_turn: int) -> list[Example]:
    """At most `count` examples, for each task its shortest success (the latest of several), deeper tasks first.

    Args:
        hops: depth of each task, by key.
    """
    best: dict[str, Trajectory] = {}
    for trajectory in sorted(trajectories, key=lambda t: (len(t.turns), -(t.step or 0), t.id)):
        best.setdefault(trajectory.task_key, trajectory)
    chosen = list(best.values())
    random.Random(seed).shuffle(chosen)
    chosen.sort(key=lambda trajectory: -hops.get(trajectory.task_key, 0))
    return [example_of(trajectory, wheel_turn) for trajectory in chosen[:count]]


def without_images(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], list[Failure]]:
    """Those of `trajectories` that show no images, and the others as failures: an example holds token ids alone."""
    kept, left_out = list[Trajectory](), list[Failure]()
    for trajectory in trajectories:
        if trajectory.images:
            left_out.append(
                Failure("synth", "rejection_of_images", "its images would be lost: an example holds token ids alone", trajectory.id)
            )
        else:
            kept.append(trajectory)
    return kept, left_out


def example_of(trajectory: Trajectory, wheel_turn: int) -> Example:
    """A trajectory as an example: prompt and observations are not learnt, every id is as it was sampled or appended."""
    parts = [Part(PartKind.TOKENS, "", ids=trajectory.prompt_ids)]
    for turn in trajectory.turns:
        parts.append(Part(PartKind.TOKENS, turn.action, True, ids=turn.action_ids))
        if turn.observation_ids:
            parts.append(Part(PartKind.TOKENS, turn.observation, ids=turn.observation_ids))
    return Example(digest(["trajectory", trajectory.id, wheel_turn]), "trajectory", tuple(parts), (trajectory.id,), wheel_turn)
