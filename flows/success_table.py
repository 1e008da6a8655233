"""The table of success that a run ends with: every policy on every suite, against the stage before it and against the best before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from flows.gains import HARD_SPACE, Gain, Judged, comparison, gain, harm, headline, signed, standings
from flows.lakes import champion_of
from flows.plan import policy_id
from flows.results import Solved, paired, probability, read_verdicts
from flows.screen import Screen
from warehouse import Lake

Rows = list[dict[str, Any]]
STAGES = ("init", "cpt", "sft", "rl")
"""Stages of a turn of the wheel, in their order."""


def evaluation_rows(lake: Lake) -> Rows:
    """The rows of the view `evaluations`, in the order of the wheel.

    A row over all hops also has `change`, success less that of the policy's parent on the tasks that both were judged on, and
    `p_value` of the paired test (`eval.statistics.paired_test`); both are None where the parent was not evaluated on the suite.
    `best_earlier`, `best_change` and `best_p_value` say the same of the best policy that the wheel had made before.
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
    """The headline of the wheel on its main suite, which is the one with the most attempts, and what stands behind it."""
    verdicts = read_verdicts(lake)
    own = [one for row in _rows(lake) if (one := _judged(row, verdicts)) is not None and _is_own(one)]
    attempts: dict[str, int] = {}
    for one in own:
        attempts[one.suite] = attempts.get(one.suite, 0) + one.attempts
    if not attempts:
        return _gate(lake)
    suite = min(attempts, key=lambda name: (-attempts[name], name))
    wheel = standings([one for one in own if one.suite == suite])
    return [f"{suite}: {headline(wheel)}.", *filter(None, [comparison(wheel)]), *harm(wheel), *_gate(lake)]


def _gate(lake: Lake) -> list[str]:
    """What the last gate decided, which policy is the champion and where it lies; and stages that left the weights as they were."""
    gates = sorted(lake.runs("stage = 'gate' AND state = 'completed'"), key=lambda run: run.wheel_turn)
    if not gates:
        return []
    policies = {policy.id: policy for policy in lake.policies()}
    champion = champion_of(lake)
    kept = f"the champion is {champion.id}, in {lake.place.home / champion.path}" if champion else "there is no champion yet"
    told = [f"Gate: {gates[-1].figures['reason']}; {kept}."]
    for policy in policies.values():
        parent = policies.get(policy.parent or "")
        if policy.wheel_turn == gates[-1].wheel_turn and parent is not None and parent.weights_digest == policy.weights_digest:
            told.append(
                f"{policy.id} has the weights of {parent.id}: it learned nothing. Rewards that are equal in every group give no gradient; "
                f"see the metrics zero_variance, format and reward, begin with demonstrations (SFT), or take a larger model."
            )
    return told


def print_table(rows: Rows, said: Sequence[str] = ()) -> None:
    """Success after each stage: one line a policy and suite, one column for all tasks and for each number of hops; then what is said."""
    title = "success on held-out tasks, % (95 % interval); changes on the same tasks (paired test)"
    table = Table(title=title, title_justify="left")
    hops = sorted({row["hops"] for row in rows if row["hops"] is not None})
    columns = ("suite", "turn", "after", "tasks", "invalid", "success", "against the stage before", "against the best before")
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
    """The stage, with the variant that stands in the policy's id."""
    return str(row["policy"]).split("-", 1)[-1]


def _rows(lake: Lake) -> Rows:
    return lake.query(
        """
        SELECT turn, stage, policy, suite, hops, tasks, trajectories, invalid, success, low, high FROM evaluations
        ORDER BY suite <> 'held_out', suite, turn, list_position(['init', 'cpt', 'sft', 'rl'], stage), policy, hops NULLS FIRST
        """
    ).to_pylist()


def _judged(row: Mapping[str, Any], verdicts: Mapping[tuple[str, str], Solved]) -> Judged | None:
    """The row over all hops of a policy that has a verdict."""
    if row["hops"] is not None or row["success"] is None or row["stage"] not in STAGES:
        return None
    solved = verdicts.get((row["policy"], row["suite"]), {})
    figures = (row["success"], row["low"], row["high"], row["trajectories"] - row["invalid"])
    return Judged(row["policy"], row["turn"], row["stage"], row["suite"], *figures, solved)


def _is_own(one: Judged) -> bool:
    """Whether the wheel made it, and not a comparison."""
    return one.policy == policy_id(one.turn, one.stage)


def _over_best(one: Judged | None, own: Sequence[Judged]) -> Gain | None:
    """Its gain over the best of the wheel's `own` that were made before it."""
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
