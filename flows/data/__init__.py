"""Data into a home and out of it: foreign files, facts read out of text, datasets, traces, and what meets an evaluation set taken out."""
