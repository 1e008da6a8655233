"""Choice of a task's verifier: built-in, or the user's own, named by the configuration.

The configuration may name a built-in verifier, an entry point of an installed package, `module:attribute` or `file.py:attribute`, which
must be a `Grader`, a `Verifier`, or a class of verifiers without constructor arguments. Data may only name built-in verifiers and those
that the configuration lists; other names in a task are ignored. `judge` is a model, opened and calibrated by the caller; without one, tasks
that name it cannot be judged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eval.graders.base import Verifier, invalid
from eval.graders.verifiers import GRADERS, VERIFIERS, AnswerVerifier, Golds, Grader, Judged, Options, Reading, Rule, options_of
from warehouse.errors import RequestError
from warehouse.plugins import Registry, check_call
from warehouse.records import Outcome, Score, Task, Trajectory

OWN_VERIFIERS = Registry("verifier", {}, "agent_flywheel.verifiers", "evaluation.verifiers")
"""The user's own verifiers, by name."""


JUDGE = "judge"
"""Name of the verifier that is a model."""


@dataclass(frozen=True, slots=True)
class AbsentJudge:
    """Placeholder for the judge when none is open: every score is invalid."""

    name: str = JUDGE
    version: str = "0"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        return invalid(self, trajectory, "a judge is needed, but none is configured: set its model under evaluation.judge")


ABSENT_JUDGE = AbsentJudge()


@dataclass(frozen=True, slots=True)
class Verifiers:
    """The default verifier, the user's own that tasks may name, and the judge if one is open."""

    default: Verifier
    own: Mapping[str, Verifier] = field(default_factory=dict)
    judge: Verifier | None = None

    def of(self, task: Task) -> Verifier:
        """Return the verifier that the task's provenance names, else the default."""
        named = task.provenance.get("verifier")
        if not isinstance(named, str):
            return self.default
        if named == JUDGE:
            return self.judge or ABSENT_JUDGE
        return self.own.get(named) or VERIFIERS.get(named) or self.default

    def read(self, task: Task, answer: str | None) -> Hashable | None:
        """Return a key shared by equal answers under the task's grader (else that of short answers); None without an answer."""
        grader = grader_of(self.of(task)) or GRADERS["qa_em"]
        return None if answer is None else grader.key(answer, options_of(task, grader))

    def lack(self, task: Task) -> bool:
        """Return whether a task names user code that is not listed here, or a judge when none is open."""
        named = task.provenance.get("verifier")
        return isinstance(named, str) and ((":" in named and named not in self.own) or (named == JUDGE and self.judge is None))


SHORT_ANSWERS = Verifiers(VERIFIERS["qa_em"])
"""Default without a configuration: what a task names, else short answers."""


def asks_judge(tasks: Iterable[Task]) -> bool:
    """Return whether any of the tasks names the judge."""
    return any(task.provenance.get("verifier") == JUDGE for task in tasks)


@dataclass(frozen=True, slots=True)
class OwnVerifier:
    """Wrapper of the user's verifier: if it raises or returns anything but a score of the trajectory, the trajectory is invalid."""

    verifier: Verifier

    @property
    def name(self) -> str:
        return self.verifier.name

    @property
    def version(self) -> str:
        return self.verifier.version

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        try:
            score = self.verifier.verify(task, trajectory)
        except Exception as error:  # user code
            return invalid(self, trajectory, f"{type(error).__name__}: {error}")
        whole = isinstance(score, Score) and (score.trajectory_id, score.verifier, score.version) == (
            trajectory.id,
            self.name,
            self.version,
        )
        if not whole or (score.value is None) != (score.verdict is Outcome.INVALID):
            return invalid(
                self, trajectory, f"{self.name} did not return a score of this trajectory with its own name and version, but {score!r:.200}"
            )
        return score


def verifiers_of(default: str, own: Mapping[str, str] | None = None, judge: Verifier | None = None) -> Verifiers:
    """Open the verifiers that a configuration names. Raise RequestError if one is unknown, cannot be imported, or is no verifier."""
    found = {name: find_verifier(reference) for name, reference in (own or {}).items()}
    if default == JUDGE:
        return Verifiers(judge or ABSENT_JUDGE, found, judge)
    return Verifiers(found.get(default) or find_verifier(default), found, judge)


def find_verifier(name: str) -> Verifier:
    """Return the verifier with a name from a configuration or command. Raise RequestError as `verifiers_of`."""
    if name in VERIFIERS:
        return VERIFIERS[name]
    if name == JUDGE:
        return ABSENT_JUDGE
    if not is_verifier(name):
        raise RequestError(f"{unknown(name)}.")
    loaded = OWN_VERIFIERS.load(name)
    if isinstance(loaded, Grader):
        check_call(loaded.rule, ("answer", "golds", "options"), f"the rule of the verifier {name!r}")
    verifier = AnswerVerifier(_guarded_grader(loaded)) if isinstance(loaded, Grader) else _made(loaded, name)
    if not _is_verifier(verifier):
        raise RequestError(
            f"the verifier {name!r} is of the type {type(verifier).__name__}: it must be a Grader, or have name, version and verify()."
        )
    check_call(verifier.verify, ("task", "trajectory"), f"verify() of the verifier {name!r}")
    if verifier.name in VERIFIERS or verifier.name.partition(":")[0] == JUDGE:
        raise RequestError(f"the verifier {name!r} calls itself {verifier.name!r}, which is the name of another: give it its own name.")
    return OwnVerifier(verifier)


def grader_of(verifier: Verifier) -> Grader | None:
    """Return the grader that a verifier applies to answers, or None."""
    inner = verifier.verifier if isinstance(verifier, OwnVerifier) else verifier
    return inner.grader if isinstance(inner, AnswerVerifier) else None


def is_verifier(name: str, listed: Iterable[str] = ()) -> bool:
    """Return whether `name` can name a verifier, without importing user code."""
    return name in VERIFIERS or name == JUDGE or name in listed or ":" in name or OWN_VERIFIERS.installed(name)


def unknown(name: str, listed: Iterable[str] = ()) -> str:
    """Message for an unknown verifier."""
    known = ", ".join([*VERIFIERS, JUDGE, *listed])
    return f"there is no verifier {name!r:.200}; choose one of {known}, or give your own as file.py:attribute"


def _guarded_grader(grader: Grader) -> Grader:
    return replace(grader, rule=_guarded(grader.rule), reading=None if grader.reading is None else _guarded_reading(grader.reading))


def _guarded_reading(reading: Reading) -> Reading:
    def guarded(answer: str, options: Options) -> Hashable | None:
        try:
            read = reading(answer, options)
            hash(read)
        except Exception:  # user code: fall back to the answer's text
            return None
        return read

    return guarded


def _guarded(rule: Rule) -> Rule:
    """Wrap the rule so that any exception becomes a ValueError, which means that it cannot judge."""

    def guarded(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
        try:
            value, success = rule(answer, golds, options)
        except ValueError:
            raise
        except Exception as error:  # user code
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return float(value), bool(success)

    return guarded


def _made(loaded: Any, name: str) -> Any:
    if not isinstance(loaded, type):
        return loaded
    try:
        return loaded()
    except Exception as error:  # user code
        raise RequestError(f"the verifier {name!r} cannot be created: {type(error).__name__}: {error}.") from error


def _is_verifier(found: Any) -> bool:
    named = isinstance(getattr(found, "name", None), str) and isinstance(getattr(found, "version", None), str)
    return named and callable(getattr(found, "verify", None))
