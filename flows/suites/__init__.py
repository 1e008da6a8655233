"""Evaluation suites: definition in TOML, drawing of tasks, evaluation, checks and reports."""
