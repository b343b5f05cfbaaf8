"""Notices: lines on stderr that are not results, such as a device that could not be used."""

from __future__ import annotations

import sys
from functools import cache

from retrieval.text import printable


def print_notice(line: str) -> None:
    """Print a line on stderr, with control characters escaped."""
    print(printable(line), file=sys.stderr, flush=True)


@cache
def print_once(line: str) -> None:
    """Print a line on stderr, unless this process has printed it before."""
    print_notice(line)
