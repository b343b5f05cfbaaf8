"""Calibration of a gallery: the probability that a hit shows the same thing as the query.

A cosine alone says little: at 0.8 most hits are wrong in a gallery of cars and right in one of animals, and
an image like many others has high cosines everywhere. So the probability is a logistic regression on four
cosines: that of the hit, and the highest, the mean and the lowest of the ten nearest images of its query in
the whole gallery. Within a query it rises with the cosine of the hit, and it is the same for every `k`,
filter and grouping. Its ceiling is below 1 where even the highest cosines are wrong sometimes, as with labels
that are finer than what the model sees. `retrieval.evaluation.calibration` fits it; docs/calibration.md has
the measurements.

    calibration.json   in the gallery folder: weights, fingerprint of the model, number of images, quality
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import write_texts

NAME = "calibration.json"
DEPTH = 10  # nearest images of the query that describe it
GROWTH = 1.5  # factor in the number of images beyond which a calibration is stale
_FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """Probability of a hit from cosines.

    Attributes:
        fingerprint: Model of the vectors.
        images: Number of images of the gallery when it was calibrated.
        weights: Weights of the four features of `features`.
        offset: Offset of the logistic regression.
        ceiling: Highest probability, above 0 and up to 1.
        absent: Share of the queries whose thing is not in the gallery, which was assumed.
        created: Time, ISO 8601.
        quality: Numbers of the cross-validation, see `retrieval.evaluation.calibration`.
    """

    fingerprint: str
    images: int
    weights: tuple[float, float, float, float]
    offset: float
    ceiling: float
    absent: float
    created: str
    quality: Mapping[str, Any]

    def probabilities(self, scores: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """Return the probability of each hit, float64 [n].

        Args:
            scores: Cosine of each hit, [n].
            nearest: `summary` of its query, [n, 3].
        """
        logits = features(scores, nearest) @ np.array(self.weights) + self.offset
        return self.ceiling * logistic(logits)

    def is_stale(self, images: int) -> bool:
        """Return whether a gallery of this number of images has grown or shrunk too much."""
        return not self.images / GROWTH <= images <= self.images * GROWTH


def features(scores: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Return the features of hits, float64 [n, 4]; the arguments are those of `Calibration.probabilities`."""
    return np.column_stack([scores, nearest]).astype(np.float64)


def summary(scores: Sequence[float]) -> tuple[float, float, float]:
    """Return the highest, the mean and the lowest of the cosines of a query's nearest images, best first."""
    first = scores[:DEPTH]
    return first[0], sum(first) / len(first), first[-1]


def logistic(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), without overflow."""
    found: np.ndarray = 0.5 * (1 + np.tanh(0.5 * logits))
    return found


class CalibrationFile:
    """Calibration of a gallery folder, read again after the file has changed. Thread-safe.

    Args:
        folder: Gallery folder.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._read: tuple[tuple[int, int, int], Calibration] | None = None

    def read(self) -> Calibration | None:
        """Return the calibration; `None` if there is none.

        Raises:
            LookalikeError: The file is damaged.
        """
        try:
            facts = self._file.stat()
        except FileNotFoundError:
            return None
        version, known = (facts.st_mtime_ns, facts.st_ino, facts.st_size), self._read
        if known is None or known[0] != version:
            self._read = known = version, _parse(self._file)
        return known[1]


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write the calibration of a gallery atomically, in place of an earlier one."""
    write_texts(folder, {NAME: json.dumps({"format": _FORMAT, **asdict(calibration)}, indent=2) + "\n"})


def _parse(file: Path) -> Calibration:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values.pop("format") != _FORMAT:
            raise ValueError
        found = Calibration(**{**values, "weights": tuple(map(float, values["weights"]))})
        if len(found.weights) != 4 or not np.isfinite([*found.weights, found.offset, found.ceiling]).all():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"run `lookalike calibrate {file.parent}`, or delete it"
        raise LookalikeError(f"{file}: damaged, or of another version; {hint}") from error
    return found
