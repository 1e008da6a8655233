"""The form of a question: triples, the algebra over them, their one evaluator, their proofs, and the released WebShaper form."""
