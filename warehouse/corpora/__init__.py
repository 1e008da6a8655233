"""Readers of facts and documents; each converts foreign data to a `Corpus`."""
