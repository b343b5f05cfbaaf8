"""Detectors: ONNX models of others that say where things are in a picture.

Read are the usual shapes, for one picture: boxes [N, 4] beside scores [N] or [N, C], as torchvision and
TensorFlow have them; rows of left, top, right, bottom, score and class, as models with their own
suppression have them; and the raw output of YOLO, [5 + C, N] or [4 + C, N] in either order. Classes do not
matter here. Coordinates are pixels of the model's input, or fractions if none is above 2.

A gallery whose items are the boxes of a detector has a copy of its file, and its SHA-256 in the manifest.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, has_sha256
from retrieval.images.resampling import resample
from retrieval.model.runtime import Runtime
from retrieval.model.sessions import open_session, reason
from retrieval.search.regions import MOST_TILES, suppressed

NAME = "detector.onnx"  # in a gallery folder
_SIDE, _STEP = 640, 32  # pixels: longer side of an input of any size, and what its sides are multiples of
_MOST_SIDE = 4096
_LEAST_SCORE = 0.25
_CONSIDERED = 1000  # boxes that are compared with each other
_OVERLAP = 0.5  # intersection over union of boxes of one thing
_LEAST = 0.01  # side of a box, of that of the picture
_FRACTIONS = 2.0  # highest coordinate that is a fraction
_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32, "tensor(float16)": np.float16}


class Detector:
    """A detector with one input, uint8 or floats from 0 to 1, RGB, channels first or last.

    Attributes:
        path: Path of the file.
        fingerprint: SHA-256 of the file.
        side: Shorter side of a picture, in pixels, at which it has no fewer of them than the input.

    Args:
        file: ONNX model.
        runtime: Device, provider and threads.

    Raises:
        InputError: The file cannot be read, is no complete ONNX model, takes weights from other files, or
            does not have one input of pictures.
    """

    def __init__(self, file: str | Path, runtime: Runtime | None = None) -> None:
        self.path = Path(file)
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); name an ONNX file") from error
        self.fingerprint = hashlib.sha256(data).hexdigest()
        self._session = open_session(self.path, data, runtime or Runtime())
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) != 4 or inputs[0].type not in _TYPES or shape[0] not in (1, None, *_names(shape)):
            got = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs) or "none"
            what = "a detector has one input of one picture, uint8 or float [1, 3, H, W] or [1, H, W, 3]"
            raise InputError(f"{self.path}: {what}; this model has {got[:200]}")
        self._name, self._type = inputs[0].name, _TYPES[inputs[0].type]
        self._channels_last = shape[3] == 3 or (shape[1] != 3 and self._type == np.uint8)
        self._height, self._width = (
            side if isinstance(side, int) and side > 0 else None
            for side in (shape[1:3] if self._channels_last else shape[2:])
        )
        if max(self._height or 0, self._width or 0) > _MOST_SIDE:
            raise InputError(f"{self.path}: its input has a side of over {_MOST_SIDE} pixels")
        self.side = max(self._height or _SIDE, self._width or _SIDE)

    def boxes(self, image: np.ndarray) -> np.ndarray:
        """Return where things are in an upright RGB image, uint8 [H, W, 3].

        Returns:
            At most 15 boxes that overlap each other by less than half, best first, float64 [n, 4]: left, top,
            right and bottom, as fractions.

        Raises:
            InputError: The model fails, or its outputs have no shape that is known.
        """
        height, width, _ = image.shape
        scale = _SIDE / max(height, width)
        shape = (
            self._width or max(1, round(scale * width / _STEP)) * _STEP,
            self._height or max(1, round(scale * height / _STEP)) * _STEP,
        )
        pixels = resample(image, (0, 0, width, height), shape, "bilinear")
        given = pixels if self._type == np.uint8 else (pixels / 255).astype(self._type)
        if not self._channels_last:
            given = given.transpose(2, 0, 1)
        names = [output.name for output in self._session.get_outputs()]
        try:
            found = self._session.run(None, {self._name: np.ascontiguousarray(given[None])})
        except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
            raise InputError(f"{self.path}: the detector fails ({reason(error)})") from error
        outputs = {name: np.asarray(one) for name, one in zip(names, found, strict=True)}
        read = _read(outputs)
        if read is None:
            shapes = ", ".join(f"{name} {list(one.shape)}" for name, one in outputs.items())
            what = "its outputs are neither boxes with scores nor rows of boxes"
            raise InputError(f"{self.path}: {what}: {shapes[:200]}; docs/objects.md has what is read")
        return _chosen(*read, *shape)


def keep_detector(folder: Path, detector: Detector) -> None:
    """Copy the file of a detector into a gallery folder."""
    if not has_sha256(folder / NAME, detector.fingerprint):
        with atomic_write(folder / NAME) as draft:
            shutil.copyfile(detector.path, draft)


def own_detector(folder: Path, fingerprint: str, runtime: Runtime) -> Detector:
    """Load the detector of a gallery.

    Args:
        folder: Gallery folder.
        fingerprint: SHA-256 of the detector's file.
        runtime: Device, provider and threads.

    Raises:
        LookalikeError: The file is missing, or is another one.
    """
    file = folder / NAME
    if not file.exists():
        what = f"{file}: missing, the detector by which this gallery divides pictures"
    elif not has_sha256(file, fingerprint):
        what = f"{file}: not the detector by which this gallery divides pictures"
    else:
        return Detector(file, runtime)
    raise LookalikeError(f"{what}; copy the ONNX file with the SHA-256 {fingerprint[:12]}... there")


def _names(shape: list[int | str | None]) -> tuple[str, ...]:
    """Return the names of dimensions of any size."""
    return tuple(side for side in shape if isinstance(side, str))


def _read(outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return corners, float64 [n, 4], and scores, [n], of the outputs of a detector; `None` if unknown."""
    numbers = {
        name: array[0] if array.ndim >= 2 and array.shape[0] == 1 else array
        for name, array in outputs.items()
        if array.dtype.kind in "fiu"
    }
    for name, boxes in numbers.items():
        if boxes.ndim == 2 and boxes.shape[1] == 4:
            scores = _scores(numbers, name, len(boxes))
            if scores is not None:
                across = (
                    [1, 0, 3, 2] if name.startswith("detection_") else [0, 1, 2, 3]
                )  # TensorFlow: y first
                return boxes[:, across].astype(np.float64), scores
    rows = next((one for one in numbers.values() if one.ndim == 2 and min(one.shape) > 4), None)
    if rows is None:
        rows = next((one for one in numbers.values() if one.ndim == 2 and one.shape[1] in (6, 7)), None)
        if rows is None:
            return None
    if rows.shape[0] < rows.shape[1] and rows.shape[1] > _CONSIDERED // 10:  # YOLO, channels first
        return _centred(rows.T[:, :4]), rows[4:].max(0).astype(np.float64)
    rows = rows.astype(np.float64)
    if rows.shape[1] == 6 and (rows[:, 2:4] >= rows[:, :2]).all():
        return rows[:, :4], rows[:, 4]
    return _centred(rows[:, :4]), rows[:, 4] * (rows[:, 5:].max(1) if rows.shape[1] > 5 else 1)


