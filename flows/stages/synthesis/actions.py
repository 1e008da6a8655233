"""Actions learned without executing them: plans and reasoning (FAS), and decisions among alternatives (HAS).

Batches written by a model are smaller than those drawn from a graph.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import duckdb

from eval.judges import Judge, calibrate, unfit_reason
from flows.results import judged_trajectories
from flows.stages.synthesis.batches import ASKED_BATCH, EARLIER, IMPORTED, Batch, Guard, Made, Work, sizes
from flows.stages.synthesis.continuations import champion_rollouts, open_player
from flows.stages.synthesis.sources import Material
from rl.engines.base import Sampling
from synth.corpora.passages import NameFinder
from synth.demonstrations.cold_start import tools_of
from synth.fas.memory import Memory, remember, statements_brought, statements_in
from synth.fas.memory_plans import WrittenQuestion, seed_question, write_plans, write_questions
from synth.fas.plans import PlanJudge, build_plans
from synth.fas.reasoning import AnswerJudge, FasConfig, build_fas, reason_by_teacher
from synth.generation import PolicySampler
from synth.has.decisions import DecisionRecord, style_leak
from synth.has.outcomes import STAGE as CONTINUATION
from synth.has.proposers import OthersProposer, PolicyProposer, Proposer, TeacherProposer, WriterConfig
from synth.has.records import HasConfig, build_has
from synth.parts import offer
from synth.questions.decontamination import TRAIN
from synth.teachers.teacher import unmetered
from warehouse import DocumentSplit, Example, Failure, Trajectory
from warehouse.digests import seed_from
from warehouse.errors import RequestError, first_line
from warehouse.records import ANSWER

log = logging.getLogger("flywheel")

LARGEST_EXCESS = 0.05
"""Largest tolerated accuracy above chance of a style classifier; more is logged as a warning."""
ENOUGH_CHOICES = 400
"""Minimum number of decisions for that warning."""
DECISIONS_BATCH = 256
"""Trajectories per commit if a model writes their options; enough to measure the style leak."""


@dataclass(frozen=True)
class FirstOrder:
    """Plans, then reasoning by number of hops; before them, the calibration of a judge of answers."""

    work: Work
    material: Material
    guard: Guard

    def batches(self) -> Iterator[Batch]:
        config, largest = self.work.settings.fas, self.work.settings.batch
        if config.asks_for_reasoning:
            yield Batch("calibration", 0, self._calibrate)
        if config.plans == "teacher":
            yield from self._taught_batches()
        else:
            for number, slices in enumerate(sizes(config.plan_slices, largest)):
                part = config.model_copy(update={"plan_slices": slices})
                yield Batch("plans", number, partial(self._plans, part, number))
        for hops, count in sorted(config.reasoning.items()):
            for number, size in enumerate(sizes(count, min(largest, ASKED_BATCH) if config.reasoner == "teacher" else largest)):
                part = config.model_copy(update={"plan_slices": 0, "reasoning": {hops: size}})
                yield Batch(f"reasoning of {hops} hops", number, partial(self._reasoning, part, number))

    @cached_property
    def memory(self) -> Memory:
        """Knowledge about the entities that training may touch, from the sources in `fas.memory`."""
        kinds, memory, graph = self.work.settings.fas.memory, Memory(), self.material.train.graph
        allowed = self.material.allowed(TRAIN) or (lambda name: True)
        if "facts" in kinds:
            memory.append(statement for name in graph.subjects if allowed(name) for statement in remember(graph, name))
        if set(kinds) <= {"facts"}:
            return memory
        documents = self.material.sources.documents(DocumentSplit.HELD_OUT)
        finder = NameFinder(dict.fromkeys([*graph.subjects, *(document.title for document in documents)]))
        if "passages" in kinds:
            memory.append(known for known in statements_in(documents, finder) if allowed(known.entity))
        if "results" in kinds:
            runs = self.work.context.lake.trajectories(f"({EARLIER}) OR {IMPORTED}", [self.work.turn])
            memory.append(known for known in statements_brought(runs, finder) if allowed(known.entity))
        return memory

    @cached_property
    def answer_judge(self) -> Judge | None:
        """The teacher as judge of answers, if there is one and it passes calibration (metered in its own batch)."""
        if self.work.teacher is None:
            return None
        judge = Judge(unmetered(self.work.teacher))
        return None if unfit_reason(judge, calibrate(judge)) else Judge(self.work.asked("synth.fas.reasoner"))

    def _calibrate(self) -> Made:
        """Return the judge's verdicts on labelled pairs, with a failure if it is unfit; then only literal matches count."""
        judge = Judge(self.work.asked("synth.fas.reasoner"))
        found = calibrate(judge)
        self.work.count(rightly_judged=sum(check.accepted for check in found.checks), pairs=len(found.checks))
        unfit = unfit_reason(judge, found)
        return list(found.checks), [] if unfit is None else [Failure("synth", "judge_unfit", unfit, {"judge": judge.name})]

    def _plans(self, config: FasConfig, number: int) -> Made:
        source = self.material.train
        judge = PlanJudge(self.work.readers) if config.judge and self.work.teacher is not None else None
        plans = build_plans(
            source.graph,
            config.plan_spec(),
            self._seed(number),
            source.retrieve,
            self.work.turn,
            source.allowed,
            judge,
        )
        kept, failures = self.guard.clear(*plans)
        return (kept, failures) if judge is None else ([*kept, *judge.checks], [*failures, *self.work.readers.drain()])

    def _taught_batches(self) -> Iterator[Batch]:
        """Plans for seed questions, then for questions over slices."""
        config = self.work.settings.fas
        if config.plan_seeds:
            seeds = [task for task in self.work.context.lake.tasks(split=TRAIN) if "seeded_by" in task.provenance]
            for number, tasks in self.work.in_batches(sorted(seeds, key=lambda task: task.key), ASKED_BATCH):
                yield Batch("plans of seeds", number, partial(self._taught_plans, list(map(seed_question, tasks))))
        for number, slices in enumerate(sizes(config.plan_slices, min(self.work.settings.batch, ASKED_BATCH))):
            yield Batch("plans", number, partial(self._of_slices, slices, number))

    def _of_slices(self, slices: int, number: int) -> Made:
        config, teacher = self.work.settings.fas, self.work.asked("synth.fas.plans")
        questions, failures = write_questions(self.memory, teacher, slices, config.slices, self._seed(number))
        records, more = self._taught_plans(questions)
        return records, [*failures, *more]

    def _taught_plans(self, questions: Sequence[WrittenQuestion]) -> Made:
        """Make plans for the questions and, with `slice_reasoning`, reasoning."""
        config, teacher, turn = self.work.settings.fas, self.work.asked("synth.fas.plans"), self.work.turn
        judge, answers = PlanJudge(self.work.readers), AnswerJudge(self.answer_judge if config.slice_reasoning else None)
        tools, retrieve = self.material.tools, self.material.train.retrieve
        plans, failures = write_plans(questions, teacher, judge, tools, retrieve, config.max_plan_tokens, turn)
        chains, wrong = list[Example](), list[Failure]()
        if config.slice_reasoning:
            chains, wrong = reason_by_teacher(teacher, [each.assignment for each in questions], config.bounds, answers, turn)
        self.work.count(questions=len(questions), plans=len(plans), chains=len(chains))
        kept, dropped = self.guard.clear([*plans, *chains], [*failures, *self.work.readers.drain(), *wrong])
        return [*kept, *judge.checks, *answers.checks], dropped

    def _reasoning(self, config: FasConfig, number: int) -> Made:
        source = self.material.train
        answers = AnswerJudge(self.answer_judge if config.reasoner == "teacher" else None)
        made = build_fas(
            source.graph,
            config,
            self._seed(number),
            source.retrieve,
            wheel_turn=self.work.turn,
            allowed=source.allowed,
            teacher=self.work.teacher,
            answers=answers,
            search=self.material.search if config.imperfect else None,
        )
        kept, failures = self.guard.clear(*made)
        return [*kept, *answers.checks], failures

    def _seed(self, number: int) -> int:
        seed = self.work.seed("fas")
        return seed_from(seed, number) if number else seed


