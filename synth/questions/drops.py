"""Why a candidate is no question, or a wish was not met: the kinds of failures that question building leaves."""

from __future__ import annotations

from enum import StrEnum

from synth.formulas.proofs import Proofs


class Drop(StrEnum):
    """Why a candidate is no question, or a wish was not met."""

    NOT_UNIQUE = "not_unique"
    NOT_FOUND = "not_found_by_search"
    REDUNDANT = "redundant_constraint"
    SHORTCUT = "shortcut"
    CONSTANT_EDGE = "constant_edge"
    UNSUPPORTED = "unsupported_fact"
    EASY = "easy"
    SHORTFALL = "shortfall"


def objection(proofs: Proofs, allowed_shortcuts: int, drops_easy: bool) -> tuple[Drop, str] | None:
    """Why a question with these proofs is not kept; None where nothing speaks against it."""
    if proofs.redundant:
        return Drop.REDUNDANT, f"the answers are the same without triple {proofs.redundant[0]}"
    if proofs.constant_edges:
        return Drop.CONSTANT_EDGE, f"triple {proofs.constant_edges[0]} joins two constants"
    if len(proofs.shortcuts) > allowed_shortcuts:
        return Drop.SHORTCUT, f"{len(proofs.shortcuts)} constants stand beside the target"
    if proofs.unsupported:
        return Drop.UNSUPPORTED, f"no document states the fact of triple {proofs.unsupported[0]}"
    if proofs.easy and drops_easy:
        return Drop.EASY, "a search with the question itself brings a document of the answer on top"
    return None
