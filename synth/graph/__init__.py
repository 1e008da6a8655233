"""Knowledge graph: facts in columns, interned names, and the documents that state them."""
