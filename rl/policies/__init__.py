"""Policies: models and their tokenizers, made, loaded and saved; what they make of images."""
