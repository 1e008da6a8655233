"""Who judges a task: a verifier that comes with the package, or one of somebody's own, named by the configuration.

A name of the configuration may be a kind, an entry point of an installed package, `module:attribute` or `file.py:attribute`; what it
stands for is a `Grader`, a `Verifier`, or a class of verifiers that takes no arguments. Data names what is built in and what the
configuration lists, and nothing else: any other name in a task is passed over. `judge` is a model, which whoever opens the verifiers has
opened and calibrated; without one, what asks for it cannot be judged.
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
"""Verifiers of somebody's own, by name."""


JUDGE = "judge"
"""What configuration and tasks call the verifier that is a model."""


@dataclass(frozen=True, slots=True)
class AbsentJudge:
    """What stands in the place of a judge where none is open: nothing is known of any answer."""

    name: str = JUDGE
    version: str = "0"

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """An invalid score."""
        return invalid(self, trajectory, "a judge is asked for and none is open: name its model under evaluation.judge")


ABSENT_JUDGE = AbsentJudge()


@dataclass(frozen=True, slots=True)
class Verifiers:
    """The verifier of tasks that name none, those of somebody's own that tasks may name, and the judge, where one is open."""

    default: Verifier
    own: Mapping[str, Verifier] = field(default_factory=dict)
    judge: Verifier | None = None

    def of(self, task: Task) -> Verifier:
        """The verifier that a task's provenance names, or else the default."""
        named = task.provenance.get("verifier")
        if not isinstance(named, str):
            return self.default
        if named == JUDGE:
            return self.judge or ABSENT_JUDGE
        return self.own.get(named) or VERIFIERS.get(named) or self.default

    def read(self, task: Task, answer: str | None) -> Hashable | None:
        """What equal answers to a task have in common by the grader that judges it, or by that of short answers; None without an answer."""
        grader = grader_of(self.of(task)) or GRADERS["qa_em"]
        return None if answer is None else grader.key(answer, options_of(task, grader))

    def lack(self, task: Task) -> bool:
        """Whether a task names code of somebody's own that is not listed here, as those of a suite by such a verifier do elsewhere; or a
        judge, and none is open."""
        named = task.provenance.get("verifier")
        return isinstance(named, str) and ((":" in named and named not in self.own) or (named == JUDGE and self.judge is None))


SHORT_ANSWERS = Verifiers(VERIFIERS["qa_em"])
"""Where no configuration says otherwise: what a task names, and short answers by their words."""


def asks_judge(tasks: Iterable[Task]) -> bool:
    """Whether one of the tasks names the judge."""
    return any(task.provenance.get("verifier") == JUDGE for task in tasks)


@dataclass(frozen=True, slots=True)
class OwnVerifier:
    """A verifier of somebody's own: whatever it raises, or gives beside a score of the trajectory, makes the trajectory invalid."""

    verifier: Verifier

    @property
    def name(self) -> str:
        """The name that it gives itself."""
        return self.verifier.name

    @property
    def version(self) -> str:
        """The version that it gives itself."""
        return self.verifier.version

    def verify(self, task: Task, trajectory: Trajectory) -> Score:
        """Its score of the trajectory, or an invalid one with what went wrong."""
        try:
            score = self.verifier.verify(task, trajectory)
        except Exception as error:  # somebody's code: whatever it is, nothing is known of the answer
            return invalid(self, trajectory, f"{type(error).__name__}: {error}")
        whole = isinstance(score, Score) and (score.trajectory_id, score.verifier, score.version) == (
            trajectory.id,
            self.name,
            self.version,
        )
        if not whole or (score.value is None) != (score.verdict is Outcome.INVALID):
            return invalid(
                self, trajectory, f"{self.name} gave no score of this trajectory by its own name and version, but {score!r:.200}"
            )
        return score


def verifiers_of(default: str, own: Mapping[str, str] | None = None, judge: Verifier | None = None) -> Verifiers:
    """The verifiers that a configuration means: `default` by its name, each of `own` that tasks may name, and the `judge`, if it is open.

    Raises:
        RequestError: there is none of a name, it cannot be imported, or it is no verifier.
    """
    found = {name: find_verifier(reference) for name, reference in (own or {}).items()}
    if default == JUDGE:
        return Verifiers(judge or ABSENT_JUDGE, found, judge)
    return Verifiers(found.get(default) or find_verifier(default), found, judge)


def find_verifier(name: str) -> Verifier:
    """The verifier that the configuration, or whoever types a command, calls `name`. Raises RequestError as `verifiers_of` does."""
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
        raise RequestError(f"the verifier {name!r} calls itself {verifier.name!r}, which is the name of another: give it one of its own.")
    return OwnVerifier(verifier)


def grader_of(verifier: Verifier) -> Grader | None:
    """The rule that a verifier applies to answers; None where it looks at none."""
    inner = verifier.verifier if isinstance(verifier, OwnVerifier) else verifier
    return inner.grader if isinstance(inner, AnswerVerifier) else None


def is_verifier(name: str, listed: Iterable[str] = ()) -> bool:
    """Whether `name` can be that of a verifier; code of somebody's own is not imported to see."""
    return name in VERIFIERS or name == JUDGE or name in listed or ":" in name or OWN_VERIFIERS.installed(name)


def unknown(name: str, listed: Iterable[str] = ()) -> str:
    """What is said of a name that is no verifier's."""
    known = ", ".join([*VERIFIERS, JUDGE, *listed])
    return f"there is no verifier {name!r:.200}; choose one of {known}, or name your own as file.py:attribute"


def _guarded_grader(grader: Grader) -> Grader:
    return replace(grader, rule=_guarded(grader.rule), reading=None if grader.reading is None else _guarded_reading(grader.reading))


def _guarded_reading(reading: Reading) -> Reading:
    def guarded(answer: str, options: Options) -> Hashable | None:
        try:
            read = reading(answer, options)
            hash(read)
        except Exception:  # somebody's code: the answer's words stand for it
            return None
        return read

    return guarded


def _guarded(rule: Rule) -> Rule:
    """The rule, with any exception turned into a ValueError: it cannot judge."""

    def guarded(answer: str | Sequence[str], golds: Golds, options: Options) -> Judged:
        try:
            value, success = rule(answer, golds, options)
        except ValueError:
            raise
        except Exception as error:  # somebody's code
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return float(value), bool(success)

    return guarded


def _made(loaded: Any, name: str) -> Any:
    if not isinstance(loaded, type):
        return loaded
    try:
        return loaded()
    except Exception as error:  # somebody's code
        raise RequestError(f"the verifier {name!r} cannot be made: {type(error).__name__}: {error}.") from error


def _is_verifier(found: Any) -> bool:
    named = isinstance(getattr(found, "name", None), str) and isinstance(getattr(found, "version", None), str)
    return named and callable(getattr(found, "verify", None))
