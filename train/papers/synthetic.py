"""Recall@K of synthetic points: are they near the class that they were generated from? (Symm fig. 6)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.metrics.ranking import rank
from retrieval.reports.figures import COLOURS, MARKERS, caption
from train.losses.arcs import closest_points
from train.losses.negatives import Interpolated, Symmetric
from train.losses.pairs import alternate_pairs
from train.losses.view import Members, PairTables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PointSource = Literal["symmetric", "optimal", "interpolated"]
KS = (1, 2, 4, 8)
ORIGINALS, POINTS, AMONG = "images", "synthetic points", "images among synthetic points"

_CELLS = 1 << 20  # pairs x pairs in one block


@dataclass(frozen=True, eq=False)
class SyntheticPoints:
    """Synthetic points and the pairs that they were generated from.

    Attributes:
        vectors: float32 [S, D], points of unit length.
        pair: int64 [S], the pair of each point.
        members: int64 [P, 2], the rows of both images of every pair.
    """

    vectors: np.ndarray
    pair: np.ndarray
    members: np.ndarray


@dataclass(frozen=True, eq=False)
class SyntheticRecalls:
    """Recall@K in 0..1 of images and of synthetic points.

    Attributes:
        name: Name of the embeddings.
        source: Kind of synthetic points.
        recall: `ORIGINALS`, `POINTS` or `AMONG` -> {K: recall}.
        counts: The same keys -> number of queries that have something to find.
    """

    name: str
    source: PointSource
    recall: dict[str, dict[int, float]]
    counts: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"name": self.name, "negatives": self.source, "recall": self.recall, "counts": self.counts}


@dataclass(frozen=True, eq=False)
class SyntheticCurves:
    """Recall@1 in 0..1 of images and of synthetic points at several checkpoints of a run.

    Attributes:
        run: Name of the run.
        split: Split of the images.
        steps: Steps of the checkpoints, ascending, [n].
        found: Recalls at each step, [n].
    """

    run: str
    split: str
    steps: list[int]
    found: list[SyntheticRecalls]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        recalls = {name: self.recall_at_1(name) for name in (ORIGINALS, POINTS)}
        return {"run": self.run, "split": self.split, "steps": self.steps, "recall_at_1": recalls}

    def recall_at_1(self, name: str) -> list[float]:
        """Return Recall@1 of `ORIGINALS`, `POINTS` or `AMONG` at each step."""
        return [one.recall[name][1] for one in self.found]


@torch.no_grad()
def synthesize_points(embeddings: Embeddings, source: PointSource, *, seed: int = 0) -> SyntheticPoints:
    """Generate the synthetic points of the pairs of each class, on the sphere.

    The images of each class are paired at random: the partner of an image is any other one of its class with
    equal probability, as in Symm. In a class of an odd number one image has no pair.

    `symmetric` mirrors both members in each other, `interpolated` puts two points evenly between them, and
    `optimal` takes the point of the arc between them that is closest to an arc of another class; there is
    none if that point is a member.

    Args:
        embeddings: Embeddings of images.
        source: Kind of points.
        seed: Seed of the pairs.

    Raises:
        InputError: No class with two images; for `optimal`, a single class.
    """
    shuffled = np.random.default_rng(seed).permutation(len(embeddings))
    vectors = torch.from_numpy(embeddings.vectors[shuffled]).double()  # [N, D]
    labels = torch.from_numpy(embeddings.classes[shuffled])
    layout = alternate_pairs(labels, len(labels))
    pairs = layout.order[: 2 * layout.slots].unflatten(0, (2, -1))[:, layout.valid]  # [2, P]
    if not pairs.shape[1]:
        raise InputError(
            f"{embeddings.name}: no class has two images, so there are no pairs; choose other images"
        )
    first, second = vectors[pairs[0]], vectors[pairs[1]]  # [P, D]
    if source == "optimal":
        toward_first, toward_second = _facing(first, second, labels[pairs[0]], embeddings.name)
    else:
        points = Symmetric() if source == "symmetric" else Interpolated()
        weights = points.weights(_within(first, second, 1), normalized=True)
        toward_first, toward_second = (w[2:, :, 0] for w in weights)  # [m, P], without the members
    exists = (toward_first != 0) | (toward_second != 0)
    found = toward_first[..., None] * first + toward_second[..., None] * second  # [m, P, D]
    pair = torch.arange(pairs.shape[1]).expand_as(exists)
    members = shuffled[pairs.T.numpy()]
    return SyntheticPoints(found[exists].float().numpy(), pair[exists].numpy(), members)


def _within(first: Tensor, second: Tensor, axis: int) -> Members:
    """Return the products within pairs, as a column of a table (axis 1) or as a row (axis 0)."""
    one = torch.ones_like(first[:, 0])
    squares = ((first + second).square().sum(1), (first - second).square().sum(1))
    return Members(*(x.unsqueeze(axis) for x in (one, one, (first * second).sum(1), *squares)))


def _facing(first: Tensor, second: Tensor, labels: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return weights [1, P] of each arc's point closest to an arc of another class; 0 if it is a member."""
    if not (labels != labels[0]).any():
        raise InputError(f"{name}: all pairs are of one class, so none has a negative")
    columns = _within(first, second, 0)
    found = []
    rows = max(1, _CELLS // len(first))
    for i, j, own in zip(first.split(rows), second.split(rows), labels.split(rows), strict=True):
        products = (i @ first.T, i @ second.T, j @ first.T, j @ second.T)
        cosine, wi, wj, _, _ = closest_points(PairTables(*products, _within(i, j, 1), columns))
        nearest = cosine.masked_fill(own[:, None] == labels[None, :], -torch.inf).argmax(1, keepdim=True)
        found.append(torch.cat([wi.gather(1, nearest), wj.gather(1, nearest)], 1))
    weights = torch.cat(found).T  # [2, P]
    weights = torch.where((weights > 0).all(0), weights, 0.0)
    return weights[:1], weights[1:]


def synthetic_recalls(
    embeddings: Embeddings, points: SyntheticPoints, source: PointSource, *, show_progress: bool = False
) -> SyntheticRecalls:
    """Compute Recall@1, 2, 4 and 8 of the images of pairs and of the points generated from them.

    There are three searches, in which a query never retrieves its own pair and its points:

    - images, among all images;
    - synthetic points, among all images: are the points near their class?
    - images, among all images and synthetic points, which have the class of their pair: do the points
      interfere?

    Images without a partner are retrieved, but are no queries; neither are those of a class with a single
    pair, which leaves nothing to retrieve.

    Args:
        embeddings: Embeddings of images.
        points: Points generated from them.
        source: Kind of these points.
        show_progress: Show a progress bar.

    Raises:
        InputError: No class with three images, or no points.
    """
    classes = embeddings.classes
    group = np.full(len(classes), -1)  # pair of each image
    group[points.members] = np.arange(len(points.members))[:, None]
    images = (embeddings.vectors, classes, group)
    synthetic = (points.vectors, classes[points.members[points.pair, 0]], points.pair)
    both = tuple(np.concatenate(parts) for parts in zip(images, synthetic, strict=True))
    paired = tuple(part[group >= 0] for part in images)
    searches = {ORIGINALS: (paired, images), POINTS: (synthetic, images), AMONG: (paired, both)}
    if np.bincount(classes).max() < 3:
        raise InputError(
            f"{embeddings.name}: no class has an image beyond a pair, so there is nothing to find"
        )
    if not len(points.vectors):
        raise InputError(
            f"{embeddings.name}: {source} negatives are all images themselves, with no points between"
        )
    recall, counts = {}, {}
    for name, (query, gallery) in searches.items():
        recall[name], counts[name] = _recall(query, gallery, show_progress)
    return SyntheticRecalls(embeddings.name, source, recall, counts)


def _recall(
    query: Sequence[np.ndarray], gallery: Sequence[np.ndarray], show_progress: bool
) -> tuple[dict[int, float], int]:
    """Return Recall@K and the number of answerable queries; each query skips its own pair.

    Args:
        query: Vectors, labels and pairs of the queries.
        gallery: Vectors, labels and pairs of the gallery.
        show_progress: Show a progress bar.
    """
    (vectors, labels, pairs), (others, other_labels, other_pairs) = query, gallery
    sizes = np.bincount(other_pairs[other_pairs >= 0], minlength=pairs.max(initial=-1) + 1)
    most = max(KS) + int(sizes.max())  # neighbours: those of the own pair are dropped
    found = rank(vectors, labels, others, other_labels, k=most, show_progress=show_progress)
    kept = (found.rows >= 0) & (other_pairs[found.rows] != pairs[:, None])  # [N, most]
    place = kept.cumsum(1)
    hits = found.relevant & kept
    answerable = found.num_relevant > sizes[pairs]
    recall = {k: float((hits & (place <= k)).any(1)[answerable].mean()) for k in KS}
    return recall, int(answerable.sum())


def with_points(embeddings: Embeddings, points: SyntheticPoints) -> Embeddings:
    """Return the images followed by the synthetic points, marked as synthetic."""
    vectors = np.concatenate([embeddings.vectors, points.vectors])
    labels = np.concatenate([embeddings.labels, embeddings.labels[points.members[points.pair, 0]]])
    synthetic = np.arange(len(vectors)) >= len(embeddings)
    paths = None
    if embeddings.paths is not None:
        paths = np.concatenate([embeddings.paths, np.full(len(points.vectors), "")])
    return Embeddings(embeddings.name, vectors, labels, paths, synthetic)


def synthetic_recall_figure(found: Sequence[SyntheticRecalls], figure: Figure) -> None:
    """Plot Recall@K of the three searches, with one panel for each set of embeddings."""
    row = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, of_one in zip(row, found, strict=True):
        for number, (name, recall) in enumerate(of_one.recall.items()):
            values = [100 * recall[k] for k in KS]
            look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "label": name}
            if name == ORIGINALS:  # visible below the curve among synthetic points, which is often equal
                look |= {"markersize": 10, "linewidth": 3, "fillstyle": "none"}
            axes.plot(KS, values, **look)
        axes.set_title(caption(of_one.name), fontsize=11)
        axes.set_xscale("log", base=2)
        axes.set_xticks(KS, [str(k) for k in KS])
        axes.set_xlabel("K nearest, without own pair")
        axes.grid(alpha=0.3)
    row[0].set_ylabel("Recall@K (%)")
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3)
    figure.suptitle(f"Recall@K of {found[0].source} synthetic points", fontsize=13)


def synthetic_curve_figure(curves: Sequence[SyntheticCurves], figure: Figure) -> None:
    """Plot Recall@1 of images and of synthetic points over the steps, with one panel for each run."""
    runs = list(dict.fromkeys(curve.run for curve in curves))
    row = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    splits = sorted({curve.split for curve in curves}, reverse=True)  # train before test
    for axes, run in zip(row, runs, strict=True):
        for curve in (curve for curve in curves if curve.run == run):
            for name, style in ((ORIGINALS, "-"), (POINTS, "--")):
                values = [100 * value for value in curve.recall_at_1(name)]
                number = splits.index(curve.split)
                look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 4}
                axes.plot(curve.steps, values, linestyle=style, label=f"{curve.split}: {name}", **look)
        axes.set_title(caption(run), fontsize=11)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    row[0].set_ylabel("Recall@1 (%)")
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=2)
    source = curves[0].found[0].source
    figure.suptitle(f"Recall@1 of images and of {source} synthetic points", fontsize=13)
