"""Where there is no graph: the Expander, and facts out of plain text, both by a teacher whose every claim is checked."""
