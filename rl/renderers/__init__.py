"""Dialects: render prompts, actions and observations as tokens, with tags as special tokens or with chat templates."""
