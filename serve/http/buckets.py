"""Token buckets, one a client: the arithmetic behind every limit by rate."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import mmap
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve.http.clients import unmapped

_SECRET = 16  # bytes at the beginning, without which nobody knows who shares a row with whom
_SLOT = struct.Struct("=8sdd")  # who, level, when
_ROWS, _SLOTS_OF_ROW = 64, 64
_ROW = _SLOTS_OF_ROW * _SLOT.size
_NOBODY = bytes(8)


class Buckets:
    """A bucket of `burst` tokens for every client, refilled with `rate` tokens a second.

    Remembers the clients seen last, about 4096 of them: one that is forgotten starts with a full bucket.
    The addresses of an IPv6 network of 64 bits count as one client, for that is what one customer is given.

    Several processes may count in the same file. They take no turns: two that look at a bucket in the same
    instant may both be given its last token, which is no more than such a limit can promise anyway.

    Args:
        rate: tokens a second.
        burst: what a bucket holds.
        clock: seconds, never going back, the same in all processes.
        file: made by `share`, where several processes count together.
    """

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic, file: Path | None = None
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._memory = memoryview(bytearray(_fresh()) if file is None else _mapped(file))
        self._secret = bytes(self._memory[:_SECRET])

    def take(self, client: str) -> int:
        """Take a token -> 0, or the whole seconds after which there will be one."""
        return self._look(client, 1)

    def missing(self, client: str) -> int:
        """The whole seconds until there is a token; 0 where there is one now."""
        return self._look(client, 0)

    def __len__(self) -> int:
        """The clients it remembers."""
        return sum(who != _NOBODY for who, _, _ in _SLOT.iter_unpack(self._memory[_SECRET:]))

    def _look(self, client: str, tokens: int) -> int:
        who = hashlib.blake2b(_key(client).encode(), digest_size=8, key=self._secret).digest()
        row = _SECRET + who[0] % _ROWS * _ROW
        slots = list(_SLOT.iter_unpack(self._memory[row : row + _ROW]))
        now = self._clock()
        slot = next((number for number, (whose, _, _) in enumerate(slots) if whose == who), None)
        if slot is None:  # in place of nobody, or of the one not seen for longest
            slot = min(
                range(_SLOTS_OF_ROW), key=lambda number: (slots[number][0] != _NOBODY, slots[number][2])
            )
            level = self._burst
        else:
            _, level, when = slots[slot]
            level = min(self._burst, level + self._rate * (now - when))
        enough = level >= 1
        start = row + slot * _SLOT.size
        self._memory[start : start + _SLOT.size] = _SLOT.pack(who, level - tokens * enough, now)
        return 0 if enough else math.ceil((1 - level) / self._rate)


@dataclass(frozen=True)
class Tallies:
    """The files that the processes of a server count in together; one that is alone needs none.

    Attributes:
        requests: of each client.
        tries: of each client to sign in that were wrong.
    """

    requests: Path | None = None
    tries: Path | None = None


def share(folder: Path) -> Tallies:
    """New files in a folder that nobody else can look into."""
    tallies = Tallies(folder / "requests", folder / "tries")
    for file in (tallies.requests, tallies.tries):
        assert file is not None
        file.write_bytes(_fresh())
    return tallies


def _fresh() -> bytes:
    return secrets.token_bytes(_SECRET) + bytes(_ROWS * _ROW)


def _mapped(file: Path) -> mmap.mmap:
    with open(file, "r+b") as opened:
        return mmap.mmap(opened.fileno(), 0)


def _key(client: str) -> str:
    try:
        address = ipaddress.ip_address(unmapped(client).partition("%")[0])
    except ValueError:
        return client[:64]
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
