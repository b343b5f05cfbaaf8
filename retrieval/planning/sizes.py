"""Numbers as people write and read them: counts, bytes, hours."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"([0-9][0-9,_]*\.?[0-9]*(?:e[+]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_POWER = re.compile(r"([0-9]+)\^([0-9]+)")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}


def parse_count(text: str) -> int:
    """Parse a number of images, such as 1e9, 250k, 30M, 1.5B, 10^8 or 1,000,000.

    Raises:
        ValueError: It is not a number, or not a whole one; the message has a hint.
    """
    power = _POWER.fullmatch(text.strip())
    if power and int(power[2]) <= 30:
        return int(int(power[1]) ** int(power[2]))
    match = _NUMBER.fullmatch(text.strip())
    if not match or match[2].lower() not in _COUNTS:
        hint = "give a number of images without a unit" if match else "give a number"
        raise ValueError(f"{text!r} is not a count; {hint}, such as 1e9, 250k, 30M or 1B")
    value = float(match[1].replace(",", "").replace("_", "")) * _COUNTS[match[2].lower()]
    if not math.isfinite(value) or value != round(value):
        raise ValueError(f"{text!r} is not a whole number; give one such as 1e9 or 250k")
    return int(value)


def count_text(count: float) -> str:
    """Return a count as a power of ten, if it is one with many digits, or with separators."""
    exponent = round(math.log10(count)) if count >= 1 else 0
    return f"10^{exponent}" if exponent >= 4 and count == 10**exponent else f"{count:,.0f}"


def bytes_text(size: float) -> str:
    """Return bytes with three digits and a decimal unit: "64 GB", "2.05 TB"."""
    return _with_unit(size, ("B", "kB", "MB", "GB", "TB", "PB", "EB"))


def hours_text(hours: float) -> str:
    """Return hours in the unit that suits them: "4 ms", "3 s", "12 min", "5.2 h", "120 days", "26 years"."""
    seconds = 3600 * hours
    if 0 < seconds < 1:
        return f"{_digits(1000 * seconds)} ms"
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 100), ("days", 86400, 1000)):
        if seconds / size < most:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / (365.25 * 86400))} years"


def rate_text(value: float) -> str:
    """Return a rate or a time with three digits, and thousands as k or M."""
    return _with_unit(value, ("", "k", "M")).replace(" ", "")


def _with_unit(value: float, units: tuple[str, ...]) -> str:
    power = 0
    while power < len(units) - 1 and round(value / 1000**power, 2 - _places(value / 1000**power)) >= 1000:
        power += 1
    return f"{_digits(value / 1000**power)} {units[power]}".strip()


def _places(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0 else 0


def _digits(value: float) -> str:
    """Return a number with three digits at most, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.3g}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value >= 0.01 else f"{value:.1g}" if value else "0"
