"""Bugs planted in packages by mutation, as repository tasks."""
