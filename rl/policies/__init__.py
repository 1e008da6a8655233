"""Policies: create, load, save and transfer models with their tokenizers; image inputs."""
