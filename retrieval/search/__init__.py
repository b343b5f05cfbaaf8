"""Search in a gallery: FAISS indexes, query options, filters and re-ranking."""
