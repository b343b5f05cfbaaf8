"""Gallery maintenance: verify, compact, near-duplicates, statistics."""
