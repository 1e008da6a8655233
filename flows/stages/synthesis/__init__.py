"""Synthesis of a turn: each module gives the batches of one kind of work, and `work` does them in order."""
