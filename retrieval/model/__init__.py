"""Model files: the embedder and the text encoder, how they run, where they come from."""
