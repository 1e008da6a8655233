"""Success after each stage over several homes, one a seed: `python -m benchmarks.success runs/seed0 runs/seed1 … [--json]`.

The homes are made by, for each seed: `flywheel run --profile from_scratch --home runs/seedN --turns 2 --set seed=N`. The last columns are
the mean and the standard deviation over the seeds, and `ratio` is the mean against that of the row above on the same suite.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from flows.results import evaluation_rows, stage_name
from warehouse import Lake

Key = tuple[str, int, str]


def successes(home: Path) -> dict[Key, float]:
    """Success by suite, turn and policy, of all hops together."""
    with Lake(home, read_only=True) as lake:
        rows = evaluation_rows(lake)
    return {(row["suite"], row["turn"], stage_name(row)): row["success"] for row in rows if row["hops"] is None}


def main() -> None:
    """Read the homes and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homes", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = [successes(home) for home in arguments.homes]
    table: list[dict[str, Any]] = []
    for key in found[0]:
        values = [figures[key] for figures in found if key in figures]
        mean = statistics.mean(values)
        above = table[-1]["mean"] if table and table[-1]["suite"] == key[0] else None
        table.append(
            {
                "suite": key[0],
                "turn": key[1],
                "after": key[2],
                "seeds": values,
                "mean": mean,
                "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
                "ratio": mean / above if above else None,
            }
        )
    if arguments.json:
        print(json.dumps(table))
        return
    print(f"| suite | turn | after | {' | '.join(str(home.name) for home in arguments.homes)} | mean ± sd | ratio |")
    print(f"| --- | --- | --- | {' | '.join('---' for _ in arguments.homes)} | --- | --- |")
    for row in table:
        cells = " | ".join(f"{100 * value:.1f}" for value in row["seeds"])
        ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else ""
        spread = f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}"
        print(f"| {row['suite']} | {row['turn']} | {row['after']} | {cells} | {spread} | {ratio} |")


if __name__ == "__main__":
    main()
