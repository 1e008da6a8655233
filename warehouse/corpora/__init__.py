"""Readers of facts and documents: each turns foreign data into one `Corpus`."""
