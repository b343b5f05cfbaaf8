"""What people read of an evaluation, a comparison or a search."""
