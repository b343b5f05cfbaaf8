"""The t-SNE map as a self-contained HTML page with thumbnails."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.tsne import TsneMap
from retrieval.reports.figures import COLOURS, GREY
from retrieval.reports.pages import environment
from retrieval.reports.thumbnails import thumbnails

if TYPE_CHECKING:
    from markupsafe import Markup

_HERE = Path(__file__).parent
_WIDTH = 1000  # of the map, in its own units
_EDGE = 20
# Shapes around (0, 0), in the order of `retrieval.reports.figures.MARKERS`.
_DISC = "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z"
_SHAPES = (
    _DISC,
    "M-5.5-5.5h11v11h-11z",
    "M0-7.5 7.5 0 0 7.5-7.5 0z",
    "M0-7 7 5.5H-7z",
    "M0 7-7-5.5H7z",
    "M-2.3-7h4.6v4.7H7v4.6H2.3V7h-4.6V2.3H-7v-4.6h4.7z",
    "M-3.5-6.5 0-3l3.5-3.5 3 3L3 0l3.5 3.5-3 3L0 3l-3.5 3.5-3-3L-3 0l-3.5-3.5z",
    "M0-8l1.9 5.4 5.7.1-4.6 3.5 1.7 5.5L0 3.2l-4.7 3.3 1.7-5.5-4.6-3.5 5.7-.1z",
)


@dataclass(frozen=True)
class MapMarks:
    """A map as parts of a page.

    Attributes:
        marks: A `path` for each point, in their order. Classes: "m" for a mark, "o" for another class than
            those with a colour, "s" for a synthetic point; the custom property `--c` has the colour.
        box: The `viewBox` around them.
        legend: An `li` for each class that has a colour.
        grey: Whether there are other classes.
    """

    marks: Markup
    box: str
    legend: Markup
    grey: bool


def _map_marks(found: TsneMap) -> MapMarks:
    """Return a map with a colour and a shape for each class shown; other classes are grey."""
    from markupsafe import Markup

    embeddings = found.embeddings
    styles = {label: (COLOURS[i % len(COLOURS)], _SHAPES[i]) for i, label in enumerate(found.shown)}
    positions, height = _fit(found.points)
    marks = []
    for (x, y), label, synthetic in zip(
        positions.tolist(), embeddings.labels.tolist(), embeddings.synthetic.tolist(), strict=True
    ):
        colour, shape = styles.get(label, (GREY, _DISC))
        kind = f"{'m' if label in styles else 'm o'}{' s' if synthetic else ''}"
        position = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
        marks.append({"kind": kind, "colour": colour, "shape": shape, **position})
    legend = [(label, *style) for label, style in styles.items()]
    templates = environment(_HERE)
    return MapMarks(
        marks=Markup(templates.get_template("marks.html").render(marks=marks)),
        box=f"0 0 {_WIDTH} {height:.1f}",
        legend=Markup(templates.get_template("legend.html").render(legend=legend)),
        grey=len(styles) < len(np.unique(embeddings.labels)),
    )


def map_page(found: TsneMap) -> str:
    """Return a self-contained HTML page: the map, a thumbnail of the selected point, a list of classes."""
    embeddings = found.embeddings
    classes, numbers = np.unique(embeddings.labels, return_inverse=True)
    names, images = _names_and_thumbnails(embeddings)
    data = {
        "names": names,
        "images": images,
        "classes": classes.tolist(),
        "labels": numbers.tolist(),
        "synthetic": embeddings.synthetic.tolist(),
    }
    template = environment(_HERE).get_template("map.html")
    return template.render(map=found, drawn=_map_marks(found), data=data)


def _names_and_thumbnails(embeddings: Embeddings) -> tuple[list[str], list[str]]:
    """Return path, relative to the common folder, and data URI of each row; empty if it has no image."""
    if embeddings.paths is None:
        return [""] * len(embeddings), [""] * len(embeddings)
    paths = [Path(path).absolute() if path else None for path in embeddings.paths]
    known = [path for path in paths if path]
    root = os.path.commonpath([path.parent for path in known]) if known else ""
    images = thumbnails(known)
    names = [os.path.relpath(path, root) if path else "" for path in paths]
    return names, [images[path] if path else "" for path in paths]


def _fit(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Scale points into a map at most as high as wide, keeping the aspect ratio; y points down.

    Returns:
        Positions, float64 [n, 2], and the height of the map.
    """
    low, high = points.min(0), points.max(0)
    scale = (_WIDTH - 2 * _EDGE) / max(float((high - low).max()), 1e-12)
    middle = np.array([_WIDTH, (high - low)[1] * scale + 2 * _EDGE]) / 2
    return middle + (points - (low + high) / 2) * scale * np.array([1, -1]), float(2 * middle[1])
