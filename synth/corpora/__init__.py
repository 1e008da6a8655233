"""Questions and facts from plain text without a graph, and the Expander. A teacher model writes them; every claim is checked."""
