"""Question formulas: triples and their algebra, evaluation, proofs, drawings, and the released WebShaper format."""
