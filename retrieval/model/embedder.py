"""Embedder: run an exported ONNX model; images (and texts, if it has an encoder) in, unit vectors out."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from retrieval.display import Displayed
from retrieval.errors import InputError, LookalikeError
from retrieval.images.decode import BATCH
from retrieval.images.load import DECODE_POLICY, ImageSource, as_array, load_pixels
from retrieval.images.preprocess import Preprocess
from retrieval.machine.devices import Device
from retrieval.model import hub
from retrieval.model.archive import IMAGE, ModelArchive, is_archive_file
from retrieval.model.interruption import interruptible, run
from retrieval.model.plugged import PluggedSession, is_reference
from retrieval.model.run_sizes import MAX_PADDED, MeasuredSize, pad, padded_runs, padded_sizes
from retrieval.model.runtime import Runtime
from retrieval.model.sessions import CPU, CUDA, open_session, reason
from retrieval.model.text_encoder import TextEncoder
from retrieval.model.training_images import TrainingImages

if TYPE_CHECKING:
    import onnxruntime as ort

FORMAT_VERSION = 1
_PREFIX = "lookalike."
_PARTS = ("format", "preprocess", "embedding", "provenance")

_MIN_REPETITIONS = 3  # of a latency measurement


class Embedder(Displayed):
    """Model file written by `lookalike export`, loaded for inference.

    Args:
        file: Model file: an ONNX file, an archive of image and text encoder, or one that names a plug-in.
        device: "cpu", "cuda", "cuda:N", or "auto" for the first GPU that works, else the CPU.
        provider: Execution provider: "cuda", "coreml", "openvino" or "cpu"; "auto" takes the first of CUDA,
            CoreML, OpenVINO and the CPU that works on the device. If the provider does not work, the CPU
            runs the model, with one line on stderr.
        batch_size: Most images per run of the graph; by default 256 on an accelerator, and on a CPU the
            number that is fastest here.
        threads: Threads per inference on the CPU; `None` lets ONNX Runtime choose.
        tf32: An NVIDIA GPU may round products to TensorFloat32, see `Runtime`. A file of fp16
            always allows it.

    Attributes:
        path: Path of the file.
        runtime: Device, provider, batch size and threads that were asked for.
        fingerprint: SHA-256 of the file.
        archive: The archive of image and text encoder; `None` for an ONNX file.
        preprocess: Preprocessing of the model's input.
        dim: Length D of an embedding.
        cut_dims: Numbers of leading dimensions at which an embedding may be cut off, ascending, `dim` last:
            those of Matryoshka embeddings.
        has_text: The file has a text encoder.
        is_plugged: The file names an embedder of a plug-in.
        has_map: The graph has the output `embedding_map`, float32 [N, h, w, D].
        metadata: Metadata of the file, by part: "format", "preprocess", "embedding", "provenance".
        provenance: Origin of the model: training run or pretrained backbone.
        training_images: Images that it was trained on; `None` if the file does not tell them.

    Raises:
        InputError: The file does not exist, is damaged, is not a Lookalike model or has a newer format; or
            the device or provider is unknown, they exclude each other, or a number is below 1.
    """

    def __init__(
        self,
        file: str | Path,
        *,
        device: Device | str = "auto",
        provider: str = "auto",
        batch_size: int | None = None,
        threads: int | None = None,
        tf32: bool = False,
    ) -> None:
        chosen = Device.parse(device) if isinstance(device, str) else device
        self.runtime = Runtime(chosen, provider, batch_size, threads, tf32)
        self.path = Path(file)
        data, self.fingerprint, self.archive = _read(self.path)
        self.has_text = self.archive is not None
        self._text: TextEncoder | None = None
        self._loading_text = threading.Lock()
        self.is_plugged = is_reference(data)
        self._session: ort.InferenceSession | PluggedSession = (
            PluggedSession(self.path, data, chosen)
            if self.is_plugged
            else open_session(self.path, data, self.runtime)
        )
        self._run_size = MeasuredSize(batch_size) if self.provider == CPU else None
        self.metadata = _metadata(self.path, self._session)
        try:
            self.preprocess = Preprocess.from_dict(self.metadata["preprocess"])
            self.dim = int(self.metadata["embedding"]["dim"])
            nested = map(int, self.metadata["embedding"].get("matryoshka", ()))
            self.cut_dims = (*sorted(size for size in nested if 0 < size < self.dim), self.dim)
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise _damaged(self.path, error) from error
        self.provenance = self.metadata["provenance"]
        if self.is_half and self.provider == CUDA and not self.runtime.tf32:
            # Without TF32, ONNX Runtime excludes the kernels of cuDNN for fp16 as well, and reports every
            # convolution at length before it takes one after all, without its bias and activation.
            self.runtime = replace(self.runtime, tf32=True)
            self._session = open_session(self.path, data, self.runtime)
        self.training_images = TrainingImages.from_dict(self.metadata.pop("training_images", None))
        self.has_map = any(output.name == "embedding_map" for output in self._session.get_outputs())
        self._check_graph()

    @classmethod
    def open(cls, file: str | Path, runtime: Runtime) -> Embedder:
        """Return the embedder of a file with the settings of a runtime."""
        return cls(file, **vars(runtime))

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, runtime: Runtime | None = None
    ) -> Embedder:
        """Return the embedder of a model file, or of a repository of the Hugging Face Hub.

        Args:
            name: Model file, a folder that holds one as a repository does, or USER/NAME of a repository that
                `lookalike hub push` filled.
            revision: Branch, tag or commit of the repository; `None` for the newest state.
            runtime: Device, provider, batch size and threads.

        Raises:
            InputError: There is no such file or repository, or it is not a model of Lookalike.
            LookalikeError: The hub cannot be reached, or the download is damaged.
        """
        file = Path(name)
        if file.is_dir():
            file = hub.model_in(file)
        elif not file.exists() and hub.is_repository(str(name)):
            file = hub.download_model(str(name), revision)
        return cls.open(file, runtime or Runtime())

    def __repr__(self) -> str:
        side = self.preprocess.size
        return f"<Embedder {self.path}: {side} x {side} pixels to {self.dim} dimensions, {self.provider}>"

    @property
    def provider(self) -> str:
        """Execution provider in use, by ONNX Runtime's name."""
        return str(self._session.get_providers()[0])

    @property
    def is_half(self) -> bool:
        """Whether the network was exported in fp16."""
        return bool(self.provenance.get("precision") == "fp16")

    def of_policy(self, policy: int | None) -> Embedder:
        """Return this embedder with the pixels of a decoding policy; `None` for the newest."""
        preprocess = self.preprocess.of_policy(DECODE_POLICY if policy is None else policy)
        if preprocess == self.preprocess:
            return self
        same_model = copy.copy(self)
        same_model.preprocess = preprocess
        return same_model

    def with_tf32(self, allowed: bool) -> Embedder:
        """Return this model with TF32 allowed or not: on an NVIDIA GPU a new session, if that differs.

        A file of fp16 rounds to 10 bits in any case, and keeps TF32.
        """
        if self.provider != CUDA or allowed == self.runtime.tf32 or self.is_half:
            return self
        same_model = Embedder.open(self.path, replace(self.runtime, tf32=allowed))
        same_model.preprocess = self.preprocess
        return same_model

    @property
    def batch_size(self) -> int:
        """Number of images that `embed_pixels` should be given at a time."""
        if self._run_size is not None:
            return max(BATCH, self.runtime.batch_size or 0)
        return self.runtime.batch_size or MAX_PADDED

    @property
    def concurrency(self) -> int:
        """Number of calls of `embed_pixels` at a time that are worth it.

        Each run copies its images in a stream of its own: with two runs on an accelerator, one copies while
        the other computes. A run on a CPU takes all cores.
        """
        return 1 if self._run_size is not None else 2

    def warm_up(self, most: int) -> None:
        """Let an accelerator prepare for the sizes of its runs, up to `most` images; a CPU needs nothing."""
        if self._run_size is None:
            side = self.preprocess.size
            for size in padded_sizes(min(most, self.batch_size)):
                self.embed_in_one_run(np.zeros((size, side, side, 3), np.uint8))

    def embed(self, images: ImageSource | Iterable[ImageSource], *, batch_size: int = 32) -> np.ndarray:
        """Embed images.

        Args:
            images: Paths, bytes of files, Pillow images, or arrays and tensors as `load_image` takes them; or
                one image, which gives [1, dim]; or a batch in one array or tensor, uint8 [N, H, W, 3].
            batch_size: Images in memory at a time.

        Returns:
            Embeddings of unit length, float32 [N, dim].

        Raises:
            ImageError: An image cannot be read.
            InputError: The batch size is below 1.
        """
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        sources = each_image(images)
        batches = [self.embed_pixels(batch) for batch in _batches(map(self.pixels, sources), batch_size)]
        return np.concatenate(batches) if batches else np.empty((0, self.dim), np.float32)

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Embed texts in the space of the images. Thread-safe.

        A text longer than the model's context loses the tokens at its end.

        Args:
            texts: Texts, none of which is empty.

        Returns:
            Embeddings of unit length, float32 [N, dim].

        Raises:
            InputError: The model has no text encoder, `tokenizers` is not installed, or a text is empty.
            LookalikeError: The model fails on this machine.
        """
        return self.text_encoder.embed(texts)

    @property
    def text_encoder(self) -> TextEncoder:
        """Text encoder, loaded on first use; an `InputError` without one."""
        if self.archive is None:
            raise InputError(
                f"{self.path}: this model has no text encoder; learn one with `lookalike teach GALLERY "
                "--text-column COLUMN`, or use a pair, as from `lookalike export --from open-clip:NAME`"
            )
        with self._loading_text:
            if self._text is None:
                self._text = TextEncoder(self.archive, replace(self.runtime, tf32=False), self.dim)
        return self._text

    def pixels(self, image: ImageSource) -> np.ndarray:
        """Load and preprocess one image; return the model input, uint8 [S, S, 3]."""
        return self.preprocess(load_pixels(image, side=self.preprocess.scaled))

    @interruptible
    def embed_pixels(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Embed preprocessed images. Thread-safe; large N runs in several parts to bound the memory.

        A CPU runs the graph with the number of images that is fastest here, measured with the first few
        hundred images, or with the given batch size. An accelerator runs up to `batch_size` images at once,
        padded to a power of 2. Vectors differ by rounding (below 1e-5) between such numbers.

        Args:
            pixels: Preprocessed images, uint8 [N, S, S, 3].

        Returns:
            Embeddings of unit length, float32 [N, dim].

        Raises:
            InputError: The pixels have another type or shape, or the model contradicts its metadata.
            LookalikeError: The model fails on this machine, for example because a GPU is out of memory.
        """
        starts = range(0, len(pixels), self.batch_size)
        groups = (self._checked(pixels[start : start + self.batch_size]) for start in starts)
        parts = [part for images in groups for part in self._embed_group(images)]
        return np.concatenate(parts) if parts else np.empty((0, self.dim), np.float32)

    @interruptible
    def embed_in_one_run(self, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Embed preprocessed images as one batch, for measurements; as `embed_pixels` otherwise."""
        return self._run(pixels, "embedding")[0]

    def _embed_group(self, images: np.ndarray) -> list[np.ndarray]:
        """Embed a group of images, uint8 [n, S, S, 3], in runs of the size that suits the device."""
        if self._run_size is None:
            runs = padded_runs(len(images), self.batch_size)
            return [
                self.embed_in_one_run(pad(images[part], size))[: part.stop - part.start]
                for part, size in runs
            ]
        size = self._run_size.choose(len(images))
        began = time.thread_time()
        parts = [self.embed_in_one_run(images[at : at + size]) for at in range(0, len(images), size)]
        self._run_size.record(size, len(images), time.thread_time() - began)
        return parts

    @interruptible
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
            found: list[np.ndarray] = run(self._session, list(outputs), {"images": images})
        except Exception as error:  # ONNX Runtime raises its own classes, which differ between versions
            what = f"the model failed on {self.provider} with {len(images)} images ({reason(error)})"
            remedy = "export it again" if self.provider == CPU else "free the device's memory, or use the CPU"
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


def each_image(images: ImageSource | Iterable[ImageSource]) -> Iterable[ImageSource]:
    """Return the images of a collection, a batch in one array, or one image.

    Raises:
        ImageError: A tensor is in memory that the CPU cannot read.
    """
    if isinstance(images, (str, bytes, os.PathLike, Image.Image)):
        return [images]
    if not (hasattr(images, "__dlpack__") or hasattr(images, "__array__")):
        # What is no collection of images is refused as one image: a file not by its first line.
        is_one = isinstance(images, (bytearray, memoryview)) or hasattr(images, "read")
        listed = hasattr(images, "__iter__") or hasattr(images, "__getitem__")
        return images if listed and not is_one else [cast("ImageSource", images)]
    array = as_array(images)
    if array.dtype.kind in "OSTU":  # paths, also a column of a table
        return cast("Iterable[ImageSource]", array.tolist())
    return array if array.ndim == 4 else [array]


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


def _read(path: Path) -> tuple[bytes, str, ModelArchive | None]:
    """Return the ONNX model of a file for images, the SHA-256 of the file, and the archive if it is one."""
    try:
        with path.open("rb") as file:
            if not is_archive_file(file):
                data = file.read()
                return data, hashlib.sha256(data).hexdigest(), None
        archive = ModelArchive(path)
        return archive.read(IMAGE), archive.fingerprint, archive
    except FileNotFoundError as error:
        hint = (
            "create one with `lookalike export RUN --out FILE`, or of a pretrained network: "
            "`lookalike model list`"
        )
        what = f"there is no such model file; {_of_gallery(path.parent) or hint}"
        raise InputError(f"{path}: {what}") from error
    except IsADirectoryError as error:
        hint = _of_gallery(path) or "export a training run with `lookalike export RUN --out FILE`"
        raise InputError(f"{path}: a folder, not a model file; {hint}") from error
    except OSError as error:
        is_of_disk = error.errno in (errno.EIO, errno.ENOSPC)  # rather than of what was asked for
        kind = LookalikeError if is_of_disk else InputError
        raise kind(f"{path}: cannot be read ({error.strerror})") from error


def _of_gallery(folder: Path) -> str:
    """Return which file is the model of a gallery; empty if the folder is none."""
    is_gallery = any((folder / name).is_file() for name in ("gallery.db", "store.json"))
    found = sorted((folder / "model").glob("model.*")) if is_gallery else []
    return f"the model of this gallery is {found[0]}" if found else ""


# ---- metadata


def _metadata(path: Path, session: ort.InferenceSession | PluggedSession) -> dict[str, Any]:
    """Return the Lookalike metadata of the file, by part."""
    try:
        properties = session.get_modelmeta().custom_metadata_map
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error
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
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    raise InputError(
        f"{path}: format {version} is newer than {FORMAT_VERSION}, the newest supported; update lookalike"
    )


def _damaged(path: Path, error: Exception) -> InputError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return InputError(f"{path}: the metadata is damaged ({reason}); export it again")
