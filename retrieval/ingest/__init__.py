"""How pictures come into a gallery."""
