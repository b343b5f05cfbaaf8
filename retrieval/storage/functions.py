"""Functions that conditions use in SQL: LIKE with case folding, and instants of ISO 8601 dates.

They are registered on every connection. Conditions call them only for values that SQLite's own functions
cannot decide, since a call from SQL into Python takes about 0.2 microseconds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

ESCAPE = "\\"  # in the patterns of `fold_pattern`
_STARTS = "\ud800"  # marks where a character starts; a lone surrogate, which stored text cannot have
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def register(db: sqlite3.Connection) -> None:
    """Make the functions available on a connection."""
    db.create_function("like_folded", 2, _like_folded, deterministic=True)
    db.create_function("instant", 1, instant, deterministic=True)
    db.create_function("float_of", 1, float, deterministic=True)


# ---- patterns


def fold_pattern(pattern: str, escape: str | None = None) -> str:
    """Return a pattern of LIKE in lower case as of `str.casefold`, with `ESCAPE` as its escape character.

    Args:
        pattern: Pattern with the wildcards % and _.
        escape: Escape character; `None` for none.

    Raises:
        ValueError: The escape character is not followed by a wildcard or itself.
    """
    parts = []
    letters = iter(pattern)
    for letter in letters:
        literal = letter
        if letter == escape:
            literal = next(letters, "")
            if literal not in ("%", "_", escape):
                raise ValueError(f"{escape!r} must be followed by %, _ or itself")
        elif letter in "%_":
            parts.append(letter)
            continue
        parts += [ESCAPE + c if c in ("%", "_", ESCAPE) else c for c in literal.casefold()]
    return "".join(parts)


def _like_folded(pattern: str, value: object) -> bool | None:
    return None if value is None else matcher(pattern)(str(value))


@lru_cache(64)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches a text with a pattern of `fold_pattern`.

    Literal parts are compared after case folding. An underscore stands for one character of the text as it is
    stored, even if folding replaces it by several: "ß" by "ss".
    """
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    marked = "_" in parts
    literal = f"{_STARTS}?" if marked else ""
    segments = [""]  # regular expressions between the percent signs
    for part in parts:
        if part == "%":
            segments.append("")
        else:
            segments[-1] += f"{_STARTS}[^{_STARTS}]++" if part == "_" else literal + re.escape(part[-1])
    first, *others = segments
    # The first place of a segment is as good as any later one: atomic groups keep the time linear.
    inner = "".join(f"(?>.*?{segment})" for segment in others[:-1])
    match = re.compile(first + inner + "".join(f".*{last}" for last in others[-1:]), re.DOTALL).fullmatch
    if not marked:
        return lambda text: match(text.casefold()) is not None
    return lambda text: match("".join(_STARTS + c.casefold() for c in text)) is not None


# ---- dates


def instant(text: object) -> str | None:
    """Return a date or a date and time of ISO 8601 as "YYYY-MM-DD HH:MM:SS.ffffff" in UTC; `None` for others.

    A date is its midnight; a time without a zone is in UTC. Digits beyond the microsecond are cut off.
    """
    if not isinstance(text, str) or _DATE.fullmatch(text) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # no such day or hour, or beyond the years 1 to 9999
        return None
    return found.replace(tzinfo=None).isoformat(" ", "microseconds")
