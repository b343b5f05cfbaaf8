"""Commands: models, galleries, search, checks and the comparison of reports."""
