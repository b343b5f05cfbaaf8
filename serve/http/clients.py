"""Who asks: a client is told by its address, of which there is one way to write it."""

from __future__ import annotations

import ipaddress

from starlette.types import Scope


def client_of(scope: Scope) -> str:
    """The address of who asks; one of IPv4 looks the same on a socket that takes both kinds."""
    client = scope.get("client")
    return unmapped(str(client[0])) if client else ""


def unmapped(text: str) -> str:
    """`192.0.2.1` of `::ffff:192.0.2.1`; anything else as it is."""
    try:
        mapped = getattr(ipaddress.ip_address(text), "ipv4_mapped", None)
    except ValueError:
        return text
    return str(mapped or text)
