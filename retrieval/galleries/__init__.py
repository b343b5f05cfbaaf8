"""Galleries, opened for searches: in files of their own, or in a database."""
