"""Whether a finished demo is as good and as fast as it was: `python -m benchmarks.demo_threshold --home runs/demo`.

The least successes lie five to ten points below those of seed 0 (`benchmarks/results/quickstart.json`), the only seed that is known. A demo
that takes twice as long as the one of README.md, which had two cores, is too slow. Ends with status 1 where either is so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from warehouse import Lake

Key = tuple[str, int, str]

THRESHOLDS: dict[Key, float] = {
    ("held_out", 1, "cpt"): 0.47,
    ("held_out", 1, "rl"): 0.54,
    ("held_out", 2, "rl"): 0.56,
}
"""Least share of successes by suite, iteration and stage."""
FASTEST_SECONDS = 400
"""From the first stage's start to the last one's end; making the environment took the rest."""


def too_low(found: Mapping[Key, float | None]) -> list[Key]:
    """The policies that solve less than they must, or were never tried."""
    return [key for key, least in THRESHOLDS.items() if (found.get(key) or 0.0) < least]


def too_slow(seconds: float) -> bool:
    """Whether a demo that took so long has half the speed that it had, or less."""
    return seconds >= 2 * FASTEST_SECONDS


def main() -> None:
    """Print each figure beside its threshold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("runs/demo"))
    with Lake(parser.parse_args().home, read_only=True) as lake:
        rows = lake.query("SELECT suite, turn, stage, success FROM evaluations WHERE hops IS NULL").to_pylist()
        runs = lake.runs("state = 'completed'")
    found = {(row["suite"], row["turn"], row["stage"]): row["success"] for row in rows}
    low = too_low(found)
    for key, least in THRESHOLDS.items():
        shown = f"{found[key]:.3f}" if found.get(key) is not None else "none"
        print(f"{key[0]:<10} turn {key[1]} {key[2]:<4} {shown:>7}    at least {least:.3f}   {'LOW' if key in low else 'ok'}")
    seconds = (max(run.finished or run.started for run in runs) - min(run.started for run in runs)).total_seconds()
    print(f"{'all stages':<22} {seconds:>5.0f} s  less than {2 * FASTEST_SECONDS} s  {'SLOW' if too_slow(seconds) else 'ok'}")
    raise SystemExit(1 if low or too_slow(seconds) else 0)


if __name__ == "__main__":
    main()
