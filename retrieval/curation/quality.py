"""Poor and odd images of a gallery: blurred, dark, flat, tiny, narrow, or unlike all others.

The defaults of the thresholds are relative to the gallery: robust outliers by the median absolute deviation
(Iglewicz and Hoaglin 1993), which half of the images would have to share to hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.errors import ImageError
from retrieval.galleries.items import Item
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from retrieval.progress import Progress

SIDE = (
    256  # length of the shorter side at which images are measured, in pixels; smaller ones are not enlarged
)
_CHUNK = 512  # images in memory, without their pixels
_DEVIATIONS = 3.5  # median absolute deviations, scaled to a standard deviation, of an outlier
_SCALE = 1.4826  # standard deviation of a normal distribution per median absolute deviation
_TIMES = 2.0  # factor from the median that an outlier has as well, where a ratio means something


@dataclass(frozen=True)
class Fault:
    """A fault that an image can have: a measure beyond a threshold.

    Attributes:
        name: Name for users, an adjective.
        measure: Name of the measure.
        meaning: The measure in words.
        above: Whether values above the threshold are faulty, rather than below.
        ratio: Whether the measure is positive with a wide range, so that its logarithm is compared.
    """

    name: str
    measure: str
    meaning: str
    above: bool = False
    ratio: bool = True

    def threshold(self, values: np.ndarray) -> float | None:
        """Return the limit beyond which values, float64 [n], are outliers; `None` if all are NaN."""
        known = values[np.isfinite(values)]
        if not len(known):
            return None
        spread = np.log(np.maximum(known, 1e-9)) if self.ratio else known
        centre = np.median(spread)
        away = _DEVIATIONS * _SCALE * np.median(np.abs(spread - centre))
        if self.ratio:
            away = max(away, np.log(_TIMES))
        limit = centre + away if self.above else centre - away
        return float(np.exp(limit) if self.ratio else limit)

    def severity(self, values: np.ndarray, threshold: float) -> np.ndarray:
        """Return how far values are beyond the threshold, float64 [n]; 0 or less for those that are not."""
        known = np.where(np.isfinite(values), values, threshold)
        return known - threshold if self.above else threshold - known


FAULTS = (
    Fault("blurred", "sharpness", f"variance of the Laplacian at {SIDE} pixels"),
    Fault("dark", "brightness", "mean grey value, 0 to 1"),
    Fault("flat", "contrast", "standard deviation of the grey values, 0 to 0.5"),
    Fault("tiny", "side", "shorter side in pixels"),
    Fault("narrow", "aspect", "longer side over shorter side", above=True),
    Fault("alone", "similarity", "cosine similarity to the nearest other image", ratio=False),
)


@dataclass(frozen=True)
class Finding:
    """Images with one fault, the worst first.

    Attributes:
        fault: The fault.
        threshold: Limit of the measure; `None` if nothing was measured.
        images: Items with their measure.
    """

    fault: Fault
    threshold: float | None
    images: list[tuple[Item, float]]


@dataclass(frozen=True)
class Inspection:
    """Result of `inspect_gallery`.

    Attributes:
        images: Number of images in the gallery.
        findings: One for each fault.
        measures: Measures of the images with a fault, by item id and measure; NaN if unknown.
        quantiles: 1%, 50% and 99% quantile of each measure, without those nothing is known of.
        unreadable: Items whose file is gone or damaged, with the error.
    """

    images: int
    findings: list[Finding]
    measures: dict[int, dict[str, float]]
    quantiles: dict[str, list[float]]
    unreadable: list[tuple[Item, ImageError]]


def inspect_gallery(
    gallery: SearchableGallery,
    thresholds: Mapping[str, float] | None = None,
    *,
    show_progress: bool = False,
) -> Inspection:
    """Measure all images of a gallery and find those with a fault; no parts of pictures that it divides.

    Files are decoded at reduced size. Memory: about 60 bytes per image.

    Args:
        gallery: Gallery to inspect.
        thresholds: Thresholds by the name of the fault; by default robust outliers of this gallery.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: A stored vector is damaged.
    """
    ids = gallery.pictures_among(np.array(gallery.sample(len(gallery)), np.int64))
    among = ids if gallery.manifest.objects else None
    values = {fault.measure: np.full(len(ids), np.nan) for fault in FAULTS}
    unreadable: list[tuple[Item, ImageError]] = []
    with Progress("inspecting", len(ids), show=show_progress) as progress:
        for start in range(0, len(ids), _CHUNK):
            some = slice(start, start + _CHUNK)
            items = gallery.items(ids[some].tolist())
            files = [(at, items[i]) for at, i in enumerate(ids[some].tolist(), start) if i in items]
            files = [(at, item) for at, item in files if item.path]
            measured = measure_files([Path(item.path) for _, item in files])
            for (at, item), found in zip(files, measured, strict=True):
                if isinstance(found, ImageError):
                    unreadable.append((item, found))
                else:
                    for name, value in found.items():
                        values[name][at] = value
            if len(ids) > 1:
                values["similarity"][some] = _to_nearest_other(gallery, ids[some], among=among)
            progress.update(len(ids[some]), f"{len(unreadable)} unreadable" if unreadable else "")
    limits = _limits(values, thresholds or {})
    if gallery.index_kind != "flat" and limits["alone"] is not None:
        _correct_similarities(gallery, ids, among, values["similarity"], limits["alone"])
    return _inspection(gallery, ids, values, limits, unreadable)


def measure_files(paths: Sequence[Path]) -> list[dict[str, float] | ImageError]:
    """Return the measures of each image file: sharpness, brightness, contrast, side and aspect."""
    files = decode_ahead(paths, _measure, side=SIDE)
    return [_named(file) if isinstance(file, Decoded) else file for file in files]


def _named(file: Decoded) -> dict[str, float]:
    shorter, longer = sorted((file.width, file.height))
    names = ("sharpness", "brightness", "contrast")
    return dict(zip(names, file.pixels.tolist(), strict=True)) | {
        "side": float(shorter),
        "aspect": longer / shorter,
    }


def _measure(pixels: np.ndarray) -> np.ndarray:
    """Return sharpness, brightness and contrast of an RGB image, float64 [3]."""
    grey = Image.fromarray(pixels).convert("L")
    factor = SIDE / min(grey.size)
    if factor < 1:
        width, height = (max(1, round(side * factor)) for side in grey.size)
        grey = grey.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    values = np.asarray(grey, np.float32)
    edged = np.pad(values, 1, mode="edge")
    laplacian = edged[:-2, 1:-1] + edged[2:, 1:-1] + edged[1:-1, :-2] + edged[1:-1, 2:] - 4 * values
    return np.array(
        [
            laplacian.var(dtype=np.float64),
            values.mean(dtype=np.float64) / 255,
            values.std(dtype=np.float64) / 255,
        ]
    )


def _to_nearest_other(
    gallery: SearchableGallery, ids: np.ndarray, *, among: np.ndarray | None, exact: bool = False
) -> np.ndarray:
    """Return the score of the nearest other item of each of some items, float32 [n]; NaN if it is gone."""
    vectors = gallery.vectors(ids.tolist())
    there = np.array([number in vectors for number in ids.tolist()], bool)
    nearest = np.full(len(ids), np.nan, np.float32)
    if there.any():
        queries = np.stack([vectors[number] for number in ids[there].tolist()])
        found, scores = gallery.neighbours(among, exact=exact)(queries, 2)
        own = found == ids[there, None]
        own[~own.any(1), 1] = True  # of two equal vectors, the search may leave out the item itself
        nearest[there] = np.where(own[:, 0], scores[:, 1], scores[:, 0])
    return nearest


def _correct_similarities(
    gallery: SearchableGallery, ids: np.ndarray, among: np.ndarray | None, scores: np.ndarray, limit: float
) -> None:
    """Replace scores below a limit by exact ones: an index may have missed the nearest other item."""
    lonely = np.flatnonzero(scores < limit)
    for some in (lonely[start : start + _CHUNK] for start in range(0, len(lonely), _CHUNK)):
        scores[some] = _to_nearest_other(gallery, ids[some], among=among, exact=True)


def _limits(values: Mapping[str, np.ndarray], thresholds: Mapping[str, float]) -> dict[str, float | None]:
    """Return the threshold of each fault by its name."""
    return {
        fault.name: thresholds.get(fault.name, fault.threshold(values[fault.measure])) for fault in FAULTS
    }


def _inspection(
    gallery: SearchableGallery,
    ids: np.ndarray,
    values: Mapping[str, np.ndarray],
    limits: Mapping[str, float | None],
    unreadable: list[tuple[Item, ImageError]],
) -> Inspection:
    worst: list[np.ndarray] = []  # positions in ids
    for fault in FAULTS:
        measured = values[fault.measure]
        limit = limits[fault.name]
        severity = np.zeros(len(ids)) if limit is None else fault.severity(measured, limit)
        faulty = np.flatnonzero(severity > 0)
        worst.append(faulty[np.argsort(-severity[faulty], kind="stable")])
    shown = np.unique(np.concatenate(worst))
    items = gallery.items(ids[shown].tolist())
    findings = [
        Finding(
            fault,
            limits[fault.name],
            [
                (items[int(ids[at])], float(values[fault.measure][at]))
                for at in found
                if int(ids[at]) in items
            ],
        )
        for fault, found in zip(FAULTS, worst, strict=True)
    ]
    measures = {int(ids[at]): {name: float(column[at]) for name, column in values.items()} for at in shown}
    known = {name: column[np.isfinite(column)] for name, column in values.items()}
    quantiles = {n: np.quantile(v, [0.01, 0.5, 0.99]).tolist() for n, v in known.items() if len(v)}
    return Inspection(len(ids), findings, measures, quantiles, unreadable)
