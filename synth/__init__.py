"""Synthesis, room by room: `worlds` and `knowledge` below, `formulas` and `questions` on them, then what training reads of them."""
