"""The commands over galleries."""
