"""Yields of synthesis by part. Figure names are those of the metrics `count.FIGURE.PART`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flows.results import percent
from synth.corpora.seed_questions import ASKED, CHECKS
from synth.worlds.writing_config import COUNTS as WORLD_COUNTS
from synth.worlds.writing_config import PARTS as WORLD_PARTS
from warehouse import Lake
from warehouse.views import VIEWS

COMMON = ("asked", "completed", "tokens", "seconds", "made", "dropped")
"""Figures common to most parts."""
_KEPT = "kept"
_STYLE = ("style_tried", "style_found", "style_by_chance")


@dataclass(frozen=True, slots=True)
class PartYield:
    run: str
    part: str
    figures: dict[str, float]


def read_yields(lake: Lake) -> tuple[PartYield, ...]:
    """Read the parts with counts, by run and name."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in lake.query(f"SELECT * FROM ({VIEWS['synthesis_yields'].sql}) ORDER BY turn, run, part, figure").to_pylist():
        found.setdefault((row["run"], row["part"]), {})[row["figure"]] = row["value"]
    return tuple(PartYield(*key, figures) for key, figures in found.items() if figures.keys() - {"made", "dropped"})


def survival(figures: Mapping[str, float]) -> list[dict[str, Any]]:
    """Share of seed questions that passed each check, of those that reached it; in the last row, `kept`, of all requested."""
    if ASKED not in figures:
        return []
    counts = [int(figures.get(name, 0)) for name in (ASKED, *CHECKS, _KEPT)]
    rows = [_survived(check, *pair) for check, pair in zip(CHECKS, pairwise(counts), strict=False)]
    return [*rows, _survived(_KEPT, counts[0], counts[-1])]


def worlds_kept(figures: Mapping[str, float]) -> list[dict[str, Any]]:
    """Proposed and kept parts of tool worlds, with their requests and tokens; empty if no world was requested."""
    if "worlds_proposed" not in figures:
        return []
    return [_written(part, {name: int(figures.get(f"{part}_{name}", 0)) for name in WORLD_COUNTS}) for part in ("worlds", *WORLD_PARTS)]


def _written(part: str, counts: Mapping[str, int]) -> dict[str, Any]:
    share = percent(counts["kept"] / counts["proposed"]) if counts["proposed"] else ""
    return {"part": part, **counts, "share": share}


def _survived(check: str, met: int, left: int) -> dict[str, Any]:
    return {"check": check, "met": met, "survived": left, "share": percent(left / met) if met else ""}


def counted_words(figures: dict[str, float]) -> str:
    """Describe all figures except the common ones."""
    if rows := survival(figures):
        return ", ".join(f"{row['check'].replace('_', ' ')} {row['survived']:,} of {row['met']:,}" for row in rows)
    if worlds := worlds_kept(figures):
        return ", ".join(f"{row['kept']:,} of {row['proposed']:,} {row['part']}" for row in worlds)
    words = [f"{name.replace('_', ' ')} {value:,.0f}" for name, value in figures.items() if name not in (*COMMON, *_STYLE)]
    tried = figures.get("style_tried", 0)
    if tried:
        found, chance = (percent(figures.get(name, 0) / tried) for name in _STYLE[1:])
        words.append(f"style finds the taken action in {found}, chance in {chance}")
    return ", ".join(words)
