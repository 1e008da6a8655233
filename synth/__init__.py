"""Synthesis, room by room: `worlds` and `graph` below, `formulas` and `questions` on them, then what training reads of them."""
