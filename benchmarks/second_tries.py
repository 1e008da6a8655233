"""How often a policy tries a search again, before it is trained to: `python -m benchmarks.second_tries --home runs/imperfect [--json]`.

Reinforcement learning reinforces what is sampled sometimes. A policy (after SFT, where no other is named) samples some of RL's own tasks,
as often and as freely as RL's first step does, by the flow of `flywheel rollout`; the view `search_habits` says how often it searched for
something a second time, read on, asked in other words, or looked further after it had seen its answer. Beside that stands how many of the
oracle's demonstrations show a second try. What is sampled bears the stage `rollout` and takes part in no training; it is sampled once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from flows.home import Home
from flows.pipeline import run_flow, sampling_flow
from flows.plan import policy_id, sampling_id
from warehouse import Lake
from warehouse.errors import RequestError

DEMONSTRATIONS = """
SELECT split_part(id, '-', 2) AS style, count(*) AS demonstrations, count(*) / sum(count(*)) OVER () AS share
FROM examples WHERE starts_with(id, 'demonstration-') AND wheel_turn = 1 GROUP BY ALL ORDER BY style
"""
"""How the oracle's demonstrations of the first turn go."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--policy", default=policy_id(1, "sft"))
    parser.add_argument("--tasks", type=int, default=100, help="tasks of RL that are sampled")
    parser.add_argument("--horizon", type=int, help="turns of a trajectory; RL's first without it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        wanted = sampling(options.home, options.tasks, options.horizon)
        run_flow(options.home, sampling_flow, policy=options.policy, **wanted)
    except RequestError as error:
        parser.error(str(error))
    with Lake(options.home, read_only=True) as lake:
        found = habits(lake, sampling_id(options.policy, wanted))
    print(json.dumps(found) if options.json else "\n".join(f"{name:16} {value}" for name, value in found.items()))


def sampling(home: Path, tasks: int, horizon: int | None) -> dict[str, Any]:
    """What is sampled: the first so many of RL's tasks by key, as RL's first step samples a task."""
    rl = Home(home).load().for_turn(1).rl
    condition = f"({rl.tasks}) AND hops <= {rl.horizon.hops[0]}"
    return {
        "condition": f"key IN (SELECT key FROM tasks WHERE {condition} ORDER BY key LIMIT {tasks})",
        "samples": rl.samples_per_task,
        "temperature": rl.temperature,
        "horizon": horizon or rl.horizon.rounds[0],
    }


def habits(lake: Lake, sampled: str) -> dict[str, Any]:
    """The habits of the trajectories of one sampling, and of the demonstrations; those of invalid trajectories do not count."""
    sql = "SELECT * FROM search_habits WHERE starts_with(trajectory_id, ?) AND outcome IN ('success', 'failure')"
    rows = lake.query(sql, [f"{sampled}-"]).to_pylist()
    once = [row for row in rows if not row["same"] + row["pages"] + row["words"]]
    again = [row for row in rows if row["same"] + row["pages"] + row["words"]]
    return {
        "trajectories": len(rows),
        "success": success(rows),
        "searches": mean(row["searches"] for row in rows) if rows else None,
        "second_search": len(again) / len(rows) if rows else None,
        **{name: mean(row[name] > 0 for row in rows) if rows else None for name in ("pages", "words", "same", "checks")},
        "in_vain": sum(row["in_vain"] for row in rows),
        "retried": sum(row["retried"] for row in rows),
        "success_with": success(again),
        "success_without": success(once),
        "demonstrations": {row["style"]: row["share"] for row in lake.query(DEMONSTRATIONS).to_pylist()},
    }


def success(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of successes; None of nothing."""
    return mean(row["outcome"] == "success" for row in rows) if rows else None


if __name__ == "__main__":
    main()
