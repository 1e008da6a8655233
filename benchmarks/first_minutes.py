"""Duration of a newcomer's first steps on an idle machine: environment, demo, tests, both ways to install.

    git clone -q . /tmp/first && python -m benchmarks.first_minutes --clone /tmp/first [--parts setup demo] [--keep]

Each part is what README says, typed in a fresh clone, which the first part must be `setup` of; an installed package has only to say what
it would run. Before and after the parts a fixed loop is timed, of multiplications as the small policy makes them and of plain Python: how
fast the machine is that day. `--keep` adds the row to `benchmarks/results/first_minutes.json`, one for each day. A part that fails has no
time, and takes none from the others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import evidence
from benchmarks.evidence_tables import Record, first_minutes
from rl.hardware import torch_threads

DRY = '"$1/bin/flywheel" run --profile quickstart --home "$1/home" --dry-run > /dev/null'
BACKEND = '$(test -n "$UV_FIND_LINKS" || echo --torch-backend cpu)'
"""Where a folder of wheels is named, torch's CPU build is in it."""
PARTS = {
    "setup": "make setup",
    "demo": "make demo",
    "test": "make test",
    "wheel": f".venv/bin/uv build -q --wheel && VENV=$1 EXTRA=cpu PACKAGE=$(ls dist/*.whl) sh requirements/install.sh && {DRY}",
    "checkout": f".venv/bin/uv venv -q $1 && .venv/bin/uv pip install -q --python $1 '.[cpu]' {BACKEND} && {DRY}",
}
"""What is typed; `$1` is a folder for the environment of an installed package."""
MADE = {"setup": ".venv", "demo": "runs/demo"}
"""What a part makes, and passes by where it is there."""
LOOPS, ROWS, WIDTH, COUNTED = 400, 2048, 128, 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clone", type=Path, required=True, help="a fresh clone, which nothing was made in")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--keep", action="store_true", help="add the row to benchmarks/results")
    options = parser.parse_args()
    if not options.clone.is_dir():
        parser.error(f"there is no {options.clone}: git clone -q . {options.clone}")
    if there := made_before(options.parts, options.clone):
        parser.error(f"{options.clone} has {' and '.join(there)} already, and making nothing takes no time: give a fresh clone")
    loops, seconds, failed = [calibrate()], dict[str, float](), list[str]()
    for part in options.parts:
        took, status = timed(part, options.clone.resolve())
        if status:
            failed.append(part)
            print(f"{part} failed with status {status} after {took} s: see {options.clone / part}.log", flush=True)
        else:
            seconds[part] = took
            print(f"{part}: {took} s", flush=True)
    loops.append(calibrate())
    commit = subprocess.run(["git", "-C", str(options.clone), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    day = {"day": datetime.now(UTC).date().isoformat(), "commit": commit.stdout.strip(), "loop": loops, "seconds": seconds}
    days = with_day(evidence.kept("first_minutes").get("days", []), day)
    if options.keep:
        evidence.keep("first_minutes", {"commands": ["python -m benchmarks.first_minutes --clone CLONE --keep"], "days": days})
    print(first_minutes({"days": days}))
    raise SystemExit(1 if failed else 0)


def made_before(parts: Sequence[str], clone: Path) -> list[str]:
    """What the parts would make and is there."""
    return [MADE[part] for part in parts if part in MADE and (clone / MADE[part]).exists()]


def timed(part: str, clone: Path) -> tuple[float, int]:
    """Seconds that one part took, and its exit status."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "FLYWHEEL_DATA")}
    environment |= {"PYTHON": sys.executable, "UV_FIND_LINKS": os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", "")}
    began = time.monotonic()
    with (clone / f"{part}.log").open("w") as log:
        command = ["sh", "-c", PARTS[part], "sh", str(clone / f"installed-{part}")]
        status = subprocess.run(command, cwd=clone, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode
    return round(time.monotonic() - began, 1), status


def calibrate() -> float:
    """Seconds of the fixed loop, on one thread."""
    left, right = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, 4 * WIDTH)
    with torch_threads(1):
        began = time.monotonic()
        for _ in range(LOOPS):
            left @ right
        sum(number % 7 for number in range(COUNTED))
    return round(time.monotonic() - began, 2)


def with_day(days: list[Record], day: Record) -> list[Record]:
    """All days in their order; parts that were timed again on one day and commit take the place of those before."""
    same = [each for each in days if (each["day"], each["commit"]) == (day["day"], day["commit"])]
    before = same[0] if same else {"loop": [], "seconds": {}}
    merged = day | {"loop": [*before["loop"], *day["loop"]], "seconds": {**before["seconds"], **day["seconds"]}}
    return sorted([*(each for each in days if each not in same), merged], key=lambda each: (each["day"], each["commit"]))


if __name__ == "__main__":
    main()
