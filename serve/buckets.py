"""Token buckets, one a client: the arithmetic behind every limit by rate."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_CLIENTS = 4096


class Buckets:
    """A bucket of `burst` tokens for every client, refilled with `rate` tokens a second.

    Remembers the clients seen last, and no more than that: one that is forgotten starts with a full bucket.
    The addresses of an IPv6 network of 64 bits count as one client, for that is what one customer is given.

    Args:
        rate: tokens a second.
        burst: what a bucket holds.
        clock: seconds, never going back.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (level, when)

    def take(self, client: str) -> int:
        """Take a token -> 0, or the whole seconds after which there will be one."""
        wait = self.missing(client)
        if not wait:
            key = _key(client)
            level, when = self._levels[key]
            self._levels[key] = level - 1, when
        return wait

    def missing(self, client: str) -> int:
        """The whole seconds until there is a token; 0 where there is one now."""
        key, now = _key(client), self._clock()
        level, when = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + self._rate * (now - when))
        self._levels[key] = level, now  # at the end: the first is the one not seen for longest
        if len(self._levels) > _MOST_CLIENTS:
            self._levels.popitem(last=False)
        return 0 if level >= 1 else math.ceil((1 - level) / self._rate)

    def __len__(self) -> int:
        return len(self._levels)


def _key(client: str) -> str:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client[:64]
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
