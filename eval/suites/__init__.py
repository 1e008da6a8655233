"""Evaluation suites: their tasks and the proof of these, the figures of a policy on them, and whether a suite is a good one."""
