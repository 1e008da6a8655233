"""Without a graph: questions and facts from plain text, and the Expander, by a teacher whose claims are all checked."""