def own_decisions(work: Work, material: Material, guard: Guard) -> Iterator[Batch]:
    """Decision records from a sample of earlier iterations' trajectories, or of those in `has.where`, successes and failures."""
    config = work.settings.has
    where, parameters = (EARLIER, [work.turn]) if config.where is None else (f"({config.where}) AND NOT ({IMPORTED})", [])
    yield from _decisions(work, material, guard, "decisions", where, parameters, config, by_graph=True)


def foreign_decisions(work: Work, material: Material, guard: Guard) -> Iterator[Batch]:
    """Decision records from imported runs. They offer their own tools; without a graph, the alternatives are other runs' actions."""
    config = work.settings.has
    if "oracle" in config.mixture:
        config = config.model_copy(update={"mixture": {"others": 1.0}})
    yield from _decisions(work, material, guard, "decisions of imported runs", IMPORTED, [], config, by_graph=False)


def _decisions(
    work: Work, material: Material, guard: Guard, part: str, where: str, parameters: list[Any], config: HasConfig, by_graph: bool
) -> Iterator[Batch]:
    try:
        found = judged_trajectories(work.context.lake, f"({where}) AND stage <> '{CONTINUATION}'", parameters)
    except duckdb.Error as error:
        raise RequestError(f"synth.has.where is not a valid condition on the table trajectories: {first_line(error)}") from error
    chosen = random.Random(work.seed("has")).sample(found, min(len(found), work.settings.has_count))
    tasks = {task.key: task for task in work.context.lake.tasks()} if chosen else {}
    others: dict[str, Proposer] = {"others": OthersProposer(found, tasks)} if chosen and "others" in config.mixture else {}

    def decide(runs: Sequence[Trajectory]) -> Made:
        proposers, seed = others | _models(work, material, config, by_graph), work.seed("has")
        source = material.train if by_graph else None
        player = None if config.outcomes is None else open_player(work, config.outcomes)
        graph, retrieve, allowed = (None, None, None) if source is None else (source.graph, material.read, source.allowed)
        made = build_has(graph, runs, tasks, config, seed, retrieve, work.turn, proposers, allowed, player)
        _count_decisions(work, made.records)
        if player is not None:
            own = {run.id for run in runs}
            work.count(others_preferred=sum(record.trajectory_id not in own for record in made.records))
        if by_graph:
            return guard.clear(made.examples, made.failures)
        tools = {run.id: tools_of(run) for run in runs}
        offered = [offer(example, tools.get(example.sources[0], material.tools)) for example in made.examples]
        kept, removed = guard.index.clear_examples(offered)
        return kept, [*made.failures, *removed]

    largest = DECISIONS_BATCH if {"teacher", "policy"} & config.mixture.keys() else None
    largest = largest if config.outcomes is None else ASKED_BATCH
    for number, runs in work.in_batches(chosen, largest):
        yield Batch(part, number, partial(decide, runs))


