"""Verifiers, ground truth of rewards, figures of suites and their statistics. Scores what others made; makes no trajectory."""
