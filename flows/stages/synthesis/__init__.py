"""Synthesis of an iteration: `questions`, `examples` and `actions` yield batches of each kind of work; `stage` runs them in order."""
