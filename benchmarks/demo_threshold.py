"""Whether a finished demo is as good as it was: `python -m benchmarks.demo_threshold --home runs/demo`.

The thresholds lie below the lowest of three seeds (docs/learning.md) by the half-width of the interval of 1,000 tasks. Ends with status 1
where a policy is below its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from warehouse import Lake

THRESHOLDS = {("held_out", 1, "cpt"): 0.97, ("held_out", 1, "rl"): 0.97, ("held_out", 2, "rl"): 0.96, ("deep", 2, "rl"): 0.85}
"""Least share of successes by suite, iteration and stage."""


def main() -> None:
    """Print each figure beside its threshold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("runs/demo"))
    with Lake(parser.parse_args().home, read_only=True) as lake:
        rows = lake.query("SELECT suite, turn, stage, success FROM evaluations WHERE hops IS NULL").to_pylist()
    found = {(row["suite"], row["turn"], row["stage"]): row["success"] for row in rows}
    low = [key for key, least in THRESHOLDS.items() if found.get(key, 0.0) < least]
    for key, least in THRESHOLDS.items():
        shown = f"{found[key]:.3f}" if key in found else "none"
        print(f"{key[0]:<10} turn {key[1]} {key[2]:<4} {shown:>5}  at least {least:.3f}  {'LOW' if key in low else 'ok'}")
    raise SystemExit(1 if low else 0)


if __name__ == "__main__":
    main()
