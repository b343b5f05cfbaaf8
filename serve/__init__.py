"""Search server over galleries: HTTP API, browser page and Python client. Nothing here imports torch.

Importing the package costs nothing: the web framework is loaded when a server starts.
"""
