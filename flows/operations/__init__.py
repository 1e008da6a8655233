"""Unattended operation: budgets, events, schedules, and requests to the process at work."""
