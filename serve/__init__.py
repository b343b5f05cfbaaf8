"""The browser demo over a gallery, and the HTTP endpoints behind it. Nothing here imports torch.

Importing the package costs nothing: the web framework loads when a server starts.
"""
