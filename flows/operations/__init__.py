"""Unattended operation: budgets, events, and control of the running process."""
