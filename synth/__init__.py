"""Synthesis: generated worlds, the knowledge graph and its projections, questions, the oracle teacher, FAS and HAS examples."""
