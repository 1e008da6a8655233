"""Tool worlds: a state, tools as functions over it, and tasks that ask for another state (AutoForge, arXiv 2512.22857)."""
