"""Readers of trajectories that other systems made: one module a format, and `runs` for what they share."""
