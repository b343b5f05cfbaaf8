"""Storage of a gallery: one SQLite file as the commit point, immutable vector segments. All SQL is here."""
