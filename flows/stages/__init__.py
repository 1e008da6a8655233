"""The work of each stage: plain functions that read from the lake and write to it."""
