"""Example triplets as images: anchors with their positives and negatives (SCT, figs. 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.selection import NegativeRule, PositiveRule, select_triplets
from retrieval.analysis.triplets import same_images
from retrieval.errors import InputError
from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from retrieval.reports.figures import COLOURS, GREY, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Choice = Literal["hardest", "random"]
_SIDE = 200  # pixels of the longer side of a thumbnail
_TILE = 1.55  # inches
_POSITIVE, _HARD, _EASY = COLOURS[0], COLOURS[1], GREY


@dataclass(frozen=True, eq=False)
class Column:
    """Positives or negatives that one model selects for the anchors.

    Attributes:
        source: Name of the model.
        role: Kind of the images, such as "easy positive" or "hard negative".
        rows: Row of the image of each anchor, int64 [A]; -1 for none.
        cosines: Cosine of each anchor with it, float64 [A]; nan for none.
        hard: Whether it is a negative more similar to the anchor than the positive is, bool [A].
    """

    source: str
    role: str
    rows: np.ndarray
    cosines: np.ndarray
    hard: np.ndarray


@dataclass(frozen=True, eq=False)
class ExampleTriplets:
    """Anchors with the positives and negatives that several models select.

    Attributes:
        paths: Image files, text [N].
        labels: Their classes, text [N].
        anchors: Rows of the anchors, int64 [A].
        columns: For each model its positives and its negatives.
    """

    paths: np.ndarray
    labels: np.ndarray
    anchors: np.ndarray
    columns: Sequence[Column]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the triplets of each anchor as plain values, for JSON."""
        return [
            {
                **self._image(anchor),
                "selected": [
                    {
                        "model": column.source,
                        "role": column.role,
                        **self._image(column.rows[i]),
                        "cosine": float(column.cosines[i]),
                    }
                    for column in self.columns
                    if column.rows[i] >= 0
                ],
            }
            for i, anchor in enumerate(self.anchors)
        ]

    def _image(self, row: int) -> dict[str, str]:
        return {"path": str(self.paths[row]), "label": str(self.labels[row])}


def choose_anchors(
    images: Embeddings, count: int, how: Choice, *, positive: PositiveRule = "easy", seed: int = 0
) -> np.ndarray:
    """Return the rows of anchors of different classes, int64 [A].

    Args:
        images: Embeddings of one model.
        count: Number of anchors; fewer if fewer classes have two images.
        how: The hardest triplets (of the positive and the hard negative: the largest difference of their
            cosines), or random ones.
        positive: Positive of the hardest triplets.
        seed: Seed of the random images.

    Raises:
        InputError: No image has both a positive and a negative.
    """
    found = select_triplets(images.vectors, images.classes, positive, "hard", seed=seed)
    if not len(found.anchor):
        raise InputError(f"{images.name}: there are no triplets; they need two classes, one with two images")
    s_ap, s_an = found.cosines(images.vectors)
    order = np.argsort(s_ap - s_an, kind="stable")
    if how == "random":
        order = np.random.default_rng(seed).permutation(len(order))
    rows = found.anchor[order]
    _, first = np.unique(images.classes[rows], return_index=True)
    chosen: np.ndarray = rows[np.sort(first)][:count]
    return chosen


def rows_of(images: Embeddings, files: Iterable[Path]) -> np.ndarray:
    """Return the rows of image files, int64 [A].

    Raises:
        InputError: A file is not among the images.
    """
    known = {path: row for row, path in enumerate(_paths(images))}
    rows = []
    for file in files:
        if str(file.absolute()) not in known:
            raise InputError(
                f"{file}: not one of the {len(images):,} embedded images; see --data and --split"
            )
        rows.append(known[str(file.absolute())])
    return np.array(rows, np.int64)


