"""Figures as SVG: the same numbers give the same file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe-Ito: safe for all eyes


def svg(draw: Callable[[Axes], object], width: float, height: float) -> str:
    """What `draw` puts on the axes of a new figure, `width` x `height` inches, as an SVG document."""
    import matplotlib as mpl  # slow to import, and only figures need it
    from matplotlib.figure import Figure

    # Fixed ids and no date.
    with mpl.rc_context({"svg.hashsalt": "lookalike", "font.size": 11}):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
