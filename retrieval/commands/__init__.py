"""Commands: models, galleries, search, duplicates and the comparison of reports."""
