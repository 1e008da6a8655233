"""Search over a corpus: by words, by vectors, and as a server."""
