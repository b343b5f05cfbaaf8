"""Run a Lookalike model file: pictures in, unit vectors out."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from PIL import Image

from retrieval.errors import InputError, LookalikeError
from retrieval.images.load import ImageSource, load_image
from retrieval.images.preprocess import Preprocess

FORMAT_VERSION = 1
_PREFIX = "lookalike."
_PARTS = ("format", "preprocess", "embedding", "provenance")

# What of a batch runs at once: memory grows with it; a CPU is no faster beyond 8, a GPU wants more.
_LARGEST_RUN = 64
_MIN_REPETITIONS = 3  # of a latency measurement

_CPU = "CPUExecutionProvider"
# By our name: ONNX Runtime's name, and what it takes to have it.
_ACCELERATORS = {
    "tensorrt": (
        "TensorrtExecutionProvider",
        "an NVIDIA GPU with driver, CUDA, cuDNN and TensorRT, and `uv pip install 'lookalike[gpu]'`",
    ),
    "cuda": (
        "CUDAExecutionProvider",
        "an NVIDIA GPU with driver, CUDA and cuDNN, and `uv pip install 'lookalike[gpu]'`",
    ),
    "coreml": ("CoreMLExecutionProvider", "a Mac, where onnxruntime comes with it"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino in place of onnxruntime"),
}
_AUTO = ("cuda", "coreml", "openvino")
PROVIDERS = ("auto", *_ACCELERATORS, "cpu")


class Embedder:
    """An ONNX file made by `lookalike export`, ready to embed pictures.

    Args:
        file: the model file.
        provider: what to run it on: "tensorrt", "cuda", "coreml", "openvino", "cpu"; or "auto", the first
            that works of CUDA, CoreML, OpenVINO and the CPU. Where the one asked for does not work, a line
            on stderr says so and the CPU takes over.
        threads: threads inside one inference on the CPU; `None` lets ONNX Runtime choose.

    Attributes:
        fingerprint: SHA-256 of the file.
        preprocess: how to make pixels of a picture for it.
        dim: length D of an embedding.
        has_map: whether the graph also gives `embedding_map`, float32 [N, h, w, D].
        metadata: what the file says about itself, by part: "format", "preprocess", "embedding", "provenance".
        provenance: where the model comes from.

    Raises:
        InputError: no such file, not ONNX, damaged, not one of ours, or made by a newer version; or a
            provider that does not exist, or fewer than one thread.
    """

    def __init__(self, file: str | Path, *, provider: str = "auto", threads: int | None = None) -> None:
        if provider not in PROVIDERS:
            raise InputError(f"provider {provider!r}: no such thing; known: {', '.join(PROVIDERS)}")
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        self.path = Path(file)
        data = _read(self.path)
        self.fingerprint = hashlib.sha256(data).hexdigest()
        self._session = _session(self.path, data, provider, threads)
        self.metadata = _metadata(self.path, self._session)
        try:
            self.preprocess = Preprocess.from_dict(self.metadata["preprocess"])
            self.dim = int(self.metadata["embedding"]["dim"])
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise _damaged(self.path, error) from error
        self.provenance = self.metadata["provenance"]
        self.has_map = any(output.name == "embedding_map" for output in self._session.get_outputs())
        self._check_graph()

    @property
    def provider(self) -> str:
        """The execution provider in use, in ONNX Runtime's words."""
        return str(self._session.get_providers()[0])

    def embed(self, images: Iterable[ImageSource], *, batch_size: int = 32) -> np.ndarray:
        """Pictures (paths, bytes, Pillow images or arrays) -> float32 [N, dim], unit length.

        A single picture may be passed as it is and gives [1, dim]. Memory is bounded by `batch_size`.

        Raises:
            ImageError: the first picture that cannot be read.
            InputError: a batch size below 1.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if isinstance(images, (str, bytes, Path, Image.Image, np.ndarray)):
            images = [images]
        batches = [self.embed_pixels(batch) for batch in _batches(map(self.pixels, images), batch_size)]
        return np.concatenate(batches) if batches else np.empty((0, self.dim), np.float32)

    def pixels(self, image: ImageSource) -> np.ndarray:
        """Load and preprocess one picture -> uint8 [S, S, 3], as the model takes it."""
        return self.preprocess(load_image(image, side=self.preprocess.scaled))

    def embed_pixels(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Preprocessed pictures uint8 [N, S, S, 3] -> float32 [N, dim], unit length.

        Any N: many are run in several parts, so that memory stays bounded. Threads may share it.

        Raises:
            InputError: pixels of another type or shape; or a model that is not what its metadata say.
            LookalikeError: the model fails on this machine, as where a GPU has too little memory.
        """
        starts = range(0, len(pixels), _LARGEST_RUN)
        parts = [self._run(pixels[start : start + _LARGEST_RUN], "embedding")[0] for start in starts]
        return np.concatenate(parts) if parts else np.empty((0, self.dim), np.float32)

    def embed_maps(self, pixels: Sequence[np.ndarray] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Preprocessed pictures uint8 [N, S, S, 3] -> embeddings [N, dim] and their maps [N, h, w, dim].

        The mean of a map over its places, scaled to unit length, is the embedding. All run at once.

        Raises:
            InputError, LookalikeError: as `embed_pixels`; and a model without a map.
        """
        if not self.has_map:
            what = "its embedding is not the mean over places; use one trained with model.pooling mean"
            raise InputError(f"{self.path}: this model has no embedding map: {what}")
        vectors, maps = self._run(pixels, "embedding", "embedding_map")
        return vectors, maps

    def _run(self, pixels: Sequence[np.ndarray] | np.ndarray, *outputs: str) -> list[np.ndarray]:
        """The outputs of the graph, of which the first is the embedding."""
        side = self.preprocess.size
        try:
            images = np.ascontiguousarray(pixels)  # [n, S, S, 3]
        except ValueError as error:  # NumPy finds no common shape
            raise InputError(f"pixels must be uint8 [N, {side}, {side}, 3], got various shapes") from error
        if images.dtype != np.uint8 or images.shape[1:] != (side, side, 3):
            got = f"{images.dtype} {list(images.shape)}"
            raise InputError(f"pixels must be uint8 [N, {side}, {side}, 3], got {got}")
        try:
            found = self._session.run(list(outputs), {"images": images})
        except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
            what = f"the model failed on {self.provider} with {len(images)} pictures ({_reason(error)})"
            other = "export it again" if self.provider == _CPU else "free the device's memory, or use the CPU"
            raise LookalikeError(f"{self.path}: {what}; {other}") from error
        if found[0].shape != (len(images), self.dim):  # a graph need not declare it
            got = f"it gives {list(found[0].shape)} for {len(images)} pictures"
            raise InputError(
                f"{self.path}: {got}, and its metadata say {self.dim} a picture; export it again"
            )
        return found

    def _check_graph(self) -> None:
        """Refuse a graph that is not what the metadata say."""
        side = self.preprocess.size
        wanted = {
            "images": ("tensor(uint8)", ("N", side, side, 3)),
            "embedding": ("tensor(float)", ("N", self.dim)),
        }
        if self.has_map:
            wanted["embedding_map"] = ("tensor(float)", ("N", "h", "w", self.dim))
        ends = {end.name: end for end in (*self._session.get_inputs(), *self._session.get_outputs())}
        for name, (kind, shape) in wanted.items():
            end = ends.get(name)
            if end is None or end.type != kind or not _fits(end.shape, shape):
                got = "missing" if end is None else f"{end.type} {end.shape}"
                need = f"should be {kind} [{', '.join(map(str, shape))}], but is {got}"
                raise InputError(
                    f"{self.path}: its graph does not fit its metadata: {name} {need}; export it again"
                )


def measure_latency(embedder: Embedder, batch: int, *, seconds: float = 1.0) -> float:
    """Return the median time in seconds to embed a batch of noise, uint8 [batch, S, S, 3], without decoding.

    A first run, which allocates memory and on some devices compiles the graph, is not counted.

    Args:
        embedder: Model to measure.
        batch: Batch size, at least 1.
        seconds: Minimum duration of the measurement; there are at least three repetitions in any case.

    Raises:
        InputError: The batch size is below 1.
    """
    if batch < 1:
        raise InputError(f"batch size: must be at least 1, got {batch}")
    side = embedder.preprocess.size
    pixels = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), np.uint8)
    embedder.embed_pixels(pixels)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _MIN_REPETITIONS or time.perf_counter() < end:
        start = time.perf_counter()
        embedder.embed_pixels(pixels)
        times.append(time.perf_counter() - start)
    return median(times)


def _batches(items: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _fits(shape: Sequence[Any], wanted: Sequence[int | str]) -> bool:
    """Whether a declared shape can be the wanted one: "N" has to be free, other names may be anything."""
    return len(shape) == len(wanted) and all(
        not isinstance(have, int) or (want != "N" if isinstance(want, str) else have == want)
        for have, want in zip(shape, wanted, strict=True)
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        what = "there is no such model file; `lookalike export RUN --out FILE` makes one"
        raise InputError(f"{path}: {what}") from error
    except IsADirectoryError as error:
        what = "a folder, not a model file; `lookalike export RUN --out FILE` makes one of a training run"
        raise InputError(f"{path}: {what}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


# ---- what it runs on


def _session(path: Path, data: bytes, provider: str, threads: int | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # what goes wrong comes as an exception too
    # Idle threads that spin cost more than they save next to a web server or a decoder pool.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    offered = ort.get_available_providers()
    candidates = [name for name in _AUTO if _ACCELERATORS[name][0] in offered]
    if provider != "auto":
        candidates = [] if provider == "cpu" else [provider]
    for name in candidates:
        session = _accelerated(data, options, _ACCELERATORS[name][0], offered)
        if session is not None:
            return session
    try:
        session = ort.InferenceSession(data, options, providers=[_CPU])
    except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
        raise InputError(f"{path}: not a complete ONNX model ({_reason(error)}); export it again") from error
    for name in candidates:
        _say_once(f"{name} does not work here, so the CPU runs the model; it takes {_ACCELERATORS[name][1]}")
    return session


def _accelerated(
    data: bytes, options: ort.SessionOptions, kind: str, offered: Sequence[str]
) -> ort.InferenceSession | None:
    """A session on an accelerator; `None` where that cannot be, whether it raises or is passed over."""
    if kind not in offered:
        return None
    # What the accelerator leaves over goes to CUDA (for TensorRT), and then to the CPU.
    rest = [other for other in ("CUDAExecutionProvider", _CPU) if other in offered and other != kind]
    ort.set_default_logger_severity(4)  # it tells of missing libraries at length
    try:
        if "CUDAExecutionProvider" in offered:
            with redirect_stdout(io.StringIO()):  # results are for stdout
                ort.preload_dlls()  # CUDA as pip installs it, which no loader finds by itself
        # Its own fallback prints on stdout.
        session = ort.InferenceSession(data, options, providers=[kind, *rest], enable_fallback=0)
    except Exception:
        return None
    finally:
        ort.set_default_logger_severity(2)
    return session if session.get_providers()[0] == kind else None


@cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


# ---- what it says about itself


def _metadata(path: Path, session: ort.InferenceSession) -> dict[str, Any]:
    """All of the file's own metadata, by part."""
    properties = session.get_modelmeta().custom_metadata_map
    if _PREFIX + "format" not in properties:
        raise InputError(f"{path}: an ONNX model, but not one made by `lookalike export`")
    ours = {key.removeprefix(_PREFIX): text for key, text in properties.items() if key.startswith(_PREFIX)}
    try:
        version = int(json.loads(ours["format"])["version"])
        if version <= FORMAT_VERSION:
            metadata = {part: json.loads(ours[part]) for part in dict.fromkeys((*_PARTS, *ours))}
            if all(isinstance(part, dict) for part in metadata.values()):
                return metadata
            raise TypeError("a list or a value in place of an object")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    raise InputError(f"{path}: format {version}, this program reads up to {FORMAT_VERSION}; update lookalike")


def _damaged(path: Path, error: Exception) -> InputError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return InputError(f"{path}: its metadata are damaged ({reason}); export it again")
