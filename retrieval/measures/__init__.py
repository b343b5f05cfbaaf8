"""How good embeddings are: from neighbours to metrics and their intervals."""
