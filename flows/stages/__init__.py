"""The work of each stage, as plain functions that read and write the lake."""
