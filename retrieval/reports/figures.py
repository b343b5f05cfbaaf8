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

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe-Ito: safe for all eyes
GREY = "#777777"
MARKERS = "osD^vPX*"  # told apart without colour, too
MANY = 3000  # marks beyond which they are kept as pixels: a browser draws no more of them smoothly
_DOTS_PER_INCH = 150
_drawing = threading.Lock()  # the settings of a figure are those of the process


def svg(draw: Callable[[Axes], object], width: float, height: float) -> str:
    """What `draw` puts on the axes of a new figure, `width` x `height` inches, as an SVG document."""
    return render(lambda figure: draw(figure.add_subplot()), width, height).decode()


def render(draw: Callable[[Figure], object], width: float, height: float, kind: str = "svg") -> bytes:
    """What `draw` puts on a new figure, `width` x `height` inches, as the bytes of an "svg" or "png" file."""
    import matplotlib as mpl  # slow to import, and only figures need it
    from matplotlib.figure import Figure

    # Fixed ids, no date and no version.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with (
        _drawing,
        mpl.rc_context({"svg.hashsalt": "lookalike", "font.size": 11, "axes.axisbelow": True}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph")  # what the font has no shape for becomes a box
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return buffer.getvalue()


def save(
    draw: Callable[[Figure], object], width: float, height: float, file: Path, *, png: bool = False
) -> list[Path]:
    """Write a figure to `file`, an SVG, and with `png` to a PNG beside it -> the files written.

    Raises:
        InputError: a file that is not called .svg, or a folder that cannot be made.
    """
    files = [named(file, ".svg"), file.with_suffix(".png")][: 2 if png else 1]
    for path in files:
        write(path, render(draw, width, height, path.suffix[1:]))
    return files


def caption(text: str, length: int = 32) -> str:
    """A name that somebody else chose, as it can stand in a figure: on one line, and no formula."""
    line = "".join(c if c.isprintable() else " " for c in text)
    short = line if len(line) <= length else f"{line[: length - 1]}…"
    return short.replace("$", r"\$")


def named(file: Path, suffix: str) -> Path:
    """The file itself; an `InputError` where its name does not end in `suffix`."""
    if file.suffix != suffix:
        raise InputError(f"{file}: what is written is {suffix}; call it {file.with_suffix(suffix).name}")
    return file


def write(path: Path, content: bytes) -> None:
    """Write a file in one step, making its folder if need be; an `InputError` where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
