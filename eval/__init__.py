"""Verifiers, which provide the ground truth of rewards, and the figures and statistics of suites. Generates no trajectories."""
