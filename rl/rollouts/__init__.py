"""Rollouts: the agent loops, and the requests that become trajectories."""
