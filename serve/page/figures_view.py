"""The figures of a gallery's embeddings as HTML: the triplet diagram, and the map to walk on."""

from __future__ import annotations

from functools import partial
from html import escape

import numpy as np

from retrieval.analysis import triplets, tsne
from retrieval.analysis.tsne_marks import marks
from retrieval.reports.figures import render_figure
from retrieval.reports.pages import figure_fragment
from serve.core.service import Facts
from serve.page.views import note, picture

TITLES = {"triplets": "Triplet diagram", "map": "Map (t-SNE)"}


def panel(chosen: str, content: str) -> str:
    """The buttons that open the figures, and the one that is open; empty: none."""
    buttons = "".join(
        f"<button type='button' data-figure='{name}' aria-pressed='{'true' if name == chosen else 'false'}'>"
        f"{title}</button>"
        for name, title in TITLES.items()
    )
    return f"<p class='actions'><span>Embeddings as they are:</span>{buttons}</p>{content}"


def triplet_diagram(found: triplets.Triplets, total: int) -> str:
    """Each labelled image by its nearest of the same and of another class."""
    count = len(found.positive)
    sampled = count + found.left_out < total
    of = f", a random sample of {total:,}, compared among themselves" if sampled else ""
    alone = f" {found.left_out:,} are alone in their class and left out." if found.left_out else ""
    draw = partial(triplets.draw, {"labelled": [found]})
    label = f"Triplet diagram: of {100 * found.hard_share:.1f}% of the images another class is nearer"
    words = note(
        f"{count:,} labelled images{of}: to the right those near one of their class, upwards those near "
        f"another class. Above the diagonal another class is nearer, so that Recall@1 fails.{alone}"
    )
    return words + figure_fragment(render_figure(draw, *triplets.size(1)).decode(), label)


def map_of(found: tsne.Map, ids: list[int], total: int, facts: Facts) -> str:
    """The map with a place for the picture that is pointed at."""
    labels = found.embeddings.labels
    numbers = np.unique(labels, return_inverse=True)[1].tolist()
    own = [
        f'data-item="{item}" data-class="{number}" data-label="{escape(label)}"'
        for item, number, label in zip(ids, numbers, labels.tolist(), strict=True)
    ]
    drawn = marks(found, own)
    sampled = f" of {total:,}, drawn at random" if total > len(ids) else ""
    grey = "<p class='quiet'>Grey: all other classes.</p>" if drawn.grey else ""
    return f"""
<p>t-SNE of {len(ids):,} images{sampled}: neighbours have similar embeddings; axes and large distances mean
nothing. Point at it, or walk on it with the arrow keys; a click or Enter searches with the picture.</p>
<div class="plane">
<svg class="map" viewBox="{drawn.box}" tabindex="0" role="application" aria-describedby="pointed"
  aria-label="Map of embeddings. Arrow keys go from picture to picture, Enter searches, Escape lets go."
  ><g>{drawn.marks}</g></svg>
<div class="beside"><div class="card">
<p id="pointed" aria-live="polite">Nothing is pointed at.</p>
<div hidden>{picture(facts, ids[0], "")}
<button type="button" data-search="{ids[0]}">Search with it</button></div></div>
<ul class="legend">{drawn.legend}</ul>{grey}</div></div>
"""