def _count_decisions(work: Work, records: Sequence[DecisionRecord]) -> None:
    """Count steps, choices and alternatives, and measure whether style reveals the taken action."""
    steps = [decision for record in records for decision in record.steps]
    choices = [decision for decision in steps if decision.is_choice]
    work.count(steps=len(steps), choices=len(choices), alternatives=sum(len(choice.options) - 1 for choice in choices))
    found = style_leak(records)
    if found is None:
        return
    work.count(style_tried=found.choices, style_found=found.found * found.choices, style_by_chance=found.chance * found.choices)
    if found.excess > LARGEST_EXCESS and found.choices >= ENOUGH_CHOICES:
        log.warning(
            "style leak: a classifier on length and words finds the taken action in %.0f %% of %d decisions (chance: %.0f %%); "
            "let one writer write all options (synth.has.mixture)",
            100 * found.found,
            found.choices,
            100 * found.chance,
        )


def _models(work: Work, material: Material, config: HasConfig, by_graph: bool) -> dict[str, Proposer]:
    """Return the mixture's proposers that are models. Starts the policy's engines.

    The teacher may call the environment's tools for the home's own runs, and the tools used in the run for imported ones.
    """
    found: dict[str, Proposer] = {}
    if work.teacher is not None and "teacher" in config.mixture:
        writer = WriterConfig(seed=work.seed("has"))
        offered = (ANSWER, *(tool["function"]["name"] for tool in material.tools)) if by_graph else ()
        found["teacher"] = TeacherProposer(work.teacher, writer, offered)
    if "policy" in config.mixture:
        _, rollouts = champion_rollouts(work, "propose alternatives")
        sampling = Sampling(temperature=config.policy_temperature, max_tokens=rollouts.config.limits.max_action_tokens)
        seed = work.seed("has policy")
        found["policy"] = PolicyProposer(PolicySampler(rollouts.pool, rollouts), rollouts.dialect, sampling, seed, spare_requests=2)
    return found
