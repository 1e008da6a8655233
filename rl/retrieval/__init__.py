"""Search over a corpus: BM25, embeddings, and a retrieval server."""
