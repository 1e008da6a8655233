"""One module a stage of the wheel: plain functions that read from the lake, work, and write to the lake."""
