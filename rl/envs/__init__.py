"""Environments: their protocol, and those that come with the house."""
