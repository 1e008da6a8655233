"""Results of policies: verdicts, gains over earlier policies, and the table of success at the end of a run.

A comparison with the previous stage alone would count the repair of damage as a gain. So the headline compares the last policy with the
best earlier one and names every harmful stage. The best earlier policy is selected on the success it is compared by, which slightly favours
it: a reported gain is therefore conservative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.table import Table

from eval.statistics import PairedTest, SignFlips, paired_test
from flows.lakes import champion_of
from flows.plan import policy_id
from flows.screen import Screen
from rl.terminal import bar
from warehouse import Failure, Lake, Outcome, Score, Trajectory

Solved = Mapping[Any, float]
"""Success rate over each task's judged attempts, by key; tasks without a verdict are absent."""

_VERDICTS = """
SELECT t.policy, coalesce(t.suite, 'unnamed') AS suite, t.task_key, avg((o.outcome = 'success')::INT) AS solved
FROM trajectories t JOIN outcomes o ON o.trajectory_id = t.id
WHERE t.stage = 'eval' AND o.outcome IN ('success', 'failure') GROUP BY ALL ORDER BY 1, 2, 3
"""


def read_verdicts(lake: Lake) -> dict[tuple[str, str], Solved]:
    """Return the success rates of every evaluation, by policy and suite."""
    verdicts: dict[tuple[str, str], dict[str, float]] = {}
    for row in lake.query(_VERDICTS).to_pylist():
        verdicts.setdefault((row["policy"], row["suite"]), {})[row["task_key"]] = row["solved"]
    return dict(verdicts)


def judged_trajectories(lake: Lake, where: str, parameters: Sequence[Any] = (), at: int | None = None) -> list[Trajectory]:
    """Return the trajectories that match a SQL condition, with the outcome of their latest verdict, as in the views."""
    found = lake.trajectories(where, parameters, at)
    sql = "SELECT trajectory_id, outcome FROM outcomes WHERE trajectory_id IN (SELECT unnest(?))"
    latest = {row["trajectory_id"]: row["outcome"] for row in lake.query(sql, [[one.id for one in found]], at).to_pylist()}
    return [replace(one, outcome=Outcome(judged) if (judged := latest.get(one.id)) else None) for one in found]


def paired(before: Solved, after: Solved) -> PairedTest | SignFlips | None:
    """Run the paired test on the tasks with a verdict in both; None if there are none."""
    keys = sorted(before.keys() & after.keys())
    return paired_test([before[key] for key in keys], [after[key] for key in keys]) if keys else None


def forget(lake: Lake, stage: str, broken: Mapping[str, str]) -> None:
    """Remove broken trajectories (reason by id) with their scores, and record each in `failures`. Earlier snapshots keep them."""
    lake.add(Failure(stage, "retried", why, {"trajectory": name}) for name, why in broken.items())
    scores = lake.scores("trajectory_id IN (SELECT unnest(?))", [list(broken)]) if broken else ()
    lake.remove(Score, [(score.trajectory_id, score.verifier, score.version) for score in scores])
    lake.remove(Trajectory, broken)


def probability(p_value: float) -> str:
    """Format a p-value for prose."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


STAGE_NAMES = {"init": "no training", "cpt": "pre-training", "sft": "the cold start", "rl": "reinforcement learning"}
SIGNIFICANT = 0.05
"""Significance level of differences."""
HARD_SPACE = "\N{NO-BREAK SPACE}"
_BAR = 40
"""Width of a full bar."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy's result on a suite: success rate with 95 % interval, and the success rate of each task."""

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
    """Difference in success to an earlier policy, in percentage points, with the paired test on common tasks.

    Without common tasks, `test` is None and `points` is the difference of the two rates.
    """

    earlier: Judged
    points: float
    test: PairedTest | SignFlips | None

    @property
    def verdict(self) -> Literal["better", "worse", "open"]:
        """`better` or `worse` if the difference is significant, else `open`."""
        if self.test is None or self.test.p_value > SIGNIFICANT:
            return "open"
        return "better" if self.points > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy with its gains over the previous stage and the best earlier policy, if any."""

    judged: Judged
    stage: Gain | None
    best: Gain | None

    @property
    def harmful(self) -> bool:
        """Whether the stage made its policy significantly worse."""
        return self.stage is not None and self.stage.verdict == "worse"


def standings(judged: Sequence[Judged]) -> list[Standing]:
    """Return the standings on one suite, in order. The first of equally good earlier policies counts as the best."""
    found: list[Standing] = []
    for place, one in enumerate(judged):
        earlier = judged[:place]
        best = max(earlier, key=lambda each: each.success, default=None)
        found.append(Standing(one, gain(earlier[-1], one) if earlier else None, gain(best, one) if best else None))
    return found


def gain(earlier: Judged, later: Judged) -> Gain:
    test = paired(earlier.solved, later.solved)
    return Gain(earlier, 100 * (later.success - earlier.success if test is None else test.difference), test)


def headline(wheel: Sequence[Standing]) -> str:
    """State the last policy's success and whether it beats the best earlier one."""
    if not wheel:
        return "Nothing has been evaluated yet"
    last, best = wheel[-1].judged, wheel[-1].best
    solved = f"{percent(last.success)} of unseen tasks solved"
    if best is None:
        return f"{solved} after {STAGE_NAMES.get(last.stage, last.stage)}"
    if best.test is None:
        return f"{solved}; an earlier policy solved {percent(best.earlier.success)} of other tasks"
    points = f"{abs(best.points):.1f}{HARD_SPACE}points"
    match best.verdict:
        case "better":
            return f"{solved}, {points} more than by any policy before"
        case "worse":
            return f"{solved}, {points} less than by an earlier policy"
    return f"{solved}; no significant gain over {best.earlier.policy}, the best earlier policy"


