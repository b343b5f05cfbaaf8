"""Rows of the table: what was measured, and whether it is as it should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "FAILED", "skipped", ""]


@dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
        what: Quantity that was measured.
        measured: Its value, for people.
        verdict: "" where there is no limit to keep.
        numbers: Values, for programs.
    """

    what: str
    measured: str
    verdict: Verdict = ""
    numbers: dict[str, Any] = field(default_factory=dict)


def limited(what: str, value: float, limit: float, unit: str = "", *, note: str = "") -> Row:
    """Return the row of a value that must not be above a limit."""
    measured = f"{value:.3g}{unit} (limit {limit:g}{unit}){note}"
    return Row(what, measured, "ok" if value <= limit else "FAILED", {"value": value, "limit": limit})


def to_text(checks: dict[str, list[Row]], seconds: dict[str, float]) -> str:
    """Return the table for a terminal."""
    rows = [("check", "measured", "", "s")]
    for name, found in checks.items():
        rows.append((name.upper(), "", "", f"{seconds[name]:.0f}"))
        rows += [(f"  {row.what}", row.measured, row.verdict, "") for row in found]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join(map(str.ljust, row, [*widths, 0])).rstrip() for row in rows)
