"""Embedder: run an exported ONNX model; images in, unit vectors out."""

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
from retrieval.images.decode import BATCH
from retrieval.images.load import ImageSource, load_image
from retrieval.images.preprocess import Preprocess
from retrieval.installation import report_idle_gpu

FORMAT_VERSION = 1
_PREFIX = "lookalike."
_PARTS = ("format", "preprocess", "embedding", "provenance")

_MAX_RUN = 64  # images per run of the graph on an accelerator, and in memory for it
_RUN_SIZES = (1, 2, 4, 8, 16, 32)  # images per run of the graph on a CPU, from which the fastest is taken
_USUAL_SIZE = 8  # before they are measured
_GROUPS = 2  # groups of images measured per size
_MIN_GROUP = 16  # images of such a group, at least
_MIN_REPETITIONS = 3  # of a latency measurement

_CPU = "CPUExecutionProvider"
# Our name -> ONNX Runtime's name, requirements.
_ACCELERATORS = {
    "tensorrt": (
        "TensorrtExecutionProvider",
        "an NVIDIA GPU with driver, CUDA, cuDNN and TensorRT, and `pip install 'lookalike[gpu]'`",
    ),
    "cuda": (
        "CUDAExecutionProvider",
        "an NVIDIA GPU with driver, CUDA and cuDNN, and `pip install 'lookalike[gpu]'`",
    ),
    "coreml": ("CoreMLExecutionProvider", "a Mac"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino instead of onnxruntime"),
}
_AUTO = ("cuda", "coreml", "openvino")
PROVIDERS = ("auto", *_ACCELERATORS, "cpu")


class Embedder:
    """Model file written by `lookalike export`, loaded for inference.

    Args:
        file: Model file.
        provider: Execution provider: "tensorrt", "cuda", "coreml", "openvino" or "cpu"; "auto" takes the
            first of CUDA, CoreML, OpenVINO and the CPU that works. If the provider does not work, the CPU
            runs the model, with one line on stderr.
        threads: Threads per inference on the CPU; `None` lets ONNX Runtime choose.

    Attributes:
        path: Path of the file.
        fingerprint: SHA-256 of the file.
        preprocess: Preprocessing of the model's input.
        dim: Length D of an embedding.
        has_map: The graph has the output `embedding_map`, float32 [N, h, w, D].
        metadata: Metadata of the file, by part: "format", "preprocess", "embedding", "provenance".
        provenance: Origin of the model: training run or pretrained backbone.

    Raises:
        InputError: The file does not exist, is damaged, is not a Lookalike model or has a newer format; or
            the provider is unknown, or `threads` is below 1.
    """

    def __init__(self, file: str | Path, *, provider: str = "auto", threads: int | None = None) -> None:
        if provider not in PROVIDERS:
            raise InputError(f"provider {provider!r}: unknown; known: {', '.join(PROVIDERS)}")
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        self.path = Path(file)
        data = _read(self.path)
        self.fingerprint = hashlib.sha256(data).hexdigest()
        self._session = _session(self.path, data, provider, threads)
        # An accelerator is fastest with large batches, and compiles or tunes its kernels for each new size.
        self._run_size = _RunSize() if self.provider == _CPU else None
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
        """Execution provider in use, by ONNX Runtime's name."""
        return str(self._session.get_providers()[0])

    def embed(self, images: Iterable[ImageSource], *, batch_size: int = 32) -> np.ndarray:
        """Embed images.

        Args:
            images: Paths, bytes of files, Pillow images or arrays; or one image, which gives [1, dim].
            batch_size: Images in memory at a time.

        Returns:
            Embeddings of unit length, float32 [N, dim].

        Raises:
            ImageError: An image cannot be read.
            InputError: The batch size is below 1.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        if isinstance(images, (str, bytes, Path, Image.Image, np.ndarray)):
            images = [images]
        batches = [self.embed_pixels(batch) for batch in _batches(map(self.pixels, images), batch_size)]
        return np.concatenate(batches) if batches else np.empty((0, self.dim), np.float32)

    def pixels(self, image: ImageSource) -> np.ndarray:
        """Load and preprocess one image; return the model input, uint8 [S, S, 3]."""
        return self.preprocess(load_image(image, side=self.preprocess.scaled))

    def embed_pixels(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Embed preprocessed images. Thread-safe; large N runs in several parts to bound the memory.

        A CPU runs the graph with the number of images that is fastest here, measured with the first few
        hundred images. Vectors differ by rounding (below 1e-5) between such numbers.

        Args:
            pixels: Preprocessed images, uint8 [N, S, S, 3].

        Returns:
            Embeddings of unit length, float32 [N, dim].

        Raises:
            InputError: The pixels have another type or shape, or the model contradicts its metadata.
            LookalikeError: The model fails on this machine, for example because a GPU is out of memory.
        """
        group = _MAX_RUN if self._run_size is None else BATCH
        starts = range(0, len(pixels), group)
        parts = [self._embed_group(self._checked(pixels[start : start + group])) for start in starts]
        return np.concatenate(parts) if parts else np.empty((0, self.dim), np.float32)

    def embed_in_one_run(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Embed preprocessed images as one batch, for measurements; as `embed_pixels` otherwise."""
        return self._run(pixels, "embedding")[0]

    def _embed_group(self, images: np.ndarray) -> np.ndarray:
        """Embed a few images, uint8 [n, S, S, 3]: with the fastest size of a run on a CPU, or in one run."""
        if self._run_size is None:
            return self.embed_in_one_run(images)
        size = self._run_size.choose(len(images))
        began = time.thread_time()
        parts = [self.embed_in_one_run(images[at : at + size]) for at in range(0, len(images), size)]
        self._run_size.record(size, len(images), time.thread_time() - began)
        return np.concatenate(parts)

    def embed_maps(self, pixels: Sequence[np.ndarray] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Embed preprocessed images with their per-location embeddings, in one run.

        The mean of a map over its locations, normalized, is the embedding.

        Args:
            pixels: Preprocessed images, uint8 [N, S, S, 3].

        Returns:
            Embeddings, float32 [N, dim], and embedding maps, float32 [N, h, w, dim].

        Raises:
            InputError: The model has no embedding map; or as for `embed_pixels`.
            LookalikeError: As for `embed_pixels`.
        """
        if not self.has_map:
            raise InputError(
                f"{self.path}: this model has no embedding map, because its embedding is not a mean over "
                "locations; use a model trained with model.pooling mean"
            )
        vectors, maps = self._run(pixels, "embedding", "embedding_map")
        return vectors, maps

    def _run(self, pixels: Sequence[np.ndarray] | np.ndarray, *outputs: str) -> list[np.ndarray]:
        """Run the graph and return the named outputs, of which the first is the embedding."""
        images = self._checked(pixels)
        try:
            found: list[np.ndarray] = self._session.run(list(outputs), {"images": images})
        except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
            what = f"the model failed on {self.provider} with {len(images)} images ({_reason(error)})"
            remedy = (
                "export it again" if self.provider == _CPU else "free the device's memory, or use the CPU"
            )
            raise LookalikeError(f"{self.path}: {what}; {remedy}") from error
        if found[0].shape != (len(images), self.dim):  # a graph need not declare it
            got = f"the output is {list(found[0].shape)} for {len(images)} images"
            raise InputError(f"{self.path}: {got}, but the metadata has dim {self.dim}; export it again")
        return found

    def _checked(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return images as one contiguous array, uint8 [N, S, S, 3]; raise an `InputError` for others."""
        side = self.preprocess.size
        try:
            images = np.ascontiguousarray(pixels)
        except ValueError as error:  # NumPy finds no common shape
            raise InputError(f"pixels must be uint8 [N, {side}, {side}, 3], got different shapes") from error
        if images.dtype != np.uint8 or images.shape[1:] != (side, side, 3):
            got = f"{images.dtype} {list(images.shape)}"
            raise InputError(f"pixels must be uint8 [N, {side}, {side}, 3], got {got}")
        return images

    def _check_graph(self) -> None:
        """Raise an `InputError` if the graph does not have the inputs and outputs of the metadata."""
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
                    f"{self.path}: the graph contradicts the metadata: {name} {need}; export it again"
                )


class _RunSize:
    """Fastest number of images per run of the graph on a CPU, found while embedding, without extra runs.

    Each size embeds `_GROUPS` groups of images, in turn; the shortest time per image of each counts. Times
    are CPU times of the calling thread, which does its share of each run: like the wall time of an idle
    machine, but not disturbed by other processes and by decoding threads.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, list[float]] = {size: [] for size in _RUN_SIZES}

    def choose(self, count: int) -> int:
        """Return the images per run for a group of `count` images."""
        if count >= _MIN_GROUP:
            fitting = [size for size in _RUN_SIZES if size <= count]
            rarest = min(fitting, key=lambda size: len(self._seconds[size]))
            if len(self._seconds[rarest]) < _GROUPS:
                return rarest
        measured = {size: min(seconds) for size, seconds in self._seconds.items() if seconds}
        return min(measured, key=measured.__getitem__, default=_USUAL_SIZE)

    def record(self, size: int, count: int, seconds: float) -> None:
        """Record the time of a group of `count` images."""
        if count >= max(_MIN_GROUP, size) and len(self._seconds[size]) < _GROUPS:
            self._seconds[size].append(seconds / count)


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
    embedder.embed_in_one_run(pixels)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _MIN_REPETITIONS or time.perf_counter() < end:
        start = time.perf_counter()
        embedder.embed_in_one_run(pixels)
        times.append(time.perf_counter() - start)
    return median(times)


def _batches(items: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def _fits(shape: Sequence[Any], wanted: Sequence[int | str]) -> bool:
    """Return whether a declared shape matches: dimension "N" must be dynamic, other names match anything."""
    return len(shape) == len(wanted) and all(
        not isinstance(have, int) or (want != "N" if isinstance(want, str) else have == want)
        for have, want in zip(shape, wanted, strict=True)
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        what = "there is no such model file; create one with `lookalike export RUN --out FILE`"
        raise InputError(f"{path}: {what}") from error
    except IsADirectoryError as error:
        what = "a folder, not a model file; export a training run with `lookalike export RUN --out FILE`"
        raise InputError(f"{path}: {what}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


# ---- execution providers


def _session(path: Path, data: bytes, provider: str, threads: int | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # errors are raised as exceptions as well
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
        _print_once(
            f"{name} does not work here, so the CPU runs the model; it needs {_ACCELERATORS[name][1]}"
        )
    if provider == "auto":
        report_idle_gpu("onnxruntime")
    return session


def _accelerated(
    data: bytes, options: ort.SessionOptions, kind: str, offered: Sequence[str]
) -> ort.InferenceSession | None:
    """Return a session on an accelerator; `None` if ONNX Runtime fails or silently falls back."""
    if kind not in offered:
        return None
    # Operators that the accelerator does not support run on CUDA (for TensorRT) or the CPU.
    rest = [other for other in ("CUDAExecutionProvider", _CPU) if other in offered and other != kind]
    ort.set_default_logger_severity(4)  # it logs missing libraries at length
    try:
        if "CUDAExecutionProvider" in offered:
            with redirect_stdout(io.StringIO()):  # stdout is for results
                ort.preload_dlls()  # CUDA libraries from pip packages, which the dynamic loader does not find
        # ONNX Runtime's own fallback would print on stdout.
        session = ort.InferenceSession(data, options, providers=[kind, *rest], enable_fallback=0)
    except Exception:
        return None
    finally:
        ort.set_default_logger_severity(2)
    return session if session.get_providers()[0] == kind else None


@cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


# ---- metadata


def _metadata(path: Path, session: ort.InferenceSession) -> dict[str, Any]:
    """Return the Lookalike metadata of the file, by part."""
    properties = session.get_modelmeta().custom_metadata_map
    if _PREFIX + "format" not in properties:
        raise InputError(f"{path}: an ONNX model, but not one written by `lookalike export`")
    texts = {key.removeprefix(_PREFIX): text for key, text in properties.items() if key.startswith(_PREFIX)}
    try:
        version = int(json.loads(texts["format"])["version"])
        if version <= FORMAT_VERSION:
            metadata = {part: json.loads(texts[part]) for part in dict.fromkeys((*_PARTS, *texts))}
            if all(isinstance(part, dict) for part in metadata.values()):
                return metadata
            raise TypeError("expected objects")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error
    raise InputError(
        f"{path}: format {version} is newer than {FORMAT_VERSION}, the newest supported; update lookalike"
    )


def _damaged(path: Path, error: Exception) -> InputError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return InputError(f"{path}: the metadata is damaged ({reason}); export it again")
