"""Inference engines: vLLM in Ray actors, several in a pool, and how weights reach them."""
