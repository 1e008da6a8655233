"""Public data sets by name: what there is, where it lies, and how it comes here from its source at a pinned revision."""
