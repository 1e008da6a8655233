"""Rollouts: run agent loops and collect the trajectories of training steps."""
