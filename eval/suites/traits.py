"""The seven traits of a good evaluation, each kept, not kept or not known, with its reason.

The rules of the trade behind them: enough questions to tell policies apart, labels that are right, one figure to quote, one command to get
it, a sentence that says what it means, grading that is itself checked, and room above and below the best policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from eval.statistics import detectable_difference
from eval.suites.figures import Figure
from eval.suites.validation import Validation

ENOUGH = 1_000
"""Tasks from which on a suite is large."""
MARGIN = 0.01
"""A suite is saturated where the best policy's interval comes so near to 0 or to 1."""
_SENTENCE = re.compile(r"[A-Z][^.!?]{20,}\.")


class TraitState(StrEnum):
    """Whether a suite has a trait."""

    KEPT = "kept"
    NOT_KEPT = "not kept"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Trait:
    """One trait of a suite, with the reason for its state."""

    name: str
    state: TraitState
    reason: str


def size(tasks: int) -> Trait:
    """At least a thousand tasks; else what so few can show."""
    found = detectable_difference(tasks) if tasks else None
    shown = "no difference at all" if found is None else f"a difference of {100 * found:.1f} points"
    reason = f"{tasks} tasks find {shown} between two policies in 80 % of cases, where half of them are solved by one alone"
    return _trait("size", tasks >= ENOUGH, reason)


def label_quality(found: Validation | None) -> Trait:
    """Every right answer passes, and every task can be judged."""
    if found is None:
        return _trait("label quality", None, "the tasks were not validated")
    wrong, unjudged = found.gold.mistaken, found.unjudged.mistaken
    first = next(iter((*found.gold.examples, *found.unjudged.examples)), None)
    reason = f"{found.gold.tried - wrong} of {found.gold.tried} right answers pass, {unjudged} tasks cannot be judged"
    kept = found.gold.tried > 0 and not wrong and not unjudged
    return _trait("label quality", kept, reason + (f"; the first: {first}" if first else ""))


def one_headline(name: str, figure: Figure | None, objection: str | None) -> Trait:
    """One figure to quote, which the stored attempts give."""
    if figure is None:
        return _trait("one headline figure", None, f"{name}; no policy has been evaluated on it here")
    if objection is not None or figure.estimate is None:
        unjudged = "too many tasks have fewer judged attempts than it takes"
        return _trait("one headline figure", False, f"{name}, but there is no result: {objection or unjudged}")
    value = figure.estimate
    return _trait("one headline figure", True, f"{name} = {value.value:.3f} ({value.low:.3f} to {value.high:.3f})")


def one_command(command: str, drawn: str, stored: str | None) -> Trait:
    """One command gives the same tasks again: their digest is that of the last run."""
    if stored is None:
        return _trait("one command", None, f"{command}; it has not been run here")
    same = drawn == stored
    return _trait("one command", same, command if same else f"{command} now draws other tasks ({drawn}) than were evaluated ({stored})")


def meaning(text: str) -> Trait:
    """One sentence says what the figure means."""
    kept = _SENTENCE.fullmatch(text.strip()) is not None
    return _trait("meaning", kept, text.strip() if kept else f"not one whole sentence: {text.strip()!r}")


def grading(found: Validation | None) -> Trait:
    """No answer that is known to be wrong passes."""
    if found is None:
        return _trait("grading checked", None, "the tasks were not validated")
    tried = sum(tally.tried for tally in found.negatives.values())
    taken = {sort: tally.mistaken for sort, tally in found.negatives.items() if tally.mistaken}
    first = next((example for tally in found.negatives.values() for example in tally.examples), None)
    reason = f"{tried} wrong answers of {len(found.negatives)} sorts tried, {sum(taken.values())} passed"
    kept = False if taken else True if tried else None
    return _trait("grading checked", kept, reason + (f" ({', '.join(taken)}); the first: {first}" if taken else ""))


def not_saturated(best: str | None, figure: Figure | None) -> Trait:
    """The best policy's interval keeps clear of 0 and of 1."""
    if best is None or figure is None or figure.estimate is None:
        return _trait("not saturated", None, "no policy has a result on it here")
    value = figure.estimate
    about = f"the best policy here, {best}, has {value.value:.3f} ({value.low:.3f} to {value.high:.3f})"
    if value.high > 1 - MARGIN:
        return _trait("not saturated", False, f"{about}: nothing is left to gain")
    if value.low < MARGIN:
        return _trait("not saturated", False, f"{about}: it tells such policies not apart from one that knows nothing")
    return _trait("not saturated", True, about)


def _trait(name: str, kept: bool | None, reason: str) -> Trait:
    """A trait that is kept or not; with `kept` None it is not known."""
    return Trait(name, TraitState.NOT_KNOWN if kept is None else TraitState.KEPT if kept else TraitState.NOT_KEPT, reason)
