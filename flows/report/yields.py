"""What synthesis asked of a teacher and what came of it, part by part, as the report shows it.

The names of figures are those under which the parts count (`count.FIGURE.PART` among the metrics).
"""

from __future__ import annotations

from dataclasses import dataclass

from flows.gains import percent
from warehouse import Lake
from warehouse.views import VIEWS

COMMON = ("asked", "completed", "tokens", "seconds", "made", "dropped")
"""The figures that most parts have."""
_STYLE = ("style_tried", "style_found", "style_by_chance")


@dataclass(frozen=True, slots=True)
class PartYield:
    """What one part of a run of synthesis came to, figure by figure."""

    run: str
    part: str
    figures: dict[str, float]


def read_yields(lake: Lake) -> tuple[PartYield, ...]:
    """The parts that counted anything, in the order of their runs and names."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in lake.query(f"SELECT * FROM ({VIEWS['synthesis_yields'].sql}) ORDER BY turn, run, part, figure").to_pylist():
        found.setdefault((row["run"], row["part"]), {})[row["figure"]] = row["value"]
    return tuple(PartYield(*key, figures) for key, figures in found.items() if figures.keys() - {"made", "dropped"})


def counted_words(figures: dict[str, float]) -> str:
    """What was counted beside the common figures, in words."""
    words = [f"{name.replace('_', ' ')} {value:,.0f}" for name, value in figures.items() if name not in (*COMMON, *_STYLE)]
    tried = figures.get("style_tried", 0)
    if tried:
        found, chance = (percent(figures.get(name, 0) / tried) for name in _STYLE[1:])
        words.append(f"style finds the taken action in {found}, chance in {chance}")
    return ", ".join(words)
