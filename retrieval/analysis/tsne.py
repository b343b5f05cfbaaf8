"""t-SNE maps of embeddings (Symm fig. 8; LoOp supplement, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError, did_you_mean
from retrieval.machine import lazy_faiss as faiss
from retrieval.progress import Progress
from retrieval.reports.figures import COLOURS, GREY, MARKERS, RASTERIZE_ABOVE, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 8  # classes with a colour; more cannot be distinguished
_FEWEST = 4
_EXACT = 20_000  # points; for more, approximate neighbours and repulsion are faster
_CELLS, _PROBED = 512, 32  # of the index of more points: over 99 % of the neighbours of real images
_ITERATIONS = (250, 500)  # with exaggerated attraction, and without: van der Maaten's defaults
_REPORTED = 25  # iterations between two reports of progress
_EQUAL = 1e-6  # cosines of unit vectors in float32 differ by so much from rounding alone


@dataclass(frozen=True, eq=False)
class TsneMap:
    """Points of a map with their embeddings.

    Attributes:
        points: Positions, float64 [n, 2]; only neighbourhoods have a meaning, not axes and distances.
        embeddings: The n embeddings.
        total: Number of embeddings that they are a sample of.
        perplexity: Rough number of neighbours that determined the position of each point.
        shown: Classes with a colour and shape of their own, at most 8.
        nearest: For each point the one with the most similar embedding, int64 [n]; nearly always, in a map of
            more than 20,000 points.
    """

    points: np.ndarray
    embeddings: Embeddings
    total: int
    perplexity: float
    shown: tuple[str, ...]
    nearest: np.ndarray

    @property
    def title(self) -> str:
        """Title of the map, in one line."""
        of = "" if len(self.points) == self.total else f" (a random sample of {self.total:,})"
        classes = len(np.unique(self.embeddings.labels))
        return f"t-SNE of {_counts(self)}{of} of {classes:,} classes: neighbours have similar embeddings"

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        paths = self.embeddings.paths
        return {
            "name": self.embeddings.name,
            "total": self.total,
            "perplexity": self.perplexity,
            "points": self.points.tolist(),
            "labels": self.embeddings.labels.tolist(),
            "synthetic": self.embeddings.synthetic.tolist(),
            "paths": None if paths is None else paths.tolist(),
        }


def tsne_map(
    embeddings: Embeddings,
    *,
    limit: int = 2000,
    seed: int = 0,
    perplexity: float | None = None,
    shown: Sequence[str] = (),
    show_progress: bool = True,
) -> TsneMap:
    """Compute a t-SNE map (van der Maaten and Hinton 2008) with openTSNE.

    It starts from the first two principal components. The neighbours come from FAISS: exact ones of up to
    20,000 points. Above that, repulsion is interpolated on a grid (Linderman et al. 2019). The same arguments
    give the same map, with any number of threads.

    Args:
        embeddings: Embeddings to map.
        limit: Number of embeddings beyond which a random sample is mapped.
        seed: Seed of the sample and of the map.
        perplexity: Perplexity; by default 30, or (n - 1) / 3 if that is less.
        shown: Classes to colour; by default the 8 with the most images.
        show_progress: Print progress.

    Raises:
        InputError: There are fewer than 4 embeddings, they have one dimension or are all equal, the
            perplexity is out of range, or `shown` has unknown classes or more than 8.
    """
    total = len(embeddings)
    embeddings = embeddings.sample(limit, seed)
    name, count = embeddings.name, len(embeddings)
    if count < _FEWEST:
        raise InputError(f"{name}: a map needs at least {_FEWEST} embeddings, there are {count}")
    if embeddings.vectors.shape[1] < 2:
        raise InputError(f"{name}: a map needs embeddings of at least 2 numbers")
    if (embeddings.vectors @ embeddings.vectors[0]).min() > 1 - _EQUAL:
        raise InputError(f"{name}: all embeddings are equal, so a map would show nothing")
    wanted = min(30.0, (count - 1) / 3) if perplexity is None else perplexity
    if not 1 <= wanted < count:
        raise InputError(f"{name}: the perplexity must be at least 1 and below {count}, not {wanted:g}")
    points, nearest = _tsne(embeddings.vectors, seed, wanted, show_progress)
    return TsneMap(points, embeddings, total, wanted, _chosen(embeddings, shown), nearest)


def _tsne(
    vectors: np.ndarray, seed: int, perplexity: float, show_progress: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions, float64 [n, 2], and the nearest neighbour of each, int64 [n]."""
    from openTSNE import TSNEEmbedding, affinity, initialization, nearest_neighbors  # takes seconds to import
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    steps = sum(_ITERATIONS)
    with (
        threadpool_limits(1),  # with several threads, sums vary with their order
        Progress("placing", steps, "steps", show=show_progress) as progress,
    ):

        def report(*_: object) -> bool:
            progress.update(_REPORTED)
            return False  # go on

        neighbours, distances = _neighbours(vectors, min(len(vectors) - 1, int(3 * perplexity)))
        graph = affinity.PerplexityBasedNN(
            perplexity=perplexity,
            knn_index=nearest_neighbors.PrecomputedNeighbors(neighbours, distances),
            n_jobs=1,
        )
        method = "bh" if len(vectors) <= _EXACT else "fft"
        places = TSNEEmbedding(
            initialization.pca(vectors, random_state=seed),
            graph,
            negative_gradient_method=method,
            n_jobs=1,
            random_state=seed,
            callbacks=report,
            callbacks_every_iters=_REPORTED,
        )
        early, late = _ITERATIONS
        places.optimize(early, exaggeration=12, momentum=0.5, inplace=True)
        places.optimize(late, momentum=0.8, inplace=True)
    return np.asarray(places, np.float64), neighbours[:, 0]


