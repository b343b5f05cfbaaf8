"""What a bridge to another model costs, on images that its map was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.evaluation.products import best_view_values
from retrieval.evaluation.verdict import DECIDING, Verdict, judge
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.ranking import rank
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.metrics.table import METRICS, Evidence
from retrieval.search.groups import class_sizes, whole_products

_NEIGHBOURS = 10


@dataclass(frozen=True)
class BridgeCost:
    """Values of three ways to search a sample, each image for the others.

    Attributes:
        images: Number of queries.
        rows: Metric -> its means for old queries on old vectors, new queries on new ones, and new queries on
            vectors that the map made.
        verdicts: With labels: the new model, and the bridge, against the old model.
        loss: Without labels: 95% interval of the difference in the first ten neighbours that are those of the
            new model, bridge - old model.
    """

    images: int
    rows: dict[str, tuple[float, float, float]]
    verdicts: tuple[Verdict, Verdict] | None
    loss: tuple[float, float] | None

    @property
    def refusal(self) -> str | None:
        """Why the bridge would certainly find less than the old model; `None` if it is not certain."""
        lost = next((verdict for verdict in self.verdicts or () if verdict.loses), None)
        if lost is not None:
            return lost.sentence[:-1]
        if self.loss is not None and self.loss[1] < 0:
            low, high = (100 * value for value in self.loss)
            what = "the bridge finds certainly fewer neighbours of the new model than the old model"
            return f"{what} ({low:.1f} to {high:.1f} percentage points)"
        return None

    @property
    def lines(self) -> list[str]:
        """The table, for people."""
        titles = "old model", "new model", "bridge at once"
        return [
            f"{metric} on {self.images:,} images: "
            + ", ".join(f"{title} {100 * value:.1f}" for title, value in zip(titles, row, strict=True))
            for metric, row in self.rows.items()
        ]


def bridge_cost(
    labels: Sequence[str | None],
    old: np.ndarray,
    new: np.ndarray,
    bridged: np.ndarray,
    products: np.ndarray | None = None,
) -> BridgeCost:
    """Measure a bridge: by labels if two classes have two images, else by the neighbours of the new model.

    With products, other products are the hits, each by its best view, unless the label is the product.

    Args:
        labels: Label of each image; `None` without one.
        old: Vectors of the old model, float32 [n, D].
        new: Vectors of the new one, float32 [n, D'].
        bridged: Vectors that maps made which were not fitted to the image, float32 [n, D'].
        products: Product of each image, int64 [n]; `None` if images are not of products.
    """
    named = np.flatnonzero([label is not None for label in labels])
    given = np.array([labels[row] or "" for row in named.tolist()], str)
    names = np.unique(given, return_inverse=True)[1]
    views = None if products is None else whole_products(products[named], names)
    kept = class_sizes(names, views)[names] > 1
    rows, classes, views = named[kept], names[kept], None if views is None else views[kept]
    ways = (old, old), (new, new), (new, bridged)
    if len(np.unique(classes)) < 2:
        return _by_neighbours(*ways)
    found = [_values(query[rows], gallery[rows], classes, views) for query, gallery in ways]
    rival = "the old one"
    verdicts = (
        judge("the new model", rival, found[1], found[0], classes, products=views),
        judge("the bridge to the new model", rival, found[2], found[0], classes, products=views),
    )
    means = {
        key: (
            float(np.nanmean(found[0][key])),
            float(np.nanmean(found[1][key])),
            float(np.nanmean(found[2][key])),
        )
        for key in found[0]
    }
    return BridgeCost(len(rows), means, verdicts, None)


def _values(
    query: np.ndarray, gallery: np.ndarray, classes: np.ndarray, products: np.ndarray | None
) -> dict[str, np.ndarray]:
    both = None if products is None else (products, products)
    inputs = build_inputs(query, classes, gallery, classes, np.arange(len(classes)), both)
    if products is not None:
        return {key: values for key, values in best_view_values(inputs).items() if key in DECIDING}
    evidence = Evidence(inputs, classes, (1,))
    return {
        key: metric.per_query(evidence).ravel()
        for metric in METRICS
        for key in metric.keys(evidence.ks)
        if key in DECIDING and metric.per_query is not None
    }


def _by_neighbours(*ways: tuple[np.ndarray, np.ndarray]) -> BridgeCost:
    same = np.zeros(len(ways[0][0]), np.int64)  # neighbours are wanted whatever their class
    k = min(_NEIGHBOURS, len(same) - 1)
    own = np.arange(len(same))
    first = [rank(query, same, gallery, same, k=k, own=own).rows for query, gallery in ways]
    shares = [(one[:, :, None] == first[1][:, None, :]).any(2).mean(1) for one in first]
    difference = (shares[2] - shares[0])[:, None]
    ((low, high),) = bootstrap_intervals(difference).tolist()
    means = float(shares[0].mean()), 1.0, float(shares[2].mean())
    return BridgeCost(len(shares[0]), {"neighbours_of_new_model": means}, None, (low, high))
