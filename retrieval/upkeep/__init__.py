"""Gallery maintenance: verification, compaction, near-duplicates."""
