"""What a run would do, for `--dry-run`: the stages in order, and whether the lake has them already."""

from __future__ import annotations

from flows.config import FlywheelConfig
from flows.home import Home
from warehouse import Lake


def stages(config: FlywheelConfig, turns: int) -> list[str]:
    """The ids of the runs that make up `turns` turns of the wheel, in order."""
    names: list[str] = []
    for turn in range(1, turns + 1):
        names.append(f"t{turn}-synth")
        if turn == 1:
            names.append("t0-init")
        for stage in ("cpt", "sft", "rl"):
            names.append(f"t{turn}-{stage}")
            names += [f"eval-t{turn}-{stage}-{suite}" for suite in config.evaluation.suites]
        names.append(f"t{turn}-gate")
    return names


def plan(home: Home, config: FlywheelConfig, turns: int) -> list[dict[str, str]]:
    """Each stage with `done` or `to do`."""
    done: set[str] = set()
    if (home.root / "lake").is_dir():
        with Lake(home.root, read_only=True) as lake:
            done = {run.id for run in lake.runs("state = 'completed'")}
    return [{"stage": name, "state": "done" if name in done else "to do"} for name in stages(config, turns)]
