"""What visitors may do beyond looking: nothing, unless the server's owner says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Permissions:
    """What a server was started with.

    Attributes:
        changes: images may be added to the galleries and removed from them.
        urls: the server may fetch a picture to search with from an address on the internet.
    """

    changes: bool = False
    urls: bool = False
