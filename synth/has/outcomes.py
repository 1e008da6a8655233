"""Label decisions by outcome: the best option at a step is the one whose continuations succeed most often.

No oracle is needed. The calls before the step are replayed, the option is executed, and a player (teacher or policy) continues. Invalid
continuations are ignored; so is an option without a valid one. A step that cannot be replayed, or whose options all succeed equally often,
yields no choice.

If the taken action is best, the trajectory's own record is used. Otherwise the record is that of a successful continuation, so the response
and all later turns are real. Ties favour the taken action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt

from rl.renderers.base import Action, ActionTurn
from rl.rollouts.agent_loop import RolloutRequest
from rl.rollouts.replay import Replay, ReplayedTurn
from synth.has.decisions import Decision, DecisionRecord, Option, steps_of, unchosen
from synth.parts import Called, calls_of, responses_of, thought_of
from warehouse.digests import digest, seed_from
from warehouse.records import ANSWER, NOT_RUN, Failure, Outcome, Task, Trajectory, Turn
from warehouse.settings import Section

STAGE = "continuation"
CONTINUES = "continues"
"""Provenance key of a continuation: source trajectory, turn, option, whether it was the taken one, and number of turns replayed."""


class OutcomesConfig(Section):
    """Labels of choices: the option whose continuations succeed most often."""

    player: Literal["teacher", "policy"]
    """Who continues after the option: `synth.teacher` (teacher), or the last promoted policy (policy)."""
    continuations: PositiveInt = 2
    """Continuations per option; one if the option answers."""
    turns: PositiveInt = 4
    """Maximum turns after the option."""


@dataclass(frozen=True, slots=True)
class Player:
    """Continues runs. `name` enters the trajectory ids; `play` returns graded trajectories and may omit some."""

    name: str
    play: Callable[[Sequence[RolloutRequest]], Sequence[Trajectory]]


Runs = Sequence[Sequence[Trajectory]]


@dataclass(frozen=True, slots=True)
class Labeller:
    """Labels the choices of decision records. `sources`: trajectories by id; `tasks`: their tasks by key."""

    config: OutcomesConfig
    player: Player
    sources: Mapping[str, Trajectory]
    tasks: Mapping[str, Task]
    seed: int
    wheel_turn: int

    def label(self, records: Sequence[DecisionRecord]) -> tuple[list[DecisionRecord], list[Failure]]:
        """Label all choices; return labelled records, and failures for steps without a usable contrast.

        A record yields its own labelled record if a taken action is best, and one per step where another option is better.
        """
        choices = [decision for record in records for decision in record.steps if decision.is_choice]
        requests = {decision.step.key: self._requests(decision) for decision in choices}
        played = {run.id: run for run in self.player.play([r for own in requests.values() for option in own for r in option])}
        labelled: list[DecisionRecord] = []
        failures: list[Failure] = []
        for record in records:
            steps, branches = list(record.steps), list[DecisionRecord]()
            for place, decision in enumerate(record.steps):
                if not decision.is_choice:
                    continue
                runs = [[played[r.trajectory_id] for r in own if r.trajectory_id in played] for own in requests[decision.step.key]]
                steps[place] = unchosen(decision.step)
                match _best(decision, runs):
                    case Failure() as failure:
                        failures.append(failure)
                    case best if best.chosen == best.taken:
                        steps[place] = Decision(decision.step, best.options, best.chosen)
                    case best:
                        branches.append(_branch(record.question, best))
            if any(step.is_choice for step in steps):
                labelled.append(DecisionRecord(record.question, tuple(steps), record.correct, record.trajectory_id))
            labelled += branches
        return labelled, failures

    def _requests(self, decision: Decision) -> list[list[RolloutRequest]]:
        return [list(self._continuations(decision, option)) if decision.taken.calls else [] for option in decision.options]

    def _continuations(self, decision: Decision, option: Option) -> Iterator[RolloutRequest]:
        step, config = decision.step, self.config
        source, replayed = self.sources[step.trajectory_id], [_as_it_was(turn) for turn in step.before if calls_of(turn)]
        first = ReplayedTurn(_action(option), _brought(step.turn) if option == decision.taken else None)
        continues = {"trajectory": source.id, "turn": step.turn.index, "option": option.action, "taken": option == decision.taken}
        for number in range(1 if _answers(option.calls) else config.continuations):
            told = [self.player.name, *step.key, option.action, number, config.turns, self.seed]
            yield RolloutRequest(
                trajectory_id=f"continued-{digest(told)}",
                task=self.tasks[source.task_key],
                policy=self.player.name,
                horizon=len(replayed) + 1 + config.turns,
                seed=seed_from("continued", *told),
                stage=STAGE,
                wheel_turn=self.wheel_turn,
                sample=number,
                replay=Replay(source.seed, (*replayed, first)),
                provenance={CONTINUES: {**continues, "replayed": len(replayed)}},
            )


@dataclass(frozen=True, slots=True)
class _Best:
    """Options with a success rate, indices of the best and the taken one, and a successful continuation of the best."""

    options: tuple[Option, ...]
    chosen: int
    taken: int
    run: Trajectory


def _best(decision: Decision, runs: Runs) -> _Best | Failure:
    rates = [_success_rate(own) for own in runs]
    known = [place for place, rate in enumerate(rates) if rate is not None]
    item = {"trajectory": decision.step.trajectory_id, "turn": decision.step.turn.index, "rates": rates}
    if decision.chosen not in known or len(known) < 2:
        errors = [run.error or "no verifier gave a verdict" for own in (runs[decision.chosen], *runs) for run in own if _is_invalid(run)]
        reason = errors[0] if errors else "its continuations are missing" if decision.taken.calls else "replay: the action has no call"
        kind = "has_step_not_replayed" if reason.startswith("replay:") else "has_step_outcome_unknown"
        return Failure("synth", kind, reason, item)
    best = max(known, key=lambda place: (rates[place] or 0.0, place == decision.chosen))
    if all(rates[place] == rates[best] for place in known):
        return Failure("synth", "has_step_no_contrast", "all options succeed equally often", item)
    options = tuple(decision.options[place] for place in known)
    run = next(run for run in runs[best] if run.outcome is Outcome.SUCCESS)
    return _Best(options, known.index(best), known.index(decision.chosen), run)


def _branch(question: str, best: _Best) -> DecisionRecord:
    steps, place = steps_of(best.run, question), best.run.provenance[CONTINUES]["replayed"]
    decided = [Decision(step, best.options, best.chosen) if number == place else unchosen(step) for number, step in enumerate(steps)]
    return DecisionRecord(question, tuple(decided), True, best.run.id)


def _success_rate(runs: Sequence[Trajectory]) -> float | None:
    valid = [run for run in runs if not _is_invalid(run)]
    return sum(run.outcome is Outcome.SUCCESS for run in valid) / len(valid) if valid else None


def _is_invalid(run: Trajectory) -> bool:
    return run.outcome not in (Outcome.SUCCESS, Outcome.FAILURE)


def _as_it_was(turn: Turn) -> ReplayedTurn:
    calls = tuple(Action(tool, argument) for tool, argument in calls_of(turn))
    return ReplayedTurn(ActionTurn(calls, thought_of(turn.action) or None), _brought(turn))


def _action(option: Option) -> ActionTurn:
    return ActionTurn(tuple(Action(tool, argument) for tool, argument in option.calls))


def _brought(turn: Turn) -> tuple[str, ...] | None:
    """Results of a stored turn's calls; None if there are none, as for an answer."""
    if _answers(calls_of(turn)):
        return None
    given = tuple(call.observation.strip() for call in turn.calls if call.outcome != NOT_RUN)
    return given if any(given) else tuple(responses_of(turn)) or None


def _answers(calls: Sequence[Called]) -> bool:
    return any(tool == ANSWER for tool, _ in calls)
