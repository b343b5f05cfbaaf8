"""The page of the gallery's growth is the one that its committed numbers give."""

from __future__ import annotations

import json

from benchmarks.gallery_scale import COMMITTED, ON_DISK, PAGE, page


def test_page_is_written_from_the_committed_numbers() -> None:
    assert PAGE.read_text() == page(json.loads(COMMITTED.read_text()), json.loads(ON_DISK.read_text()))


def test_extrapolation_follows_the_last_two_sizes() -> None:
    def row(seconds: float) -> dict[str, object]:
        return {
            "seconds": seconds,
            "cpu_seconds": seconds / 2,
            "peak_bytes": 1e8,
            "peak_anonymous_bytes": 5e7,
            "commit": "c",
        }

    results = {
        "machine": "m",
        "threads": 1,
        "kind": "k",
        "sizes": {"1000": {"compact": row(1)}, "10000": {"compact": row(4)}},
    }
    text = page(results, json.loads(ON_DISK.read_text()))
    assert "| compact | 1 | 4 | 16 |" in text
    assert "| compact | 100 | 100 | 100 |" in text
    assert "| 10^3 | 10^4 | 10^5, extrapolated |" in text
