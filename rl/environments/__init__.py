"""Environments that come with the house."""
