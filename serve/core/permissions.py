"""Permissions of visitors beyond searching.

A module of its own, so that the command line does not load the service for its settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Permissions:
    """Permissions that the server was started with.

    Attributes:
        changes: Whether visitors may add images to the galleries and remove them.
        urls: Whether the server fetches query images by URL.
        sharing: Hours for which the server keeps pictures that visitors share; 0 for none.
    """

    changes: bool = False
    urls: bool = False
    sharing: int = 0
