"""Verifiers of a trajectory's final state and of its return.

A state consists of tables of records of fields; a trajectory's changes map `table/key/field` to the final value, null if the field is gone.
The task holds the reference changes, obtained by executing its own calls; all of them must have been made. Extra changes are counted and
named but fail a trajectory only in the strict form, because equality of whole states punishes harmless changes (the reward of AutoForge,
arXiv 2512.22857, is that equality). A task whose reference changes nothing is judged by its answer, and by having changed nothing; without
an accepted answer it cannot be judged.

The return is the sum of the rewards of all calls; a turn's own reward is ignored, because RL writes its composed reward there. A return of
at least 1, or of the task's provenance key `success`, is a success if any reward was paid. An environment that answered calls until the
trajectory ended with an answer, but paid no reward, not even 0, cannot be judged by its return. If a limit ended the trajectory, the return
without rewards is 0, since the reward may only come at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval.graders.answers import exact_match
from eval.graders.base import graded, invalid, why_not_finished
from warehouse.records import Score, StopReason, Task, Trajectory

State = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Table → record key → field → value; JSON-serializable, and no value is null."""
Changes = Mapping[str, Any]
"""`table/key/field` → final value; null if the field is gone."""

STATE = "state"
"""Key in a call's figures: changes since the trajectory began."""
EXTRA_WRITES = "extra_writes"
"""Key in a call's figures: number of changes that are not in the reference."""
REFERENCE = "reference"
"""Key in a task's provenance: the reference changes."""
_ANSWERED = ("ok", "miss")
"""Outcomes of calls that a tool answered. Errors may come from the loop, which rejects calls before they reach a world."""


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """Paths of the reference changes that are missing or have a wrong value, and of extra changes."""

    missing: tuple[str, ...]
    wrong: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def reached(self) -> bool:
        """Whether the task-relevant part of the state matches the reference."""
        return not self.missing and not self.wrong


def changes(before: State, after: State) -> dict[str, Any]:
    """Return the fields of `after` that differ from `before`, sorted by path."""
    old, new = _flat(before), _flat(after)
    paths = sorted(old.keys() | new.keys())
    return {path: new.get(path) for path in paths if old.get(path) != new.get(path)}


def compare(reference: Changes, made: Changes) -> StateVerdict:
    return StateVerdict(
        missing=tuple(path for path in reference if path not in made),
        wrong=tuple(path for path in reference if path in made and made[path] != reference[path]),
        extra=tuple(path for path in made if path not in reference),
    )


def recorded_changes(trajectory: Trajectory) -> Changes | None:
    """Return the changes as of a trajectory's last call: empty if no call reached a world, None if they were not recorded."""
    calls = [call for turn in trajectory.turns for call in turn.calls]
    held = [call.figures[STATE] for call in calls if STATE in call.figures]
    if held:
        return held[-1] if isinstance(held[-1], Mapping) else None
    return None if any(call.outcome in _ANSWERED for call in calls) else {}


@dataclass(frozen=True, slots=True)
class StateVerifier:
    """`state`: the task-relevant part of the final state matches the reference. `state_strict`: and nothing else changed."""

    strict: bool = False

    @property
    def name(self) -> str:
        return "state_strict" if self.strict else "state"

    @property
    def version(self) -> str:
        return "4"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """Score 1 if the state was reached, else 0; invalid after a fault, or if the task or trajectory has no state."""
        if reason := why_not_finished(trajectory):
            return invalid(self, trajectory, reason)
        reference, made = task.provenance.get(REFERENCE), recorded_changes(trajectory)
        if not isinstance(reference, Mapping) or made is None:
            return invalid(self, trajectory, f"{'the trajectory' if isinstance(reference, Mapping) else 'the task'} has no state")
        if not reference and not any(answer.strip() for answer in task.answers):
            return invalid(self, trajectory, "the task expects neither a change nor an answer")
        success = self._succeeded(task, trajectory, reference, compare(reference, made))
        return graded(self, trajectory, float(success), success)

    def _succeeded(self, task: Task, trajectory: Trajectory, reference: Changes, verdict: StateVerdict) -> bool:
        if not verdict.reached or ((self.strict or not reference) and verdict.extra):
            return False
        return not task.answers or exact_match(trajectory.answer or "", task.answers)


def _flat(state: State) -> dict[str, Any]:
    return {
        f"{table}/{key}/{field}": value
        for table, records in state.items()
        for key, record in records.items()
        for field, value in record.items()
    }


ANSWERED_CALL = "ok"
"""Outcome of a call that the environment answered."""
SUCCESS = "success"
"""Key in a task's provenance: minimum return of a success."""


@dataclass(frozen=True, slots=True)
class EnvironmentReward:
    """`environment`: the return of the trajectory."""

    name: str = "environment"
    version: str = "3"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """Score the return; invalid after a fault, if the environment paid no reward, or if `success` is not a number."""
        if reason := why_not_finished(trajectory):
            return invalid(self, trajectory, reason)
        calls = [call for turn in trajectory.turns for call in turn.calls]
        rewards = [call.reward for call in calls if call.reward is not None]
        answered = any(call.outcome == ANSWERED_CALL for call in calls)
        if not rewards and answered and trajectory.stop_reason is StopReason.ANSWERED:
            return invalid(self, trajectory, "the environment gave no reward, not even 0")
        least = task.provenance.get(SUCCESS, 1.0)
        if isinstance(least, bool) or not isinstance(least, int | float):
            return invalid(self, trajectory, f"the task succeeds from a return of {least!r:.40}, which is not a number")
        value = float(sum(rewards))
        return graded(self, trajectory, value, bool(rewards) and value >= least)
