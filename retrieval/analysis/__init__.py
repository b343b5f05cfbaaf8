"""What can be seen of embeddings: numbers as plain arrays, and figures drawn from them. Needs no torch."""
