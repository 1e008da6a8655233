"""The dialects: tags as special tokens, and the chat templates of models from elsewhere."""
