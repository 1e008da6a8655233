"""Trajectories that synthesis makes or chooses: the oracle's, clean or corrupted on purpose, and the policy's own successes."""
