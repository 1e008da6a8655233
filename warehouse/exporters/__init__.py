"""Exports from the lake: tables, datasets with cards, Inspect AI logs."""
