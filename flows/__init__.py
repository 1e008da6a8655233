"""Prefect flows: one for each stage, one that chains them into the wheel, and the command line over them."""
