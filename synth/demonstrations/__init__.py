"""Trajectories to imitate: the oracle's, clean or corrupted on purpose, the policy's own successes, and stored runs."""
