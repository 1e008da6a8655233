"""Where there is no graph: questions and facts of plain text, and the Expander, by a teacher whose every claim is checked."""
