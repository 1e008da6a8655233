"""Prefect flows for the stages and the whole flywheel, and the `flywheel` command line."""
