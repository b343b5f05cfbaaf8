"""Evaluations as numbers: scores, findings, reports, comparisons. `retrieval.reports` renders them."""
