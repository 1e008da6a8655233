"""The dialects, by which prompts, actions and observations become tokens: tags as special tokens, and chat templates."""
