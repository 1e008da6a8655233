"""Readers of other systems' trajectories, one module per format; shared code is in `runs`."""
