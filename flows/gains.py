"""What a stage gained or lost: its policy against the one before it, and against the best of all that were there before.

Against the stage before alone, a stage that mends what another broke looks like a gain. So the headline of a wheel compares its last
policy with the best earlier one, and names every stage that did harm. The best earlier policy is chosen by the success that it is then
compared by, which flatters it a little: what is called better is better all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eval.statistics import PairedTest, SignFlips
from flows.results import Solved, paired, probability

STAGE_NAMES = {"init": "no training", "cpt": "pre-training", "sft": "the cold start", "rl": "reinforcement learning"}
"""What each stage is called in sentences."""
SIGNIFICANT = 0.05
"""Up to this p-value a difference is one."""
HARD_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy on a suite: its place in the wheel, its success with the 95 % interval, and how often it solved each task."""

    policy: str
    turn: int
    stage: str
    suite: str
    success: float
    low: float
    high: float
    attempts: int
    solved: Solved


@dataclass(frozen=True, slots=True)
class Gain:
    """Success in points less that of an earlier policy, with the paired test on the tasks that both were judged on.

    Where there is no such task `test` is None, and the points are the difference of the two figures.
    """

    earlier: Judged
    points: float
    test: PairedTest | SignFlips | None

    @property
    def verdict(self) -> Literal["better", "worse", "open"]:
        """Whether the difference is one, and which way."""
        if self.test is None or self.test.p_value > SIGNIFICANT:
            return "open"
        return "better" if self.points > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy with its gain over the stage before, and over the best policy before; None where there is none."""

    judged: Judged
    stage: Gain | None
    best: Gain | None

    @property
    def harmful(self) -> bool:
        """Whether the stage that made this policy left it worse than it found it."""
        return self.stage is not None and self.stage.verdict == "worse"


def standings(judged: Sequence[Judged]) -> list[Standing]:
    """Those of one suite, in the order of the wheel. Of earlier policies that are equally good the first is the best."""
    found: list[Standing] = []
    for place, one in enumerate(judged):
        earlier = judged[:place]
        best = max(earlier, key=lambda each: each.success, default=None)
        found.append(Standing(one, gain(earlier[-1], one) if earlier else None, gain(best, one) if best else None))
    return found


def gain(earlier: Judged, later: Judged) -> Gain:
    """What the later one gained over the earlier one."""
    test = paired(earlier.solved, later.solved)
    return Gain(earlier, 100 * (later.success - earlier.success if test is None else test.difference), test)


def headline(wheel: Sequence[Standing]) -> str:
    """The last policy's success, and whether it is better than the best of those before it."""
    if not wheel:
        return "Nothing has been evaluated yet"
    last, best = wheel[-1].judged, wheel[-1].best
    solved = f"{percent(last.success)} of unseen tasks solved"
    if best is None:
        return f"{solved} after {STAGE_NAMES.get(last.stage, last.stage)}"
    if best.test is None:
        return f"{solved}, and {percent(best.earlier.success)} of others by an earlier policy"
    points = f"{abs(best.points):.1f}{HARD_SPACE}points"
    match best.verdict:
        case "better":
            return f"{solved}, {points} more than by any policy before"
        case "worse":
            return f"{solved}, {points} less than by an earlier policy"
    return f"{solved}; no gain over {best.earlier.policy}, the best policy before it, is shown"


def comparison(wheel: Sequence[Standing]) -> str:
    """The last policy against the best of those before it, with its figures; empty where there is none."""
    best = wheel[-1].best if wheel else None
    if best is None:
        return ""
    earlier = best.earlier
    solved = f"{percent(earlier.success)} ({percent(earlier.low)} to {percent(earlier.high)})"
    last = place_of(wheel[-1].judged)
    return f"Before {last} the best policy was that of {place_of(earlier)}, which solved {solved}: {in_words(best)}."


def harm(wheel: Sequence[Standing]) -> list[str]:
    """A sentence for each stage that left its policy worse than the stage before."""
    return [
        f"{_capital(place_of(each.judged))} did harm: {in_words(each.stage)} against {place_of(each.stage.earlier)}."
        for each in wheel
        if each.harmful and each.stage is not None
    ]


def place_of(judged: Judged) -> str:
    """The stage and its turn, as they stand in a sentence."""
    return f"{STAGE_NAMES.get(judged.stage, judged.stage)} of turn{HARD_SPACE}{judged.turn}"


def in_words(gain: Gain) -> str:
    """The points, and the test behind them."""
    points = f"{signed(gain.points)}{HARD_SPACE}points"
    if gain.test is None:
        return f"{points}, on other tasks"
    chance, name = (text.replace(" ", HARD_SPACE) for text in (probability(gain.test.p_value), gain.test.name))
    return f"{points} ({chance}, {name} on {gain.test.tasks:,} common tasks)"


def signed(points: float) -> str:
    """A difference with its sign, which is never a hyphen."""
    return f"{points:+.1f}".replace("-", "\N{MINUS SIGN}")


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal, or a dash."""
    return "–" if share is None else f"{100 * share:.1f}{HARD_SPACE}%"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
