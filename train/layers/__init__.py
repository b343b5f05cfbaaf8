"""Layers: a linear layer behind the model, fitted to stored vectors, with labels or without, and applied."""
