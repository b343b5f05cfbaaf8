"""Figures as SVG and PNG: the same numbers give the same bytes."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.errors import InputError
from retrieval.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe-Ito, colour-blind safe
GREY = "#777777"
MARKERS = "osD^vPX*"  # distinct without colour
RASTERIZE_ABOVE = 3000  # marks; browsers cannot draw more vector marks smoothly
_DOTS_PER_INCH = 150
_lock = threading.Lock()  # Matplotlib's settings are global


def axes_svg(plot: Callable[[Axes], object], width: float, height: float) -> str:
    """Return an SVG document of a figure with a single plot.

    Args:
        plot: Function that draws on the axes.
        width: Width in inches.
        height: Height in inches.
    """
    return render_figure(lambda figure: plot(figure.add_subplot()), width, height).decode()


def render_figure(draw: Callable[[Figure], object], width: float, height: float, kind: str = "svg") -> bytes:
    """Return a figure as the bytes of an image file.

    Args:
        draw: Function that draws on the figure.
        width: Width in inches.
        height: Height in inches.
        kind: "svg" or "png".
    """
    from matplotlib.figure import Figure

    def drawn() -> Figure:
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        return figure

    return figure_bytes(drawn, kind)


def figure_bytes(make: Callable[[], Figure], kind: str = "svg") -> bytes:
    """Return a figure as the bytes of an image file.

    Args:
        make: Function that returns the figure.
        kind: "svg" or "png".
    """
    import matplotlib as mpl  # slow to import, and only figures need it

    # Fixed ids, no date and no version.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with (
        _lock,
        mpl.rc_context({"svg.hashsalt": "lookalike", "font.size": 11, "axes.axisbelow": True}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph")  # characters that the font lacks become a box
        figure = make()
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


def save_figure(
    draw: Callable[[Figure], object], width: float, height: float, file: Path, *, png: bool = False
) -> list[Path]:
    """Write a figure as SVG, and optionally as PNG beside it; return the files written.

    Args:
        draw: Function that draws on the figure.
        width: Width in inches.
        height: Height in inches.
        file: SVG file to write.
        png: Whether to write a PNG file too.

    Raises:
        InputError: The file is not called .svg, or its folder cannot be created.
    """
    files = [check_suffix(file, ".svg"), file.with_suffix(".png")][: 2 if png else 1]
    for path in files:
        write_file(path, render_figure(draw, width, height, path.suffix[1:]))
    return files


def caption(text: str, length: int = 32) -> str:
    """Return a user's text for a figure: shortened, on one line, without mathematical markup."""
    line = "".join(c if c.isprintable() else " " for c in text)
    short = line if len(line) <= length else f"{line[: length - 1]}…"
    return short.replace("$", r"\$")


def check_suffix(file: Path, suffix: str) -> Path:
    """Return the file; raise `InputError` if its name does not end in `suffix`."""
    if file.suffix != suffix:
        raise InputError(f"{file}: the format is {suffix}; call it {file.with_suffix(suffix).name}")
    return file


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
