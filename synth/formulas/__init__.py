"""A question's formula: triples and their algebra, the evaluator, proofs, drawings, and the released WebShaper form."""