def _neighbours(vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest others of each unit vector, int64 [n, k], and their distances, float64 [n, k]."""
    count, dim = vectors.shape
    if count <= _EXACT:
        index = faiss.IndexFlatIP(dim)
    else:
        index = faiss.index_factory(dim, f"IVF{_CELLS},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.nprobe = _PROBED
    index.add(vectors)
    scores, found = index.search(vectors, k + 1)
    others = found != np.arange(count)[:, None]
    others[others.all(1), -1] = False  # copies of a vector may come before it
    scores, found = scores[others].reshape(count, k), found[others].reshape(count, k)
    return found, np.sqrt(np.maximum(0, 2 - 2 * scores.astype(np.float64)))


def _chosen(embeddings: Embeddings, shown: Sequence[str]) -> tuple[str, ...]:
    labels, counts = np.unique(embeddings.labels, return_counts=True)
    if len(set(shown)) > SHOWN:
        raise InputError(f"at most {SHOWN} classes have a colour of their own, not {len(set(shown))}")
    for label in shown:
        if label not in labels:
            hint = did_you_mean(label, labels.tolist(), f"there are {len(labels)} others")
            raise InputError(f"{embeddings.name}: no image on the map is of class {label!r}; {hint}")
    most = labels[np.argsort(-counts, kind="stable")][:SHOWN].tolist()
    return tuple(dict.fromkeys(shown)) or tuple(sorted(most))


def _counts(found: TsneMap) -> str:
    points = int(found.embeddings.synthetic.sum())
    images = f"{len(found.points) - points:,} images"
    return f"{images} and {points:,} synthetic points" if points else images


def draw_map(found: TsneMap, figure: Figure, *, by_kind: bool = False) -> None:
    """Draw a map; see `draw_maps`."""
    figure.suptitle(found.title, fontsize=12)
    axes = figure.add_subplot()
    _draw_points(axes, found, by_kind)
    axes.set_xlabel("t-SNE 1 (no unit)")
    axes.set_ylabel("t-SNE 2 (no unit)")
    figure.legend(loc="outside right center", frameon=False, fontsize=10)


def draw_maps(found: Sequence[TsneMap], figure: Figure, *, by_kind: bool = False) -> None:
    """Draw maps side by side with the same colours, such as those of several checkpoints.

    Args:
        found: Maps with the same classes shown, each computed separately: positions are not comparable.
        figure: Figure to draw on.
        by_kind: Colour images and synthetic points, as in the papers; otherwise each class shown has a colour
            and a shape, and synthetic points are hollow.
    """
    columns = map_columns(len(found))
    grid = figure.subplots(-(-len(found) // columns), columns, squeeze=False)
    for axes, one in zip(grid.flat, found, strict=False):
        _draw_points(axes, one, by_kind)
        axes.set_title(f"{caption(one.embeddings.name)}\n{_counts(one)}", fontsize=10)
    for axes in grid.flat[len(found) :]:
        axes.remove()
    figure.suptitle("t-SNE: neighbours have similar embeddings", fontsize=12)
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid.flat[: len(found)]]
    entries = {label: handle for each in pairs for handle, label in each}
    figure.legend(
        entries.values(), entries, loc="outside lower center", frameon=False, fontsize=10, ncols=columns
    )


def map_columns(count: int) -> int:
    """Return the number of columns of `draw_maps`."""
    return count if count <= 3 else 2 if count == 4 else 3


def _draw_points(axes: Axes, found: TsneMap, by_kind: bool) -> None:
    labels, synthetic = found.embeddings.labels, found.embeddings.synthetic
    if by_kind:
        _scatter(axes, found, ~synthetic, synthetic, COLOURS[0], "o", "images", size=9)
        _scatter(axes, found, synthetic, synthetic, COLOURS[1], "o", "synthetic points", size=9)
    else:
        other = ~np.isin(labels, found.shown)
        count = f"{len(np.unique(labels[other])):,} other classes"
        _scatter(axes, found, other, synthetic, GREY, "o", count, size=12)
        for number, label in enumerate(found.shown):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number]
            _scatter(axes, found, labels == label, synthetic, colour, marker, caption(label, 28))
        if synthetic.any():
            label = "hollow: synthetic"
            axes.scatter([], [], marker="o", facecolors="none", edgecolors="#333333", label=label)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", "datalim")


def _scatter(
    axes: Axes,
    found: TsneMap,
    rows: np.ndarray,
    synthetic: np.ndarray,
    colour: str,
    marker: str,
    label: str,
    *,
    size: float = 30,
) -> None:
    """Draw some rows, the synthetic ones hollow."""
    if not rows.any():
        return
    for part, fill in ((rows & ~synthetic, colour), (rows & synthetic, "none")):
        x, y = found.points[part].T
        look = axes.scatter(x, y, s=size, marker=marker, facecolors=fill, edgecolors=colour, linewidths=0.8)
        look.set(alpha=0.35 if colour == GREY else 0.85, rasterized=len(x) > RASTERIZE_ABOVE, zorder=2)
    fill = "none" if synthetic[rows].all() else colour
    axes.scatter([], [], s=30, marker=marker, facecolors=fill, edgecolors=colour, label=label)
