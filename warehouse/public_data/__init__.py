"""Public data sets by name: catalogue, location, and download at a pinned revision."""