def comparison(wheel: Sequence[Standing]) -> str:
    """Compare the last policy with the best earlier one, with figures; empty if there is none."""
    best = wheel[-1].best if wheel else None
    if best is None:
        return ""
    earlier = best.earlier
    solved = f"{percent(earlier.success)} ({percent(earlier.low)} to {percent(earlier.high)})"
    last = place_of(wheel[-1].judged)
    return f"Before {last} the best policy was that of {place_of(earlier)}, which solved {solved}: {in_words(best)}."


def rise(wheel: Sequence[Standing]) -> list[str]:
    """Say what changed from the first iteration's last policy to the last one's, with a bar per iteration; nothing for a single one."""
    ends = list({each.judged.turn: each.judged for each in wheel}.values())
    if len(ends) < 2:
        return []
    change = gain(ends[0], ends[-1])
    verb = {"better": "rose", "worse": "fell", "open": "did not change significantly"}[change.verdict]
    bars = [f"iteration {each.turn}  {bar(each.success, _BAR)} {percent(each.success)}" for each in ends]
    return [f"Success {verb} from iteration {ends[0].turn} to iteration {ends[-1].turn}: {in_words(change)}.", *bars]


def harm(wheel: Sequence[Standing]) -> list[str]:
    """Return a sentence for each stage that made its policy worse."""
    return [
        f"{_capital(place_of(each.judged))} lowered success: {in_words(each.stage)} against {place_of(each.stage.earlier)}."
        for each in wheel
        if each.harmful and each.stage is not None
    ]


def place_of(judged: Judged) -> str:
    """Name a policy's stage and iteration for prose."""
    return f"{STAGE_NAMES.get(judged.stage, judged.stage)} of iteration{HARD_SPACE}{judged.turn}"


def in_words(gain: Gain) -> str:
    points = f"{signed(gain.points)}{HARD_SPACE}points"
    if gain.test is None:
        return f"{points}, on other tasks"
    chance, name = (text.replace(" ", HARD_SPACE) for text in (probability(gain.test.p_value), gain.test.name))
    return f"{points} ({chance}, {name} on {gain.test.tasks:,} common tasks)"


def signed(points: float) -> str:
    """Format a difference with sign, using a minus sign instead of a hyphen."""
    return f"{points:+.1f}".replace("-", "\N{MINUS SIGN}")


def percent(share: float | None) -> str:
    """Format a share as a percentage with one decimal, or a dash for None."""
    return "–" if share is None else f"{100 * share:.1f}{HARD_SPACE}%"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


Rows = list[dict[str, Any]]
STAGES = ("init", "cpt", "sft", "rl")


def evaluation_rows(lake: Lake) -> Rows:
    """Return the rows of the view `evaluations`, in order.

    A row over all hops also has `change`, the difference in success to the policy's parent on common tasks, and the `p_value` of the paired
    test (`eval.statistics.paired_test`); both are None if the parent was not evaluated on the suite. `best_earlier`, `best_change` and
    `best_p_value` compare with the best earlier policy.
    """
    rows = _rows(lake)
    verdicts = read_verdicts(lake)
    parents = {policy.id: policy.parent for policy in lake.policies()}
    own = [one for row in rows if (one := _judged(row, verdicts)) is not None and _is_own(one)]
    for row in (row for row in rows if row["hops"] is None):
        before = verdicts.get((parents.get(row["policy"]) or "", row["suite"]), {})
        test = paired(before, verdicts.get((row["policy"], row["suite"]), {}))
        best = _over_best(_judged(row, verdicts), [each for each in own if each.suite == row["suite"]])
        row |= {"change": test.difference if test else None, "p_value": test.p_value if test else None}
        row |= {"best_earlier": best.earlier.policy if best else None, "best_change": best.points / 100 if best else None}
        row |= {"best_p_value": best.test.p_value if best and best.test else None}
    return rows


def sentences(lake: Lake) -> list[str]:
    """Return the headline on the main suite, its figures, the gate's decision, and the rise over the iterations."""
    verdicts = read_verdicts(lake)
    own = [one for row in _rows(lake) if (one := _judged(row, verdicts)) is not None and _is_own(one)]
    if not own:
        return _gate(lake)
    suite = largest_first((one.suite, one.attempts) for one in own)[0]
    wheel = standings([one for one in own if one.suite == suite])
    return [f"{suite}: {headline(wheel)}.", *filter(None, [comparison(wheel)]), *harm(wheel), *_gate(lake), *rise(wheel)]


