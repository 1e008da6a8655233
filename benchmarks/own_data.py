"""A wheel on its own data against four others: `python -m benchmarks.own_data --home runs/own_data [--turns 5] [--seeds 100]`.

    own      from turn 2 on the policy's own successes, and decision records of which every option is an action of one of its runs
    again    from turn 2 on the first turn's text once more
    oracle   from turn 2 on fresh chains of the oracle's, to the depth of the questions, with own decision records and successes
    unread   from turn 2 on the policy's own successes and RL, without pre-training on decision records
    alone    from turn 2 on RL alone, from the champion, with nothing read before it

The first turn, like the quickstart's, is made once for each seed, by `profiles/own_data.toml`; an arm is a copy of that home where
`flywheel run` goes on. Budgets of tokens, new questions, RL and suites are those of the profile in all of them. A home that has come so far
is passed by, and one that was cut short goes on. Printed are, for each suite, the success of each turn's last policy, the change from the
first turn to the last, by how much `own` is above each other arm on the same tasks, and the optimiser's steps: where these differ, an arm
had too little text for its budget. `--keep` writes the counts to benchmarks/results, with those of other seeds that are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence import counts_of, keep, kept, merged
from benchmarks.evidence_tables import own_data
from benchmarks.homes import copy_home, overrides, place
from flows.config import load_config
from flows.home import Home
from flows.plan import completed, gate_id, is_done, policy_id
from flows.results import Solved, paired, read_verdicts
from warehouse import Lake

PROFILE = "own_data"
START = "start"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of going on after the first turn: what it is called, and its settings over those of the profile."""

    name: str
    words: str
    settings: tuple[str, ...] = ()


ARMS = (
    Arm("own", "own trajectories alone"),
    Arm("again", "the first turn's text again", ('later.cpt.from=["again"]', 'later.sft.from=["again"]')),
    Arm(
        "oracle",
        "fresh text of the oracle's",
        (
            'later.cpt.from=["fas", "has"]',
            'later.sft.from=["oracle", "own"]',
            "later.synth.has.mixture={oracle=1.0}",
            "later.synth.demonstration_questions.counts={}",
            "later.synth.fas.reasoning={1=800, 2=800, 3=800, 4=800, 5=1000, 6=1000}",
        ),
    ),
    Arm("unread", "own successes, no pre-training", ('wheel.stages=["sft", "rl"]',)),
    Arm("alone", "RL alone, nothing read", ('wheel.stages=["rl"]',)),
)
WORDS = {arm.name: arm.words for arm in ARMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="the folder of all homes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], default=[arm.name for arm in ARMS], help="by default all")
    parser.add_argument("--profile", default=PROFILE, help="a profile, or the path of a TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="over the profile, for all arms")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--keep", metavar="NAME", help="write the counts to benchmarks/results/NAME.json")
    parser.add_argument("--command", action="append", help="what made them, for `--keep`; repeatable")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.keep and not options.command:
        parser.error("--keep needs --command: whoever reads the counts wants to know what made them.")
    for seed in options.seeds if not options.table else ():
        for arm in (arm for arm in ARMS if arm.name in options.arms):
            run_arm(options.home, arm, seed, options.turns, options.profile, options.set)
    rows = [row for seed in options.seeds for row in table(options.home, seed, options.turns) if row["arm"] in options.arms]
    if options.keep:
        keep(options.keep, {"commands": options.command, "rows": merged(kept(options.keep).get("rows", []), rows)})
    print(json.dumps(rows) if options.json else markdown(rows))


def run_arm(root: Path, arm: Arm, seed: int, turns: int, profile: str, settings: Sequence[str]) -> None:
    """Turn the wheel of an arm up to its last turn, from a copy of the seed's first one."""
    home, start = place(root, arm.name, seed), place(root, START, seed)
    common = (*settings, f"seed={seed}")
    if not home.root.is_dir():
        if not is_done(completed(start), 1):
            run_wheel(start, 1, ["--profile", profile, *overrides(common)])
        copy_home(start, home, load_config(profile, (*common, *arm.settings)))
    if not is_done(completed(home), turns):
        run_wheel(home, turns, [])


def run_wheel(home: Home, turns: int, arguments: Sequence[str]) -> None:
    """`flywheel run` up to its last turn."""
    command = [sys.executable, "-m", "flows.cli", "run", "--home", str(home.root), "--turns", str(turns), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def table(root: Path, seed: int, turns: int) -> Iterator[dict[str, Any]]:
    """A row for each suite and arm that is there: each turn's success and training, and the last turn against the first and `own`."""
    homes = {arm.name: place(root, arm.name, seed) for arm in ARMS}
    solved = {name: verdicts(home) for name, home in homes.items() if (home.root / "lake").is_dir()}
    for name, found in solved.items():
        with Lake(homes[name].root, read_only=True) as lake:
            steps = {run.id: run.figures.get("steps", 0) for run in lake.runs("stage IN ('cpt', 'sft')")}
            gates = {run.id for run in lake.runs("stage = 'gate' AND state = 'completed'")}
        done = [number for number in range(1, turns + 1) if gate_id(number) in gates]
        for suite in sorted(suite for other, suite in found if done and other == policy_id(done[-1], "rl")):
            last, first = ((policy_id(number, "rl"), suite) for number in (done[-1], done[0]))
            before = paired(found[first], found[last]) if first != last else None
            own = paired(found[last], solved.get("own", {}).get(last, {})) if name != "own" else None
            yield {
                "seed": seed, "suite": suite, "arm": name, "words": WORDS[name],
                "turns": [_turn(number, found[policy_id(number, "rl"), suite], steps) for number in done],
                "from_first": before and counts_of(before),
                "own_above": own and counts_of(own),
            }  # fmt: skip


def _turn(number: int, solved: Solved, steps: Mapping[str, float]) -> dict[str, Any]:
    made = {f"{stage}_steps": int(steps.get(policy_id(number, stage), 0)) for stage in ("cpt", "sft")}
    return {"turn": number, "tasks": len(solved), "successes": round(sum(solved.values())), **made}


def verdicts(home: Home) -> dict[tuple[str, str], Solved]:
    """How often each policy solved each task, by policy and suite."""
    with Lake(home.root, read_only=True) as lake:
        return read_verdicts(lake)


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table for each suite."""
    suites = sorted({row["suite"] for row in rows})
    return "\n\n".join(f"Suite `{suite}`:\n\n{own_data({'rows': rows}, suite)}" for suite in suites)


if __name__ == "__main__":
    main()
