"""Benchmark sets of others as tasks: each reader knows one format, and refuses a file that it cannot read whole."""
