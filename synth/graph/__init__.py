"""The knowledge graph: facts in columns, names interned, documents that state them."""
