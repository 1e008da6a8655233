"""Synthesis of an iteration: `questions` and `examples` give the batches of each kind of work, and `stage` does them in order."""
