"""Engines: vLLM in Ray actors, several behind one face."""
