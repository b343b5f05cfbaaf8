"""The page: one HTML document for each gallery, a client of the HTTP API in the browser."""
