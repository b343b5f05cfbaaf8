"""Half-whitening, which needs no labels: choice of power and dimension, and its measured gain.

A candidate rotates vectors to their principal components, divides these by a power of their standard
deviation and keeps the first ones. It is chosen by augmented copies of images, which should find their
originals, or by labels where there are some. In both cases it is chosen on one half of the queries and
measured on the other, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from retrieval import metrics
from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.evaluation.products import best_view_values
from retrieval.metrics import per_query
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.model.layer import Layer
from retrieval.search.groups import class_sizes, whole_products
from retrieval.text import pluralize
from train.layers.components import FEW, fit_starts
from train.layers.copies import embed_copies
from train.layers.flow import Fit, Images
from train.layers.lesson import left_out_line

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
COPY_POWERS = (0.0, 0.25)
"""Powers to choose from by copies, which overrate high ones: these tell images apart, not classes."""
DIMS = (512, 256, 128)  # and that of the vectors
MOST_QUERIES = 1000
FEWEST_QUERIES = 20
FEWEST_CLASSES = 8  # an interval over fewer would be too narrow
NO_CLASS = -1
_COPIES = 500


@dataclass(frozen=True)
class Whitening:
    """A candidate: power of the standard deviations, and number of components."""

    power: float
    dim: int


@dataclass(frozen=True)
class WhiteningGain:
    """Choice of a candidate, and what it gains on queries that it was not chosen by.

    Attributes:
        chosen: Candidate chosen by all queries.
        metric: Name of the metric: "MRR" of the originals of copies, or "MAP@R" or "MAP@R of products" of
            labels.
        queries: Number of queries.
        before, after: Mean with the present vectors, and with the candidate chosen by the other half.
        low, high: 95% interval of the difference, by the bootstrap: over images by copies (other images like
            these), over classes by labels (other classes like these).
    """

    chosen: Whitening
    metric: str
    queries: int
    before: float
    after: float
    low: float
    high: float

    @property
    def is_proven(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0


def fit_whitening(
    images: Images, *, by: str = "auto", power: float | None = None, dim: int | None = None
) -> Fit:
    """Return the half-whitening that serves images best.

    Args:
        images: Images with their vectors.
        by: What to choose and measure by: "labels", "copies", or "auto" for labels, if there are enough of
            them, else copies.
        power: The only power to try; `None` for `POWERS`.
        dim: The only dimension to try; `None` for that of the vectors and `DIMS`.

    Raises:
        InputError: There are too few images, or too few labels for "labels".
    """
    count, width = images.vectors.shape if len(images.vectors) else (0, 0)
    if count < FEWEST_QUERIES:
        few = pluralize(count, "image")
        raise InputError(
            f"{images.target}: {few}, of which no gain can be measured; add images, {FEWEST_QUERIES} at least"
        )
    found = candidates(images.vectors, POWERS if power is None else (power,), DIMS if dim is None else (dim,))
    if dim is not None:
        found = [one for one in found if one[0].dim == min(dim, width)]
        if not found:
            few = f"{count} vectors of {width} dimensions"
            raise InputError(f"--dim {dim}: {few} are too few to leave out dimensions; leave it out")
    gain = _measure(images, by, found)
    measured = asdict(gain)
    note = {name: value for name, value in measured.items() if name != "chosen"}
    return Fit(
        command="adapt",
        done="adapted",
        facts={
            "target": str(images.target),
            "images": count,
            **measured,
            "accepted": gain.is_proven,
        },
        lines=[_line(gain)],
        refusal=None if gain.is_proven else "no gain is certain",
        note={"images": count, "power": gain.chosen.power, **note},
        counts={"images": count},
        learn=lambda: next(layer for one, layer in found if one == gain.chosen),
    )


def _measure(images: Images, by: str, found: Sequence[tuple[Whitening, Layer]]) -> WhiteningGain:
    labelled = np.array([label is not None for label in images.labels])
    if by == "labels" or (by == "auto" and labelled.any()):
        learned = images.learned & labelled
        if learned.any():
            print_status(left_out_line(int(learned.sum())))
        try:
            classes = np.unique([label or "" for label in images.labels], return_inverse=True)[1]
            classes[~labelled] = NO_CLASS
            new, products = np.flatnonzero(~learned), images.products
            products = None if products is None else whole_products(products[new], classes[new])
            return gain_by_labels(images.vectors[new], classes[new], found, products=products)
        except InputError as error:
            if by == "labels":
                raise
            print_status(f"{error}; augmented copies are used in their place")
    moderate = [one for one in found if one[0].power in COPY_POWERS]
    copies, originals = embed_copies(images.embedder, images.paths, _COPIES, show_progress=True)
    return gain_by_copies(images.vectors, copies, originals, moderate or found)


def _line(gain: WhiteningGain) -> str:
    what = "copies find their originals" if gain.metric == "MRR" else "images find those of their label"
    change = 100 * (gain.after - gain.before)
    return (
        f"{what}: {gain.metric} {100 * gain.before:.1f} -> {100 * gain.after:.1f}, {change:+.1f} "
        f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f}; {gain.queries} queries), by power "
        f"{gain.chosen.power:g} and {gain.chosen.dim} dimensions"
    )


def candidates(
    vectors: np.ndarray, powers: Sequence[float] = POWERS, dims: Sequence[int] = DIMS
) -> list[tuple[Whitening, Layer]]:
    """Return the candidates that can be fitted to vectors, float32 [n, D], with their layers.

    With fewer than two vectors for each dimension, no dimension is left out.
    """
    n, width = vectors.shape
    kept = [width, *(dim for dim in dims if dim < width and n >= FEW * width)]
    starts = fit_starts(vectors, powers, width)
    return [
        (Whitening(power, dim), Layer(start.layer.weight[:dim], start.layer.mean))
        for power, start in zip(powers, starts, strict=True)
        for dim in kept
    ]


def gain_by_copies(
    vectors: np.ndarray,
    copies: np.ndarray,
    originals: np.ndarray,
    found: Sequence[tuple[Whitening, Layer]],
    seed: int = 0,
) -> WhiteningGain:
    """Choose the candidate with which copies find their originals best: mean reciprocal rank (MRR).

    Args:
        vectors: Unit vectors of all images, float32 [n, D].
        copies: Unit vectors of augmented copies, float32 [q, D].
        originals: Row of the original of each, int64 [q].
        found: Candidates.
        seed: Seed of the division into halves.

    Raises:
        InputError: There are too few copies.
    """
    before = _reciprocal_ranks(vectors, copies, originals)
    after = [_reciprocal_ranks(layer(vectors), layer(copies), originals) for _, layer in found]
    values = np.stack([before, *after])
    return _choose("MRR", values, None, [one for one, _ in found], seed)


def gain_by_labels(
    vectors: np.ndarray,
    classes: np.ndarray,
    found: Sequence[tuple[Whitening, Layer]],
    seed: int = 0,
    products: np.ndarray | None = None,
) -> WhiteningGain:
    """Choose the candidate with the best MAP@R of labelled images among all, divided into halves by class.

    Args:
        vectors: Unit vectors of all images, float32 [n, D].
        classes: Class of each, int64 [n]; `NO_CLASS` without a label, which counts as wrong.
        found: Candidates, fitted without the labels.
        seed: Seed of queries and halves.
        products: Product of each image, int64 [n], whose other views a query does not find, and which are the
            hits, by their best views; `None` for images.

    Raises:
        InputError: There are too few images or classes with two images, or two products.
    """
    _, numbers, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    rows = np.flatnonzero((class_sizes(numbers, products)[numbers] > 1) & (classes != NO_CLASS))
    if len(np.unique(numbers[rows])) < FEWEST_CLASSES:
        what = "images" if products is None else "products"
        raise InputError(f"labels: fewer than {FEWEST_CLASSES} classes have two {what} or more")
    random = np.random.default_rng([seed, 2])
    queries = np.sort(random.permutation(rows)[:MOST_QUERIES])
    most = min(int(sizes[numbers[rows]].max()), len(vectors) - 1)

    def precision(moved: np.ndarray) -> np.ndarray:
        if products is not None:
            of_each = products[queries], products
            inputs = build_inputs(moved[queries], numbers[queries], moved, numbers, queries, of_each)
            return best_view_values(inputs)["map_at_r"]
        ranking = metrics.rank(moved[queries], numbers[queries], moved, numbers, k=most, own=queries)
        return per_query.map_at_r(ranking)

    values = np.stack([precision(vectors), *(precision(layer(vectors)) for _, layer in found)])
    metric = "MAP@R" if products is None else "MAP@R of products"
    return _choose(metric, values, numbers[queries], [one for one, _ in found], seed)


def _reciprocal_ranks(vectors: np.ndarray, copies: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """Return 1 / rank of the original of each copy among all vectors, float64 [q]."""
    own = np.einsum("qd,qd->q", copies, vectors[originals])
    closer = (copies @ vectors.T > own[:, None] + 1e-6).sum(1)
    ranks: np.ndarray = 1 / (1 + closer)
    return ranks


def _choose(
    metric: str, values: np.ndarray, classes: np.ndarray | None, found: Sequence[Whitening], seed: int
) -> WhiteningGain:
    """Choose a candidate and measure the choice.

    Args:
        metric: Name of the metric.
        values: Metric of the queries with the present vectors and with each candidate, [1 + candidates, q].
        classes: Class of each query, int [q]; a class is in one half. `None` to divide the queries.
        found: Candidates.
        seed: Seed of the division into halves.
    """
    if values.shape[1] < FEWEST_QUERIES:
        raise InputError(f"only {values.shape[1]} images can be searched with; {FEWEST_QUERIES} are needed")
    units = np.arange(values.shape[1]) if classes is None else np.unique(classes, return_inverse=True)[1]
    halves = (np.random.default_rng([seed, 3]).permutation(units.max() + 1) % 2).astype(bool)[units]
    best = [int(values[1:, halves == half].mean(1).argmax()) for half in (False, True)]
    chosen = np.where(halves, best[0], best[1])  # each by the other half
    after = values[1 + chosen, np.arange(len(chosen))]
    ((low, high),) = bootstrap_intervals((after - values[0])[:, None], classes).tolist()
    return WhiteningGain(
        found[int(values[1:].mean(1).argmax())],
        metric,
        len(units),
        float(values[0].mean()),
        float(after.mean()),
        low,
        high,
    )
