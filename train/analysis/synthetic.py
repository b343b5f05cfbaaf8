"""How synthetic points are retrieved: do they belong to the class they were made of? (Symm, fig. 6)"""

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

_CELLS = 1 << 20  # pairs x pairs at once


@dataclass(frozen=True, eq=False)
class SyntheticPoints:
    """Synthetic points.

    Attributes:
        vectors: float32 [S, D], unit length.
        pair: int64 [S], the pair that each was made of.
        members: int64 [P, 2], the two rows of every pair.
    """

    vectors: np.ndarray
    pair: np.ndarray
    members: np.ndarray


@dataclass(frozen=True, eq=False)
class SyntheticRecalls:
    """Recall@K in 0..1 of images and of synthetic points.

    Attributes:
        recall: what is searched for -> {K: recall}.
        counts: what is searched for -> how many of them have something to find.
    """

    name: str
    source: PointSource
    recall: dict[str, dict[int, float]]
    counts: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "negatives": self.source, "recall": self.recall, "counts": self.counts}


@torch.no_grad()
def synthesize_points(embeddings: Embeddings, source: PointSource) -> SyntheticPoints:
    """The points that a source of negatives makes of the pairs of each class, on the sphere.

    Pairs are alternate: in each class the first and the second image, the third and the fourth, and so on; an
    odd one has none. `symmetric` mirrors both members in each other, `interpolated` puts two points evenly
    between them, and `optimal` takes the point of the arc between them that is closest to an arc of another
    class; where this is a member, none is made.

    Raises:
        InputError: no class with two images; for `optimal`, a single class.
    """
    vectors = torch.from_numpy(embeddings.vectors).double()  # [N, D]
    labels = torch.from_numpy(embeddings.classes)
    layout = alternate_pairs(labels, len(labels))
    pairs = layout.order[: 2 * layout.slots].unflatten(0, (2, -1))[:, layout.valid]  # [2, P]
    if not pairs.shape[1]:
        raise InputError(f"{embeddings.name}: no class has two images, so there are no pairs")
    first, second = vectors[pairs[0]], vectors[pairs[1]]  # [P, D]
    if source == "optimal":
        toward_first, toward_second = _facing(first, second, labels[pairs[0]], embeddings.name)
    else:
        points = Symmetric() if source == "symmetric" else Interpolated()
        weights = points.weights(_within(first, second, 1), normalized=True)
        toward_first, toward_second = (w[2:, :, 0] for w in weights)  # [m, P], without the members
    made = (toward_first != 0) | (toward_second != 0)
    found = toward_first[..., None] * first + toward_second[..., None] * second  # [m, P, D]
    pair = torch.arange(pairs.shape[1]).expand_as(made)
    return SyntheticPoints(found[made].float().numpy(), pair[made].numpy(), pairs.T.numpy())


def _within(first: Tensor, second: Tensor, axis: int) -> Members:
    """The products within pairs, as a column of a table (axis 1) or as a row (axis 0)."""
    one = torch.ones_like(first[:, 0])
    squares = ((first + second).square().sum(1), (first - second).square().sum(1))
    return Members(*(x.unsqueeze(axis) for x in (one, one, (first * second).sum(1), *squares)))


def _facing(first: Tensor, second: Tensor, labels: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Weights [1, P] of the point of each arc that is closest to an arc of another class; 0 for a member."""
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
    embeddings: Embeddings, made: SyntheticPoints, source: PointSource, *, show_progress: bool = False
) -> SyntheticRecalls:
    """Recall@1, 2, 4 and 8 of the images of pairs and of the points made of them.

    What is searched for never finds its own pair, nor what was made of that:

    - images, among all images;
    - synthetic points, among all images: do they lie where their class lies?
    - images, among all images and synthetic points, which count as their class: are these in the way?

    So all three search for something, and find more than a pair that was put there. Images without a partner
    are found, but not searched for; where a class is no more than one pair, nothing is searched for.

    Raises:
        InputError: no class with three images, or no points.
    """
    classes = embeddings.classes
    group = np.full(len(classes), -1)  # the pair of each image
    group[made.members] = np.arange(len(made.members))[:, None]
    of_points = classes[made.members[made.pair, 0]]
    images = (embeddings.vectors, classes, group)
    points = (made.vectors, of_points, made.pair)
    both = tuple(np.concatenate(parts) for parts in zip(images, points, strict=True))
    paired = tuple(part[group >= 0] for part in images)
    searches = {ORIGINALS: (paired, images), POINTS: (points, images), AMONG: (paired, both)}
    if np.bincount(classes).max() < 3:
        raise InputError(f"{embeddings.name}: no class has an image beyond a pair, so there is none to find")
    if not len(made.vectors):
        raise InputError(
            f"{embeddings.name}: {source} negatives are all images themselves, no points between"
        )
    recall, counts = {}, {}
    for name, (query, gallery) in searches.items():
        recall[name], counts[name] = _recall(query, gallery, show_progress)
    return SyntheticRecalls(embeddings.name, source, recall, counts)


def _recall(
    query: Sequence[np.ndarray], gallery: Sequence[np.ndarray], show_progress: bool
) -> tuple[dict[int, float], int]:
    """Recall of vectors, labels and pairs among others, each without those of its own pair."""
    (vectors, labels, pairs), (others, other_labels, other_pairs) = query, gallery
    sizes = np.bincount(other_pairs[other_pairs >= 0], minlength=pairs.max(initial=-1) + 1)
    most = max(KS) + int(sizes.max())  # neighbours to ask for: as many as may have to be left out are more
    found = rank(vectors, labels, others, other_labels, k=most, show_progress=show_progress)
    kept = (found.rows >= 0) & (other_pairs[found.rows] != pairs[:, None])  # [N, most]
    place = kept.cumsum(1)
    right = found.relevant & kept
    asked = found.to_find > sizes[pairs]
    recall = {k: float((right & (place <= k)).any(1)[asked].mean()) for k in KS}
    return recall, int(asked.sum())


def with_points(embeddings: Embeddings, made: SyntheticPoints) -> Embeddings:
    """The images followed by the synthetic points, marked as such."""
    vectors = np.concatenate([embeddings.vectors, made.vectors])
    labels = np.concatenate([embeddings.labels, embeddings.labels[made.members[made.pair, 0]]])
    synthetic = np.arange(len(vectors)) >= len(embeddings)
    paths = None
    if embeddings.paths is not None:
        paths = np.concatenate([embeddings.paths, np.full(len(made.vectors), "")])
    return Embeddings(embeddings.name, vectors, labels, paths, synthetic)


def synthetic_recall_figure(found: Sequence[SyntheticRecalls], figure: Figure) -> None:
    """A panel for each embedding: Recall@K of what is searched for."""
    row = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, of_one in zip(row, found, strict=True):
        for number, (name, recall) in enumerate(of_one.recall.items()):
            values = [100 * recall[k] for k in KS]
            look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "label": name}
            if name == ORIGINALS:  # stays visible below that among synthetic points, which is often the same
                look |= {"markersize": 10, "linewidth": 3, "fillstyle": "none"}
            axes.plot(KS, values, **look)
        axes.set_title(caption(of_one.name), fontsize=11)
        axes.set_xscale("log", base=2)
        axes.set_xticks(KS, [str(k) for k in KS])
        axes.set_xlabel("K nearest, without the own pair")
        axes.grid(alpha=0.3)
    row[0].set_ylabel("Recall@K (%)")
    figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=3)
    figure.suptitle(f"How {found[0].source} synthetic points are retrieved", fontsize=13)
