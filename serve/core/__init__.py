"""The search service: galleries, queries, work queues and changes, independent of HTTP and of the page."""
