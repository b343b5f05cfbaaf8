"""Counts, bytes and hours as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.planning.sizes import bytes_text, count_text, hours_text, parse_count, rate_text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1e9", 10**9),
        ("1.5e3", 1500),
        ("250k", 250_000),
        ("30M", 30_000_000),
        ("1B", 10**9),
        ("1G", 10**9),
        ("2 t", 2 * 10**12),
        ("10^8", 10**8),
        ("1,000,000", 10**6),
        ("1_000", 1000),
        ("7", 7),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@given(st.integers(0, 10**12))
def test_a_whole_number_is_itself(count: int) -> None:
    assert parse_count(str(count)) == parse_count(f"{count:,}") == count


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("64GB", "without a unit"),
        ("1e9 images", "without a unit"),
        ("many", "give a number, such as 1e9"),
        ("-5", "give a number, such as 1e9"),
        ("1.5", "not a whole number"),
        ("", "give a number, such as 1e9"),
        ("1e999", "not a whole number"),
    ],
)
def test_what_is_no_count(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_count(text)


def test_texts() -> None:
    assert [bytes_text(size) for size in (0, 512, 2048, 64e9, 2.05e12, 999_999, 1e21)] == [
        "0 B",
        "512 B",
        "2.05 kB",
        "64 GB",
        "2.05 TB",
        "1 MB",
        "1,000 EB",
    ]
    assert [hours_text(hours) for hours in (1e-6, 0.01, 1, 99, 100, 24 * 1000, 0)] == [
        "3.6 ms",
        "36 s",
        "60 min",
        "99 h",
        "4.17 days",
        "2.74 years",
        "0 s",
    ]
    assert [count_text(count) for count in (7, 1000, 10_000, 10**9, 1_234_567)] == [
        "7",
        "1,000",
        "10^4",
        "10^9",
        "1,234,567",
    ]
    assert [rate_text(value) for value in (0.042, 12.34, 999.6, 2857.6)] == ["0.04", "12.3", "1k", "2.86k"]


@given(st.floats(1e-3, 1e17))
def test_bytes_have_three_digits(size: float) -> None:
    """The text is the number up to rounding, and short."""
    text, unit = bytes_text(size).split()
    factor = 1000 ** ("B", "kB", "MB", "GB", "TB", "PB", "EB").index(unit)
    assert abs(float(text.replace(",", "")) * factor - size) <= max(0.006 * size, 0.0051)
    assert len(text) <= 5
