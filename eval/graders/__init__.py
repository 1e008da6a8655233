"""Graders and verifiers: the rule of each kind of answer, and what judges a trajectory by it, by its state or by what it was paid."""
