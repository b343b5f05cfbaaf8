"""Run a Lookalike model file: pictures in, unit vectors out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image

from retrieval.errors import InputError
from retrieval.images import ImageSource, load_image
from retrieval.preprocess import Preprocess

FORMAT_VERSION = 1
_KEYS = ("lookalike.format", "lookalike.preprocess", "lookalike.embedding", "lookalike.provenance")


class Embedder:
    """An ONNX file made by `lookalike export`, ready to embed pictures.

    Args:
        path: the model file.
        threads: threads inside one inference; 0 lets ONNX Runtime choose.

    Raises:
        InputError: no such file, not ONNX, not one of ours, or made by a newer version.
    """

    def __init__(self, path: str | Path, *, threads: int = 0) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise InputError(
                f"{self.path}: there is no such model file; `lookalike export RUN --out FILE` makes one"
            )
        data = self.path.read_bytes()
        self.fingerprint = hashlib.sha256(data).hexdigest()
        self._session = _session(self.path, data, threads)
        metadata = _metadata(self.path, self._session)
        self.preprocess = Preprocess.from_dict(metadata["lookalike.preprocess"])
        self.dim = int(metadata["lookalike.embedding"]["dim"])
        self.provenance: dict[str, Any] = metadata["lookalike.provenance"]

    @property
    def provider(self) -> str:
        """The execution provider in use, in ONNX Runtime's words."""
        return str(self._session.get_providers()[0])

    def embed(self, images: Iterable[ImageSource], *, batch_size: int = 32) -> np.ndarray:
        """Pictures (paths, bytes, Pillow images or arrays) -> float32 [N, dim], unit length.

        A single picture may be passed as it is and gives [1, dim]. Memory is bounded by `batch_size`.

        Raises:
            ImageError: the first picture that cannot be read.
        """
        if isinstance(images, (str, bytes, Path, Image.Image, np.ndarray)):
            images = [images]
        batches = [self.embed_pixels(batch) for batch in _batches(map(self.pixels, images), batch_size)]
        return np.concatenate(batches) if batches else np.empty((0, self.dim), np.float32)

    def pixels(self, image: ImageSource) -> np.ndarray:
        """Load and preprocess one picture -> uint8 [H, W, 3], as the model takes it."""
        return self.preprocess(load_image(image))

    def embed_pixels(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Preprocessed pictures uint8 [N, H, W, 3] -> float32 [N, dim], unit length. Threads may share it."""
        if len(pixels) == 0:
            return np.empty((0, self.dim), np.float32)
        images = np.ascontiguousarray(pixels)  # [N, H, W, 3]
        return self._session.run(["embedding"], {"images": images})[0]


def _batches(items: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _session(path: Path, data: bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Idle threads that spin cost more than they save next to a web server or a decoder pool.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    providers = [p for p in wanted if p in ort.get_available_providers()]
    try:
        return ort.InferenceSession(data, options, providers=providers)
    except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
        reason = str(error).splitlines()[0][:160]
        raise InputError(f"{path}: not a complete ONNX model ({reason}); export it again") from error


def _metadata(path: Path, session: ort.InferenceSession) -> dict[str, Any]:
    properties = session.get_modelmeta().custom_metadata_map
    if not all(key in properties for key in _KEYS):
        raise InputError(f"{path}: an ONNX model, but not one made by `lookalike export`")
    metadata = {key: json.loads(properties[key]) for key in _KEYS}
    version = metadata["lookalike.format"]["version"]
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path}: format {version}, this program reads up to {FORMAT_VERSION}; update lookalike"
        )
    return metadata
