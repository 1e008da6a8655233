"""Continuations of stored steps by the teacher or the policy: rolled out, graded and stored as they end.

Their ids derive from step, option and player, so a restarted batch only rolls out what is missing. A continuation that lacks a teacher's
reply is not stored; the next attempt rolls it out again.
"""

from __future__ import annotations

from collections.abc import Sequence

from flows.results import judged_trajectories
from flows.stages.rollouts import not_stored, play_in_parts, store_graded, store_stream
from flows.stages.synthesis.batches import Work
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.rollout import Rollouts
from synth.has.outcomes import OutcomesConfig, Player
from synth.teachers.play import COST, may_pass
from synth.teachers.teacher import Teacher, unmetered
from warehouse import Outcome, Policy, Trajectory
from warehouse.errors import RequestError


def champion_rollouts(work: Work, purpose: str) -> tuple[Policy, Rollouts]:
    """Return the policy promoted before this iteration, and engines with its weights. Raise RequestError if there is none for `purpose`."""
    champion = work.context.champion(before=work.turn)
    if champion is None:
        raise RequestError(f"{work.context.home.root} has no policy promoted before iteration {work.turn} to {purpose}.")
    return champion, work.context.rollouts(work.context.folder(champion))


def open_player(work: Work, config: OutcomesConfig) -> Player:
    """Return the player that continues steps. Raise RequestError without a teacher or policy."""
    if config.player == "teacher":
        teacher = unmetered(work.asked("synth.has.outcomes"))
        return Player(teacher.name, lambda requests: _by_teacher(work, teacher, requests))
    champion, rollouts = champion_rollouts(work, "continue")
    return Player(champion.id, lambda requests: _by_policy(work, rollouts, requests))


def _by_teacher(work: Work, teacher: Teacher, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
    context, settings = work.context, work.settings.teacher
    missing = not_stored(context.lake, requests)
    verifiers = context.verifiers(tasks=(request.task for request in missing))
    places = 1 if settings is None else settings.places
    for part, played in play_in_parts(context, teacher, missing, context.config.for_turn(work.turn).sft.teacher, places):
        unanswered = [run for run in played if may_pass(run.error or "")]
        store_graded(context.lake, [run for run in played if not may_pass(run.error or "")], part, verifiers)
        for run in unanswered:
            work.count(**run.provenance[COST])
    runs = _stored(work, requests)
    for run in runs:  # counted on each attempt, so that a resumed batch has the counts of an uninterrupted one
        work.count(**run.provenance[COST])
    return runs


def _by_policy(work: Work, rollouts: Rollouts, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
    missing = not_stored(work.context.lake, requests)
    verifiers = work.context.verifiers(tasks=(request.task for request in missing))
    if missing:
        stream = rollouts.submit(missing)
        store_stream(work.context.lake, stream, missing, verifiers, lambda done: None, others=rollouts.drain_retries)
    return _stored(work, requests)


def _stored(work: Work, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
    runs = judged_trajectories(work.context.lake, "id IN (SELECT unnest(?))", [[request.trajectory_id for request in requests]])
    work.count(continuations=len(runs), continuations_invalid=sum(run.outcome is Outcome.INVALID for run in runs))
    return runs
