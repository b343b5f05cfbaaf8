"""The map as marks of an SVG, and the script with which people walk on it, for every page that shows it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.analysis.tsne import Map
from retrieval.reports.figures import COLOURS, GREY

_WIDTH = 1000  # of the map, in its own units
_EDGE = 20
# As the markers of `tsne.draw`, around (0, 0).
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

# `walkOn(map, group, tell)`: people go through the marks of a group by the pointer, which picks the nearest,
# or by the arrow keys. `tell(i)` hears at which one they are, -1 for none. Of what it returns, `go` goes to a
# mark, and `anew` is to be called where the marks have become others.
WALK = """
function walkOn(map, group, tell) {
  let places = null, at = -1;
  const marks = () => [...group.children];
  const known = () => places ??= marks().map(
    mark => mark.getAttribute("transform").match(/-?[\\d.]+/g).map(Number));
  function go(i) {
    if (i === at) return;
    const all = marks();
    if (at >= 0) all[at].classList.remove("at");
    at = i;
    if (i >= 0) all[i].classList.add("at");
    tell(i);
  }
  function pointed(event) {
    const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
    const reach = 30 / map.getScreenCTM().a;
    let best = -1, least = reach * reach;
    known().forEach(([x, y], i) => {
      const d = (x - spot.x) ** 2 + (y - spot.y) ** 2;
      if (d < least) { least = d; best = i; }
    });
    go(best);
  }
  function step(dx, dy) {
    if (at < 0) return go(0);
    let best = -1, least = Infinity;
    known().forEach(([x, y], i) => {
      const u = x - places[at][0], v = y - places[at][1], ahead = u * dx + v * dy;
      // Within 45 degrees of the key's direction.
      if (ahead <= 0 || Math.abs(u * dy - v * dx) > ahead) return;
      const d = u * u + v * v;
      if (d < least) { least = d; best = i; }
    });
    if (best >= 0) go(best);
  }
  map.addEventListener("pointermove", pointed);
  map.addEventListener("pointerdown", pointed);
  map.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") go(-1); });
  map.addEventListener("keydown", event => {
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in ways) { event.preventDefault(); step(...ways[event.key]); }
    if (event.key === "Escape") go(-1);
  });
  return { go, anew() { places = null; at = -1; } };
}
"""


@dataclass(frozen=True)
class Marks:
    """A map as parts of a page.

    Attributes:
        marks: a `path` for each point, in their order.
        box: the `viewBox` around them.
        legend: an `li` for each class that has a colour.
        grey: whether there are other classes.
    """

    marks: str
    box: str
    legend: str
    grey: bool


def marks(found: Map, more: Sequence[str] | None = None) -> Marks:
    """A colour and a shape for each class shown, grey for the others; synthetic points are hollow.

    Args:
        found: the map.
        more: attributes for each mark, as HTML.
    """
    embeddings = found.embeddings
    looks = {label: (COLOURS[i % len(COLOURS)], _SHAPES[i]) for i, label in enumerate(found.shown)}
    places, height = _fitted(found.points)
    paths = []
    for (x, y), label, hollow, own in zip(
        places, embeddings.labels, embeddings.synthetic, more or [""] * len(places), strict=True
    ):
        colour, shape = looks.get(label, (GREY, _DISC))
        kind = f"{'m' if label in looks else 'm o'}{' s' if hollow else ''}"
        place = f'transform="translate({x:.1f} {y:.1f})"'
        paths.append(f'<path class="{kind}" style="--c:{colour}" d="{shape}" {place}{own and " "}{own}/>')
    legend = "".join(
        f'<li><svg viewBox="-9 -9 18 18" aria-hidden="true"><path class="m" style="--c:{colour}" '
        f'd="{shape}"/></svg><span>{html.escape(label)}</span></li>'
        for label, (colour, shape) in looks.items()
    )
    others = len(looks) < len(np.unique(embeddings.labels))
    return Marks("\n".join(paths), f"0 0 {_WIDTH} {height:.1f}", legend, others)


def _fitted(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Points moved and scaled, alike in both directions, into a map at most as high as wide, and its height.

    There y points down.
    """
    low, high = points.min(0), points.max(0)
    scale = (_WIDTH - 2 * _EDGE) / max(float((high - low).max()), 1e-12)
    middle = np.array([_WIDTH, (high - low)[1] * scale + 2 * _EDGE]) / 2
    return middle + (points - (low + high) / 2) * scale * np.array([1, -1]), float(2 * middle[1])
