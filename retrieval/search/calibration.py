"""Calibration of a gallery: the probability that a hit shows the same thing as the query.

A cosine alone says little: at 0.8 most hits are wrong in a gallery of cars and right in one of animals, and
an image like many others has high cosines everywhere. So the probability is a logistic regression on five
cosines: that of the hit, and the highest, the second, the mean and the lowest of the ten nearest images of
its query in the whole gallery. Within a query it rises with the cosine of the hit, and it is the same for
every `k`, filter and grouping. Its ceiling is below 1 where even the highest cosines are wrong sometimes, as
with labels that are finer than what the model sees. `retrieval.evaluation.calibration_fit` fits it;
docs/calibration.md has the measurements.

A hit with a cosine of 1 is the picture of the query itself: its probability is 1, and it is none of the ten
nearest, since it says nothing about the others but that the query is of the gallery, which is the last
feature. A changed copy of the query shows by a highest cosine far above the second.

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
from retrieval.files import file_version, write_texts

NAME = "calibration.json"
DEPTH = 10  # nearest images of the query that describe it
SAME = 0.9999  # cosine from which on a hit is the picture of the query: rounding, not another picture
HIGH_ERROR = 0.05  # calibration error on held-out classes at which probabilities are not to be relied on
GROWTH = 1.5  # factor in the number of images beyond which a calibration is stale
_FORMAT, _WITHOUT_COPIES = 2, 1


@dataclass(frozen=True)
class Calibration:
    """Probability of a hit from cosines.

    Attributes:
        fingerprint: Model of the vectors.
        images: Number of images of the gallery when it was calibrated.
        weights: Weights of the six features of `features`.
        offset: Offset of the logistic regression.
        ceiling: Highest probability, above 0 and up to 1.
        absent: Share of the queries whose thing is not in the gallery, which was assumed.
        created: Time, ISO 8601.
        quality: Numbers of the cross-validation, see `retrieval.evaluation.calibration_fit`.
        knows_copies: Whether the file is one that tells copies of the query from its neighbours.
    """

    fingerprint: str
    images: int
    weights: tuple[float, ...]
    offset: float
    ceiling: float
    absent: float
    created: str
    quality: Mapping[str, Any]
    knows_copies: bool = True

    def probabilities(self, scores: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """Return the probability of each hit, float64 [n]: 1 if it is the picture of the query.

        Args:
            scores: Cosine of each hit, [n].
            nearest: `summary` of its query, [n, 5].
        """
        logits = features(scores, nearest) @ np.array(self.weights) + self.offset
        return np.where(scores >= SAME, 1.0, self.ceiling * logistic(logits))

    @property
    def error(self) -> float | None:
        """Calibration error on held-out classes; `None` in a file that does not say it."""
        return self.quality.get("ece")

    @property
    def reliable(self) -> bool | None:
        """Whether the error is low enough to rely on the probabilities; `None` if it is not known."""
        return None if self.error is None else self.error <= HIGH_ERROR

    def is_stale(self, images: int) -> bool:
        """Return whether a gallery of this number of images has grown or shrunk too much."""
        return not self.images / GROWTH <= images <= self.images * GROWTH


def features(scores: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Return the features of hits, float64 [n, 6]; the arguments are those of `Calibration.probabilities`."""
    return np.column_stack([scores, nearest]).astype(np.float64)


def summary(scores: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Summarize the cosines of a query's nearest images, best first.

    Returns:
        The highest, the second, the mean and the lowest of the ten nearest that are not the picture of the
        query, and 1 if that picture is among the nearest, else 0.
    """
    first = [score for score in scores if score < SAME][:DEPTH] or [0.0]
    copied = float(len(scores) > 0 and scores[0] >= SAME)
    return first[0], first[min(1, len(first) - 1)], sum(first) / len(first), first[-1], copied


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
        self._name = str(self._file)
        self._read: tuple[tuple[int, int, int], Calibration | None] | None = None

    def read(self) -> Calibration | None:
        """Return the calibration; `None` if there is none, or a damaged one that was reported already.

        Raises:
            LookalikeError: The file is damaged; once for each of its versions.
        """
        version, known = file_version(self._name), self._read
        if version is None:
            return None
        if known is None or known[0] != version:
            self._read = version, None
            self._read = known = version, _parse(self._file)
        return known[1]


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write the calibration of a gallery atomically; what killed runs have left of theirs is deleted."""
    for draft in folder.glob(f"{NAME}.tmp-*"):
        draft.unlink(missing_ok=True)
    write_texts(folder, {NAME: json.dumps({"format": _FORMAT, **asdict(calibration)}, indent=2) + "\n"})


def _parse(file: Path) -> Calibration:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        version, weights = values.pop("format"), [float(one) for one in values["weights"]]
        if version == _WITHOUT_COPIES:  # no second cosine, and nothing about copies
            score, highest, mean, lowest = weights
            weights, values["knows_copies"] = [score, highest, 0.0, mean, lowest, 0.0], False
        elif version != _FORMAT:
            raise ValueError
        found = Calibration(**{**values, "weights": tuple(weights)})
        if len(weights) != 6 or not np.isfinite([*weights, found.offset, found.ceiling]).all():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = f"run `lookalike calibrate {file.parent}`, or delete it"
        raise LookalikeError(f"{file}: damaged, or of another version; {hint}") from error
    return found
