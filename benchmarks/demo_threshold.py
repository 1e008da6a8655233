"""Whether a finished demo is as good and as fast as it was: `python -m benchmarks.demo_threshold --home runs/demo`.

The least successes lie five to ten points below those of seed 0 (`benchmarks/results/quickstart.json`), the only seed that is known. The
second iteration must not end below the first. Time is counted in rounds of the fixed loop of `benchmarks.first_minutes`, so that another
machine has the same limit: a demo of twice as many as the quickest that was kept is too slow. Ends with status 1 where either is so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from benchmarks.evidence import load
from benchmarks.first_minutes import calibrate
from warehouse import Lake

Key = tuple[str, int, str]

THRESHOLDS: dict[Key, float] = {
    ("held_out", 1, "cpt"): 0.49,
    ("held_out", 1, "rl"): 0.58,
    ("held_out", 2, "rl"): 0.64,
}
"""Least share of successes by suite, iteration and stage."""


FIRST, SECOND = ("held_out", 1, "rl"), ("held_out", 2, "rl")


def thresholds(found: Mapping[Key, float | None]) -> dict[Key, float]:
    """`THRESHOLDS`, with the second iteration's at least at what the first one's policy solves."""
    return THRESHOLDS | {SECOND: max(THRESHOLDS[SECOND], found.get(FIRST) or 0.0)}


def too_low(found: Mapping[Key, float | None]) -> list[Key]:
    """The policies that solve less than they must, or were never tried."""
    return [key for key, least in thresholds(found).items() if (found.get(key) or 0.0) < least]


def kept_rounds() -> list[float]:
    """How many rounds of the fixed loop each demo took that `first_minutes` kept with its loop."""
    days = [day for day in load("first_minutes")["days"] if day["loop"] and "demo" in day["seconds"]]
    return [day["seconds"]["demo"] / fmean(day["loop"]) for day in days]


def limit() -> float:
    """The rounds at which a demo has half the speed of the quickest one that was kept."""
    return 2 * min(kept_rounds())


def too_slow(rounds: float) -> bool:
    """Whether a demo that took so many rounds of the fixed loop has half the speed of the quickest one, or less."""
    return rounds >= limit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("runs/demo"))
    with Lake(parser.parse_args().home, read_only=True) as lake:
        rows = lake.query("SELECT suite, turn, stage, success FROM evaluations WHERE hops IS NULL").to_pylist()
        runs = lake.runs("state = 'completed'")
    found = {(row["suite"], row["turn"], row["stage"]): row["success"] for row in rows}
    low = too_low(found)
    for key, least in thresholds(found).items():
        shown = f"{found[key]:.3f}" if found.get(key) is not None else "none"
        print(f"{key[0]:<10} turn {key[1]} {key[2]:<4} {shown:>7}    at least {least:.3f}   {'LOW' if key in low else 'ok'}")
    seconds = (max(run.finished or run.started for run in runs) - min(run.started for run in runs)).total_seconds()
    rounds = seconds / calibrate()
    slow = too_slow(rounds)
    print(f"all stages: {seconds:.0f} s, {rounds:.0f} rounds of the fixed loop, less than {limit():.0f}   {'SLOW' if slow else 'ok'}")
    raise SystemExit(1 if low or slow else 0)


if __name__ == "__main__":
    main()
