"""Synthesis: `graph` and `worlds`, `formulas` and `questions` over them, and the training text made from both."""
