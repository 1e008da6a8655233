"""Evaluation suites: membership and validation of their tasks, a policy's figures on them, and checks of a suite's quality."""
