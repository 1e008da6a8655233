"""A corpus of one's own, small enough to be learnt by heart in seconds: thirty towns, each with its river and its mayor."""

from __future__ import annotations

from pathlib import Path

BEGINNINGS, ENDS = ("Oak", "Stone", "Mill", "Amber", "Frost", "Heron"), ("ford", "ton", "wick", "by", "mere")
TOWNS = tuple(f"{beginning}{end}" for beginning in BEGINNINGS for end in ENDS)
RIVERS = tuple(town[::-1].capitalize() for town in TOWNS)
MAYORS = tuple(f"{town[:3]}a {town[2:].capitalize()}son" for town in TOWNS)


def write_corpus(folder: Path) -> None:
    """A page of Markdown for each town, in two folders, and the facts as CSV."""
    facts = ["subject,relation,object"]
    for number, (town, river, mayor) in enumerate(zip(TOWNS, RIVERS, MAYORS, strict=True)):
        place = folder / ("north" if number % 2 else "south")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{town}.md").write_text(f"# {town}\n\n{town}: river {river}, mayor {mayor}.\n")
        facts += [f"{town},river,{river}", f"{town},mayor,{mayor}"]
    (folder / "facts.csv").write_text("\n".join(facts) + "\n")
