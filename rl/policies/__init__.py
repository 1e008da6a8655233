"""Policies: models and their tokenizers, created, loaded, saved and transferred; image inputs."""