def _scores(outputs: Mapping[str, np.ndarray], boxes: str, count: int) -> np.ndarray | None:
    """Return the score of each box: of the output that is called so, or else of the first floats."""
    fitting = [
        name
        for name, array in outputs.items()
        if name != boxes and array.ndim in (1, 2) and len(array) == count and array.dtype.kind == "f"
    ]
    fitting.sort(key=lambda name: "score" not in name.lower())
    if not fitting:
        return None
    found = outputs[fitting[0]].astype(np.float64)
    return found if found.ndim == 1 else found.max(1, initial=0.0)


def _centred(boxes: np.ndarray) -> np.ndarray:
    """Return the corners of boxes that are given by centre, width and height."""
    centre, half = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64) / 2
    return np.hstack([centre - half, centre + half])


def _chosen(boxes: np.ndarray, scores: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return the best boxes as fractions, clipped to the picture."""
    kept = np.isfinite(boxes).all(1) & (scores >= _LEAST_SCORE)  # no NaN is above a number
    boxes, scores = boxes[kept], scores[kept]
    if boxes.size and np.abs(boxes).max() > _FRACTIONS:
        boxes = boxes / [width, height, width, height]
    boxes = np.clip(boxes, 0, 1)
    large = ((boxes[:, 2:] - boxes[:, :2]) >= _LEAST).all(1)
    boxes, scores = boxes[large], scores[large]
    first = np.argsort(-scores, kind="stable")[:_CONSIDERED]
    found: np.ndarray = boxes[first][suppressed(boxes[first], scores[first], MOST_TILES, _OVERLAP)]
    return found
