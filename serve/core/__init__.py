"""Search service: galleries, queries, thread pools and changes, independent of the API and the page."""
