"""A process that adds trajectories to a lake: `writer_process.py HOME NAME BATCHES ROWS`; every second batch is shared by all."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from warehouse import Lake, Outcome, StopReason, Trajectory, Turn


def trajectory(id: str) -> Trajectory:
    turn = Turn(0, (1, 2), (-0.5, -0.1), "a", "answer", "a", (), "", None, "ok", 0.1, 0)
    started = datetime(2026, 1, 1, tzinfo=UTC)
    return Trajectory(id, "t", "p", "rl", 2, (1,), (turn,), StopReason.ANSWERED, Outcome.SUCCESS, 1.0, 1, started, 0.1)


def main(home: str, name: str, batches: str, rows: str) -> None:
    with Lake(Path(home)) as lake:
        for batch in range(int(batches)):
            owner = "shared" if batch % 2 else name
            lake.add(trajectory(f"{owner}-{batch}-{row}") for row in range(int(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
