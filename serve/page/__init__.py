"""The page: tabs over the search service. It has no logic but showing what the service returns."""