def largest_first(attempts: Iterable[tuple[str, int]]) -> list[str]:
    """Return the suites by their total of judged attempts; the first is the main one."""
    totals = Counter[str]()
    for suite, count in attempts:
        totals[suite] += count
    return sorted(totals, key=lambda suite: (-totals[suite], suite))


def _gate(lake: Lake) -> list[str]:
    """State the last gate's decision, the champion and its folder, and the stages that did not change the weights."""
    gates = sorted(lake.runs("stage = 'gate' AND state = 'completed'"), key=lambda run: run.wheel_turn)
    if not gates:
        return []
    policies = {policy.id: policy for policy in lake.policies()}
    champion = champion_of(lake)
    kept = f"the champion is {champion.id}, in {lake.place.home / champion.path}" if champion else "there is no champion yet"
    lines = [f"Gate: {gates[-1].figures['reason']}; {kept}."]
    for policy in policies.values():
        parent = policies.get(policy.parent or "")
        if policy.wheel_turn == gates[-1].wheel_turn and parent is not None and parent.weights_digest == policy.weights_digest:
            lines.append(
                f"{policy.id} has the weights of {parent.id}: it learned nothing. Rewards that are equal in every group give no gradient; "
                f"check the metrics zero_variance, format and reward, start with demonstrations (SFT), or use a larger model."
            )
    return lines


def print_table(rows: Rows, said: Sequence[str] = ()) -> None:
    """Print success per policy and suite, with a column per number of hops, followed by the sentences."""
    title = "success on held-out tasks, % (95 % interval); changes on the same tasks (paired test)"
    table = Table(title=title, title_justify="left")
    hops = sorted({row["hops"] for row in rows if row["hops"] is not None})
    columns = ("suite", "iteration", "after", "tasks", "invalid", "success", "against the stage before", "against the best before")
    for name in (*columns, *(f"{h} hop{'s' if h > 1 else ''}" for h in hops)):
        table.add_column(name, no_wrap=True, justify="left" if name in ("suite", "after") else "right")
    for overall in (row for row in rows if row["hops"] is None):
        parts = {row["hops"]: row for row in rows if row["policy"] == overall["policy"] and row["suite"] == overall["suite"]}
        table.add_row(
            overall["suite"],
            str(overall["turn"]),
            stage_name(overall),
            str(overall["tasks"]),
            str(overall["invalid"]),
            _rate(overall, interval=True),
            _change(overall["change"], overall["p_value"]),
            _change(overall["best_change"], overall["best_p_value"], overall["best_earlier"]),
            *(_rate(parts[h]) if h in parts else "" for h in hops),
        )
    console = Screen(width=max(190, Screen().width))
    console.print(table)
    for sentence in said:
        console.print(sentence.replace(HARD_SPACE, " "), markup=False, highlight=False)


def stage_name(row: Mapping[str, Any]) -> str:
    """Return the stage with its variant, from the policy's id."""
    return str(row["policy"]).split("-", 1)[-1]


def _rows(lake: Lake) -> Rows:
    return lake.query(
        """
        SELECT turn, stage, policy, suite, hops, tasks, trajectories, invalid, success, low, high FROM evaluations
        ORDER BY suite <> 'held_out', suite, turn, list_position(['init', 'cpt', 'sft', 'rl'], stage), policy, hops NULLS FIRST
        """
    ).to_pylist()


def _judged(row: Mapping[str, Any], verdicts: Mapping[tuple[str, str], Solved]) -> Judged | None:
    if row["hops"] is not None or row["success"] is None or row["stage"] not in STAGES:
        return None
    solved = verdicts.get((row["policy"], row["suite"]), {})
    figures = (row["success"], row["low"], row["high"], row["trajectories"] - row["invalid"])
    return Judged(row["policy"], row["turn"], row["stage"], row["suite"], *figures, solved)


def _is_own(one: Judged) -> bool:
    return one.policy == policy_id(one.turn, one.stage)


def _over_best(one: Judged | None, own: Sequence[Judged]) -> Gain | None:
    if one is None:
        return None
    earlier = [each for each in own if _place(each) < _place(one)]
    return gain(max(earlier, key=lambda each: each.success), one) if earlier else None


def _place(one: Judged) -> tuple[int, int]:
    return one.turn, STAGES.index(one.stage)


def _change(change: float | None, p_value: float | None, against: str | None = None) -> str:
    if change is None:
        return ""
    tested = "" if p_value is None else f" ({probability(p_value)})"
    return f"{signed(100 * change)}{tested}{f' {against}' if against else ''}"


def _rate(row: Mapping[str, Any], interval: bool = False) -> str:
    if row["success"] is None:
        return "–"
    around = f" ({100 * row['low']:.1f}–{100 * row['high']:.1f})" if interval else ""
    return f"{100 * row['success']:.1f}{around}"
