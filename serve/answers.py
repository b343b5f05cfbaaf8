"""Answers of a Lookalike server as values of its Python client.

Fields that a newer server adds are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Image:
    """An image of the gallery.

    Attributes:
        id: Number of the image, which is never reused.
        key: Name of the image, or its path in the indexed folder.
        label: Label, or None.
        metadata: Metadata by column.
        thumbnail: Path of its thumbnail on the server.
        width, height: Size in pixels; None if unknown.
    """

    id: int
    key: str
    label: str | None
    metadata: dict[str, Any]
    thumbnail: str
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True)
class Hit(Image):
    """An image that was found.

    Attributes:
        score: Similarity, 1 for the same image.
        probability: Probability that it shows the same thing as the query, 1 if it is the same picture;
            `None` in a gallery that is not calibrated, and with re-ranking.
        gallery: Name of its gallery, if several were searched.
    """

    score: float = 0.0
    probability: float | None = None
    gallery: str | None = None


@dataclass(frozen=True)
class Conflict:
    """What was asked for an image that the gallery had already, and was not stored.

    Attributes:
        label: The label, if the image has another one.
        metadata: The values that the image does not have.
        detail: Which image has these bytes, and what to do.
    """

    label: str | None
    metadata: dict[str, Any] | None
    detail: str


@dataclass(frozen=True)
class Added(Image):
    """The result of adding an image; it is not new if the gallery had its bytes already.

    Attributes:
        is_new: Whether it was added.
        conflict: If it was not, what was asked for it and not stored.
    """

    is_new: bool = True
    conflict: Conflict | None = None


@dataclass(frozen=True)
class ItemPage:
    """A page of a listing, and the cursor of the next one; `None` if this is the last."""

    items: list[Image]
    next_cursor: str | None


@dataclass(frozen=True)
class Decision:
    """A decision about an image that somebody made by hand.

    Attributes:
        n: Its number.
        time: When it was made, ISO 8601, UTC.
        action: "label", "remove" or "keep".
        key: Key of the image.
        old: Label before.
        new: Label after.
        undone: Whether it was withdrawn.
    """

    n: int
    time: str
    action: str
    key: str
    old: str | None
    new: str | None
    undone: bool


@dataclass(frozen=True)
class Removal:
    """Images that a condition selects.

    Attributes:
        dry_run: Whether they were counted only.
        selected: Number of selected images.
        removed: Number of removed images.
        ids: The lowest ids of the selected images, at most 100.
    """

    dry_run: bool
    selected: int
    removed: int
    ids: list[int]


@dataclass(frozen=True)
class Facet:
    """The values of a column.

    Attributes:
        column: Column name.
        values: The most frequent values with their numbers of images.
        distinct: Number of different values.
        missing: Images without a value.
        numbers: Lowest and highest number, if there are any.
        dates: First and last date, if all values are dates.
    """

    column: str
    values: list[tuple[str | int | float, int]]
    distinct: int
    missing: int
    numbers: tuple[float, float] | None
    dates: tuple[str, str] | None


@dataclass(frozen=True)
class Facets:
    """Counts of the values of columns.

    Attributes:
        images: Images that fulfil the condition.
        counted: Images whose values are counted: all of these, or a random sample.
        facets: Column name -> its values.
    """

    images: int
    counted: int
    facets: dict[str, Facet]


@dataclass(frozen=True)
class Vectors:
    """A vector for each image, in their order, and the fingerprint of their model."""

    vectors: list[list[float]]
    fingerprint: str


@dataclass(frozen=True)
class Gallery:
    """Description of a gallery, see `GET /v1/gallery`."""

    name: str
    uuid: str
    images: int
    dim: int
    fingerprint: str
    embeds: bool
    columns: list[str]
    index: str
    unindexed: int
    calibrated: bool = False
    license: str | None = None
    texts: bool = False
    changes: bool = False
    urls: bool = False
    sharing: int = 0


@dataclass(frozen=True)
class ServedGallery:
    """One of the galleries of a server, for `Client(..., gallery=name)`."""

    name: str
    images: int
    fingerprint: str
    address: str


@dataclass(frozen=True, eq=False)
class Heatmap:
    """What each location of an image contributes to a score.

    Attributes:
        box: What the grid covers: left, top, right and bottom, as fractions of the upright image.
        contributions: float64 [h, w]; they sum to the score.
        strengths: Their contrast, float64 [h, w], -1 to 1.
    """

    box: tuple[float, float, float, float]
    contributions: np.ndarray
    strengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Heatmaps:
    """Where a query and an image of the gallery look alike.

    Attributes:
        score: Their cosine similarity.
        query: Heatmap of the query.
        item: Heatmap of the image of the gallery.
        similarities: Cosine of each location of the query with each of the image, float64 [h w, h w].
        fingerprint: Fingerprint of the model.
    """

    score: float
    query: Heatmap
    item: Heatmap
    similarities: np.ndarray
    fingerprint: str


@dataclass(frozen=True)
class Job:
    """Long work of the server; see `POST /v1/jobs`.

    Attributes:
        id: Its id.
        kind: What it does, such as "duplicates".
        state: "running", "done" or "failed".
        created: Time of its start, ISO 8601, UTC.
        ended: Time of its end; `None` while it is running.
        progress: "what", "done", "total" and "unit"; `None` if unknown.
        problem: Why it failed: a problem document.
        result: Its result, if it was asked for by its id and is done.
    """

    id: str
    kind: str
    state: str
    created: str
    ended: str | None
    progress: dict[str, Any] | None
    problem: dict[str, Any] | None
    result: Any = None


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation: the key of its values, its title and its meaning."""

    key: str
    title: str
    meaning: str


@dataclass(frozen=True)
class Result:
    """Values of one model in an evaluation.

    Attributes:
        title: Name of the model.
        by: Labels that count as classes, if they are not those of the gallery.
        values: Metric key -> value in 0..1; `None` if it is not defined.
        intervals: Metric key -> 95% confidence interval for other queries of these classes.
        class_intervals: Metric key -> that for other classes like these.
        spreads: Metric key -> lowest and highest value over repetitions of k-means.
    """

    title: str
    by: str | None
    values: dict[str, float | None]
    intervals: dict[str, list[float]]
    class_intervals: dict[str, list[float]]
    spreads: dict[str, list[float]]


@dataclass(frozen=True)
class Evaluation:
    """The newest evaluation of a gallery; see `GET /v1/evaluation`.

    Attributes:
        created: Time of the evaluation, ISO 8601, UTC.
        data: Query images.
        protocol: Searched set.
        images: Number of query images.
        classes: Number of their classes.
        results: Published results first, then baselines, the model of the gallery last.
        metrics: Metrics of the results.
    """

    created: str
    data: str
    protocol: str
    images: int
    classes: int
    results: list[Result]
    metrics: list[Metric]
