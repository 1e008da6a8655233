"""Environments: their protocol, and the built-in ones."""
