"""Success turn by turn, on all suites together, over several homes: `python -m benchmarks.turns runs/demo runs/seed1 … [--json]`.

The homes are made by, for each seed: `flywheel run --profile from_scratch --home runs/seedN --turns 5 --set seed=N`. Suites are drawn
once, in the first turn, so every turn answers the same tasks; of a turn it is RL's policy that counts. Columns: all tasks in each
home, their mean over the homes, and the mean over the homes of each number of hops.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

from flows.results import evaluation_rows, stage_name
from warehouse import Lake

Turns = dict[int, dict[int, tuple[float, int]]]
"""Of each turn and number of hops: the share solved and the number of tasks."""


def success_by_turn(home: Path) -> Turns:
    """How good the policy of each turn's RL is on the tasks of each number of hops."""
    with Lake(home, read_only=True) as lake:
        rows = evaluation_rows(lake)
    found: Turns = defaultdict(dict)
    for row in rows:
        if row["hops"] is not None and stage_name(row) == "rl":
            share, tasks = found[row["turn"]].get(row["hops"], (0.0, 0))
            together = tasks + row["tasks"]
            found[row["turn"]][row["hops"]] = ((share * tasks + row["success"] * row["tasks"]) / together, together)
    return found


def overall(parts: dict[int, tuple[float, int]]) -> float:
    """The share solved of all tasks."""
    return sum(share * tasks for share, tasks in parts.values()) / sum(tasks for _, tasks in parts.values())


def main() -> None:
    """Read the homes and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homes", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = [success_by_turn(home) for home in arguments.homes]
    turns = sorted(set.intersection(*(set(home) for home in found)))
    hops = sorted(found[0][turns[0]])
    seeds = {turn: [overall(home[turn]) for home in found] for turn in turns}
    by_hops = {turn: [mean(home[turn][number][0] for home in found) for number in hops] for turn in turns}
    if arguments.json:
        print(json.dumps([{"turn": turn, "seeds": seeds[turn], "hops": dict(zip(hops, by_hops[turn], strict=True))} for turn in turns]))
        return
    print("| turn | " + " | ".join([*(home.name for home in arguments.homes), "mean", *(f"{number} hops" for number in hops)]) + " |")
    print("| --- |" + " --- |" * (len(found) + 1 + len(hops)))
    for turn in turns:
        print(f"| {turn} | " + " | ".join(f"{100 * figure:.1f}" for figure in (*seeds[turn], mean(seeds[turn]), *by_hops[turn])) + " |")


if __name__ == "__main__":
    main()
