"""Rollouts: agent loops, and requests that become trajectories."""
