"""Data synthesis: knowledge graphs, tool worlds, question formulas, questions and training examples."""
