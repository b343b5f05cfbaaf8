"""Gallery maintenance: verify, compact, export and import, near-duplicates, statistics."""
