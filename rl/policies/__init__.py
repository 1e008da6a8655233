"""Policies: made, loaded, tokenized, and compared with what engines sampled."""
