"""Actions that are learnt without being run: plans and reasoning (FAS), and decisions among alternatives (HAS).

Each function gives the batches of one kind. What a model writes comes in smaller batches than what a graph gives: each is one commit.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from eval.judges import Judge, calibrate, unfit_reason
from flows.results import judged_trajectories
from flows.stages.synthesis.batches import ASKED_BATCH, Batch, Made, sizes
from flows.stages.synthesis.context import EARLIER, IMPORTED, SynthesisContext
from rl.engines.base import Sampling
from synth.fas.memory_plans import build_memory_plans
from synth.fas.plan_judge import PlanJudge
from synth.fas.plans import build_plans
from synth.fas.reasoning import FasConfig, build_fas
from synth.fas.taught_reasoning import AnswerJudge, reason_by_teacher
from synth.has.decisions import DecisionRecord
from synth.has.policy_proposer import PolicyProposer
from synth.has.proposers import OthersProposer, Proposer
from synth.has.records import HasConfig, build_has
from synth.has.style_leak import style_leak
from synth.has.teacher_proposer import TeacherProposer, WriterConfig
from synth.questions.wording import Phrasing
from warehouse import Failure, Task, Trajectory
from warehouse.digests import seed_from
from warehouse.records import ANSWER

log = logging.getLogger("flywheel")

LARGEST_EXCESS = 0.05
"""A classifier that finds the taken action by its style so much more often than chance does is a warning."""
ENOUGH_CHOICES = 400
"""Decisions without which chance alone may look like that."""
DECISIONS_BATCH = 256
"""Trajectories whose steps a model writes in one commit: so many that style can be told from chance."""


def first_order(synthesis: SynthesisContext) -> Iterator[Batch]:
    """Plans, then reasoning of each number of hops; before them the calibration of whoever judges answers."""
    config, largest = synthesis.settings.fas, synthesis.settings.batch
    if config.asks_for_reasoning:
        yield Batch("calibration", 0, partial(_calibrate, synthesis))
    for number, slices in enumerate(sizes(config.plan_slices, min(largest, ASKED_BATCH) if config.plans == "teacher" else largest)):
        part = config.model_copy(update={"plan_slices": slices})
        yield Batch("plans", number, partial(_plans, synthesis, part, number))
    for hops, count in sorted(config.reasoning.items()):
        for number, size in enumerate(sizes(count, min(largest, ASKED_BATCH) if config.reasoner == "teacher" else largest)):
            part = config.model_copy(update={"plan_slices": 0, "reasoning": {hops: size}})
            yield Batch(f"reasoning of {hops} hops", number, partial(_reasoning, synthesis, part, number))


def _calibrate(synthesis: SynthesisContext) -> Made:
    """What the teacher said of the labelled pairs; a failure where it may not judge answers, which their words then decide alone."""
    judge = Judge(synthesis.asked("fas.answer_judge"))
    found = calibrate(judge)
    synthesis.count(rightly_judged=sum(check.accepted for check in found.checks), pairs=len(found.checks))
    unfit = unfit_reason(judge.name, found)
    return list(found.checks), [] if unfit is None else [Failure("synth", "judge_unfit", unfit, {"judge": judge.name})]


def _plans(synthesis: SynthesisContext, config: FasConfig, number: int) -> Made:
    if config.plans == "teacher":
        return _taught_plans(synthesis, config, _seed(synthesis, number))
    source = synthesis.train
    judge = PlanJudge(synthesis.teacher) if config.judge and synthesis.teacher is not None else None
    plans = build_plans(
        source.graph,
        config.plan_spec(),
        _seed(synthesis, number),
        source.retrieve,
        Phrasing.of(source.graph),
        synthesis.turn,
        source.allowed,
        judge,
    )
    kept, failures = synthesis.clear(*plans)
    return (kept, failures) if judge is None else ([*kept, *judge.checks], [*failures, *judge.failures])


def _taught_plans(synthesis: SynthesisContext, config: FasConfig, seed: int) -> Made:
    """Plans over slices of the memory, and reasoning on the same questions where that is wanted."""
    teacher = synthesis.asked("fas.plans")
    judge, answers = PlanJudge(teacher), AnswerJudge(synthesis.answer_judge if config.slice_reasoning else None)
    made = build_memory_plans(
        synthesis.memory,
        teacher,
        judge,
        config.plan_slices,
        config.slices,
        seed,
        synthesis.tools,
        synthesis.train.retrieve,
        config.max_plan_tokens,
        synthesis.turn,
    )
    examples, failures = list(made.examples), [*made.failures, *judge.failures]
    if config.slice_reasoning:
        assigned = [question.assignment for question in made.questions]
        chains, wrong = reason_by_teacher(teacher, assigned, config.bounds, answers, synthesis.turn)
        examples, failures = [*examples, *chains], [*failures, *wrong]
    synthesis.count(questions=len(made.questions), plans=len(made.examples), chains=len(examples) - len(made.examples))
    kept, dropped = synthesis.clear(examples, failures)
    return [*kept, *judge.checks, *answers.checks], dropped


def _reasoning(synthesis: SynthesisContext, config: FasConfig, number: int) -> Made:
    source, seed = synthesis.train, _seed(synthesis, number)
    answers = AnswerJudge(synthesis.answer_judge if config.reasoner == "teacher" else None)
    made = build_fas(
        source.graph,
        config,
        seed,
        source.retrieve,
        wheel_turn=synthesis.turn,
        allowed=source.allowed,
        teacher=synthesis.teacher,
        answers=answers,
        search=synthesis.search if config.imperfect else None,
    )
    kept, failures = synthesis.clear(*made)
    return [*kept, *answers.checks], failures


def _seed(synthesis: SynthesisContext, number: int) -> int:
    return seed_from(synthesis.seed("fas"), number) if number else synthesis.seed("fas")


def own_decisions(synthesis: SynthesisContext) -> Iterator[Batch]:
    """Decision records from a sample of the trajectories of earlier turns, successes and failures."""
    yield from _decisions(synthesis, "decisions", EARLIER, [synthesis.turn], synthesis.settings.has, by_graph=True)


def foreign_decisions(synthesis: SynthesisContext) -> Iterator[Batch]:
    """Decision records from imported runs, which have no graph of their own: the alternatives are what others of them did."""
    config = synthesis.settings.has
    if "oracle" in config.mixture:
        config = config.model_copy(update={"mixture": {"others": 1.0}})
    yield from _decisions(synthesis, "decisions of imported runs", IMPORTED, [], config, by_graph=False)


def _decisions(
    synthesis: SynthesisContext, part: str, where: str, parameters: list[Any], config: HasConfig, by_graph: bool
) -> Iterator[Batch]:
    found = judged_trajectories(synthesis.context.lake, where, parameters)
    chosen = random.Random(synthesis.seed("has")).sample(found, min(len(found), synthesis.settings.has_count))
    tasks = {task.key: task for task in synthesis.context.lake.tasks()} if chosen else {}
    others: dict[str, Proposer] = {"others": OthersProposer(found, tasks)} if chosen and "others" in config.mixture else {}
    largest = DECISIONS_BATCH if {"teacher", "policy"} & config.mixture.keys() else None
    for number, runs in synthesis.in_batches(chosen, largest):
        yield Batch(part, number, partial(_decide, synthesis, runs, tasks, config, by_graph, others))


def _decide(
    synthesis: SynthesisContext,
    runs: Sequence[Trajectory],
    tasks: dict[str, Task],
    config: HasConfig,
    by_graph: bool,
    others: dict[str, Proposer],
) -> Made:
    source, proposers = synthesis.train if by_graph else None, others | _models(synthesis, config, by_graph)
    known = (None, None, None) if source is None else (source.graph, synthesis.read, source.allowed)
    graph, retrieve, allowed = known
    made = build_has(graph, runs, tasks, config, synthesis.seed("has"), retrieve, synthesis.turn, proposers, allowed)
    _count_decisions(synthesis, made.records)
    return synthesis.clear(made.examples, made.failures)


def _count_decisions(synthesis: SynthesisContext, records: Sequence[DecisionRecord]) -> None:
    """How many steps there were and how many of them are choices, and whether style gives the action away that was taken."""
    steps = [decision for record in records for decision in record.steps]
    choices = [decision for decision in steps if decision.is_choice]
    synthesis.count(steps=len(steps), choices=len(choices), alternatives=sum(len(choice.options) - 1 for choice in choices))
    found = style_leak(records)
    if found is None:
        return
    synthesis.count(style_tried=found.choices, style_found=found.found * found.choices, style_by_chance=found.chance * found.choices)
    if found.excess > LARGEST_EXCESS and found.choices >= ENOUGH_CHOICES:
        log.warning(
            "style gives away what was chosen: of %d decisions a classifier on length and words finds %.0f %%, and chance %.0f %%; have "
            "one writer write all options (synth.has.mixture)",
            found.choices,
            100 * found.found,
            100 * found.chance,
        )


def _models(synthesis: SynthesisContext, config: HasConfig, by_graph: bool) -> dict[str, Proposer]:
    """The proposers of the mixture that are models; the policy's engines start here.

    Actions of the home's own runs may call what its environment offers; those of imported ones what any of them calls.
    """
    found: dict[str, Proposer] = {}
    if synthesis.teacher is not None and "teacher" in config.mixture:
        writer = WriterConfig(seed=synthesis.seed("has"))
        offered = (ANSWER, *(tool["function"]["name"] for tool in synthesis.tools)) if by_graph else ()
        found["teacher"] = TeacherProposer(synthesis.teacher, writer, offered)
    if "policy" in config.mixture:
        rollouts = synthesis.context.rollouts(synthesis.context.folder(synthesis.champion()))
        sampling = Sampling(temperature=config.policy_temperature, max_tokens=rollouts.config.limits.max_action_tokens)
        seed = synthesis.seed("has policy")
        found["policy"] = PolicyProposer(rollouts.pool, rollouts, rollouts.dialect, sampling, seed, spare_requests=2)
    return found