def example_triplets(
    models: Sequence[Embeddings],
    anchors: np.ndarray,
    positive: PositiveRule = "easy",
    negatives: Sequence[NegativeRule] = ("hard",),
    *,
    seed: int = 0,
) -> ExampleTriplets:
    """Select a positive and negatives of each anchor by each model, among all images.

    Args:
        models: Embeddings of the same images by several models, with the paths of the files.
        anchors: Rows of the anchors, int64 [A].
        positive: Easy (most similar), or random and then the same for all models.
        negatives: Hard (most similar), or semi-hard (most similar of those less similar than the positive).
        seed: Seed of the random positives.

    Raises:
        InputError: The embeddings are of different images, or without paths.
    """
    columns = []
    for images in models:
        if not same_images(models[0], images):
            both = f"{models[0].name} and {images.name}"
            raise InputError(f"{both} are not of the same images in the same order; embed the same data")
        known = images.vectors, images.classes
        hardest = select_triplets(*known, positive, "hard", anchors=anchors, seed=seed)
        if len(hardest.anchor) < len(anchors):
            (first, *_) = np.setdiff1d(anchors, hardest.anchor)
            raise InputError(
                f"{_paths(images)[first]}: has no positive or no negative; choose another anchor"
            )
        s_ap, _ = hardest.cosines(images.vectors)
        never = np.zeros(len(anchors), bool)
        columns.append(Column(images.name, f"{positive} positive", hardest.positive, s_ap, never))
        for negative in negatives:
            found = select_triplets(*known, positive, negative, anchors=anchors, seed=seed)
            has = np.isin(anchors, found.anchor)
            rows, cosines = np.full(len(anchors), -1), np.full(len(anchors), np.nan)
            rows[has], cosines[has] = found.negative, found.cosines(images.vectors)[1]
            columns.append(Column(images.name, f"{negative} negative", rows, cosines, cosines > s_ap))
    return ExampleTriplets(_paths(models[0]), models[0].labels, anchors, columns)


def _paths(images: Embeddings) -> np.ndarray:
    if images.paths is None:
        raise InputError(f"{images.name}: the paths of its images are not known; `analyze embed` writes them")
    return images.paths


def examples_size(found: ExampleTriplets) -> tuple[float, float]:
    """Return width and height of `draw_examples` in inches."""
    return _TILE * (1 + len(found.columns)) + 0.4, (_TILE + 0.4) * len(found.anchors) + 1.5


def draw_examples(found: ExampleTriplets, figure: Figure) -> None:
    """Draw a row of images for each anchor, each with its class and its cosine with the anchor."""
    from matplotlib.patches import Patch

    figure.suptitle("Triplets: anchors with their positives and negatives", fontsize=13)
    rows = np.unique(np.concatenate([found.anchors, *(column.rows for column in found.columns)]))
    thumbnails = _thumbnails(Path(found.paths[row]) for row in rows if row >= 0)
    models = list(dict.fromkeys(column.source for column in found.columns))
    widths = [1, *(sum(column.source == name for column in found.columns) for name in models)]
    parts = figure.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for part, name, width in zip(parts, ["", *models], widths, strict=True):
        part.suptitle(caption(name, 14 * width) or " ", fontsize=11, fontweight="bold")
        grid = part.subplots(len(found.anchors), width, squeeze=False)
        columns = [column for column in found.columns if column.source == name]
        for axes in grid.flat:
            axes.set(xticks=[], yticks=[])
        if not columns:
            for i, row in enumerate(found.anchors):
                _show(grid[i, 0], thumbnails, found, row, "anchor\n " if i == 0 else " ")
        for j, column in enumerate(columns):
            for i, row in enumerate(column.rows):
                frame = _POSITIVE if column.role.endswith("positive") else _EASY
                frame = _HARD if column.hard[i] else frame
                cosine = f"{column.cosines[i]:.3f}" if row >= 0 else "none"
                title = f"{column.role}\n{cosine}" if i == 0 else cosine
                _show(grid[i, j], thumbnails, found, row, title, frame)
    looks = ((_POSITIVE, "positive"), (_HARD, "negative, more similar (hard)"), (_EASY, "negative"))
    handles = [Patch(facecolor="none", edgecolor=colour, lw=2.5, label=label) for colour, label in looks]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(3, len(found.columns)), frameon=False
    )


def _show(
    axes: Axes,
    thumbnails: Mapping[Path, np.ndarray],
    found: ExampleTriplets,
    row: int,
    title: str,
    frame: str = "black",
) -> None:
    axes.set_title(title, fontsize=9)
    if row >= 0:
        axes.set_xlabel(caption(str(found.labels[row]), 20), fontsize=8)
        pixels = thumbnails.get(Path(found.paths[row]))
        if pixels is not None:
            axes.imshow(pixels)
            height, width = (side / 2 - 0.5 for side in pixels.shape[:2])  # the centre
            half = max(pixels.shape[:2]) / 2
            axes.set(xlim=(width - half, width + half), ylim=(height + half, height - half))
    axes.set_box_aspect(1)
    axes.set_facecolor("#f0f0f0")
    for spine in axes.spines.values():
        spine.set(color=frame, linewidth=1 if frame == "black" else 3)


def _thumbnails(paths: Iterable[Path]) -> dict[Path, np.ndarray]:
    """Return the readable images, at most 200 pixels a side, uint8 [h, w, 3]."""
    wanted = list(paths)
    found = zip(wanted, decode_ahead(wanted, _shrink), strict=True)
    return {path: file.pixels for path, file in found if isinstance(file, Decoded)}


def _shrink(pixels: np.ndarray) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)
