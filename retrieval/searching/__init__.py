"""How a gallery is searched."""
