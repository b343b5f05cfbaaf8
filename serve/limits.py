"""Limits of requests, which the models of the requests and the code that serves them share."""

from __future__ import annotations

MAX_K = 1000  # hits
MAX_VIEWS = 100  # of a hit
MAX_BATCH = 64  # images or queries
MAX_TOGETHER = 16  # images in one query
MAX_TEXTS, MAX_TEXT = 16, 1000  # texts in one query, and characters of each
MAX_GALLERIES = 16  # searched together
MAX_KEY = 4096  # characters
MAX_CONDITION = 4096  # characters
MAX_CURSOR = 2000  # characters
