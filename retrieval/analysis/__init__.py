"""Analysis of embeddings: numbers as plain arrays, and figures. Needs no torch."""
