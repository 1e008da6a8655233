"""Scorers for the environment `judge`."""
