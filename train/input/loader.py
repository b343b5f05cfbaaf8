"""Data loader: batches of augmented pixels, prepared by worker processes ahead of the network."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.machine.resources import cores
from train.config import Config
from train.input.augment import Draws, apply_draws, batch_seeds, cut_and_draw, draw_transform
from train.input.cache import (
    DecodedImages,
    UncachedImages,
    decoded_images,
    decoded_size,
)
from train.input.features import Targets
from train.input.resize import training_resize
from train.input.sampler import Labelled
from train.input.views import cut_views, drawn_views

_CACHED_WORKERS = 8  # each crops 3,500 cached images of 224 pixels a second: more would only take memory
_FOLLOWING = 10  # images that are tried in place of an unreadable one without a class


class LoadedBatch(NamedTuple):
    """A batch, or this process's share of it, on the device of the network."""

    epoch: int
    number: int  # number of the batch in its epoch
    inputs: Tensor  # pixels uint8 [b, S, S, 3], or features float32 [b, C]
    labels: Tensor  # int64 [b]
    targets: Tensor | None = None  # vectors of a teacher, float32 [b, T]


class Loader:
    """Loads batches ahead of the network: decoding in worker processes, augmentation on the device.

    The content of a batch depends on the seed, the epoch and the number of the batch alone: it is the same
    for any number of workers, and after resuming within an epoch. An unreadable image is replaced by the
    next readable one of its class, or of all if every image is a class of its own. With `augment.views`, an
    image is one of its fixed random views.

    Args:
        paths: The N training images.
        labels: int64 [symmetries * N], the class of image i under symmetry s at s N + i.
        config: Configuration of the run.
        device: Device of the batches. For a CPU the workers augment, too; for "cuda" they are pinned.
        folder: Folder for temporary files.
        rank, world_size: Rank of this process and number of processes; each gets a contiguous share of a
            batch.
        local_size: Number of processes on this machine, which divide its cores.
        shared: Folder of their common cache of decoded images; `None` for a cache of this process alone.
        targets: Vectors of a teacher, which come with the images; `None` for none.
        show_progress: Show progress while decoding into a cache.

    Attributes:
        bad: Errors of unreadable files, each once, as far as they were used.
        cacheable: Bytes that a cache of the decoded images would take; `None` if they are cached.

    Raises:
        InputError: A class without a readable image, here or while loading.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: np.ndarray,
        config: Config,
        *,
        device: torch.device,
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
        local_size: int = 1,
        shared: Path | None = None,
        targets: Targets | None = None,
        show_progress: bool = False,
    ) -> None:
        resize = training_resize(config)
        show = show_progress and rank == 0
        source = decoded_images(
            paths, resize, config.loader, folder=folder, shared=shared, show_progress=show
        )
        augments = device.type == "cpu"
        batches = _BatchDataset(source, paths, labels, config, rank, world_size, augments, targets)
        self._paths, self._bad = paths, dict(source.bad)
        self._device, self._size = device, config.preprocess.size
        self._shared = shared
        decodes = isinstance(source, UncachedImages)
        self.cacheable = decoded_size(len(paths), resize) if decodes else None
        for image in source.bad:
            batches.readable(image, {})
        self._order = _RequestSampler()
        workers = config.loader.workers
        if workers is None:
            workers = default_workers(cores(), device.type, decodes=decodes, local_size=local_size)
        if "fork" not in multiprocessing.get_all_start_methods():  # on Windows: others lack the images
            workers = 0
        self._data = DataLoader(
            batches,
            batch_size=None,
            sampler=self._order,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_init_worker,
            # Forked workers share the mapped images and start immediately.
            multiprocessing_context="fork" if workers else None,
            generator=torch.Generator(),  # the global one must not be used
        )
        self._running = self._receive(iter(()))

    @property
    def bad(self) -> list[ImageError]:
        return list(self._bad.values())

    def load(
        self, batches: Callable[[int], Iterable[np.ndarray | Labelled]], epochs: Iterable[int], start: int = 0
    ) -> Iterator[LoadedBatch]:
        """Load epochs one after the other; ends an earlier call whose batches were not all taken.

        The workers begin now and go on beyond the end of an epoch: the first batches of the next one load
        during validation and while a checkpoint is written.

        Args:
            batches: Returns all batches of an epoch, positions int64 [B]: s N + i is image i under
                symmetry s. Their labels are those of the images, or come with them.
            epochs: Numbers of the epochs.
            start: Number of batches to skip in the first epoch, without reading their images.

        Raises:
            LookalikeError: A batch cannot be loaded.
        """
        self._running.close()
        self._order.requests = requests(batches, epochs, start)
        self._running = self._receive(iter(self._data))
        return self._running

    def close(self) -> None:
        """Stop the worker processes and delete temporary files."""
        self._running.close()
        if self._shared is not None:  # the processes that have opened the file keep it
            shutil.rmtree(self._shared, ignore_errors=True)
        if isinstance(self._data._iterator, _MultiProcessingDataLoaderIter):
            # Left to the garbage collector, torch waits five seconds for each of them.
            self._data._iterator._shutdown_workers()

    def _receive(self, prepared: Iterator[_Prepared | _Failure]) -> Generator[LoadedBatch]:
        while True:
            try:
                batch = next(prepared)
            except StopIteration:
                return
            except RuntimeError as error:  # torch's report of a dead worker
                what = f"a loader process has ended unexpectedly ({error})"
                hint = "if memory or /dev/shm was full, lower loader.workers (0: none) or batch.classes"
                raise LookalikeError(f"{what}; {hint}") from error
            if isinstance(batch, _Failure):
                kind = InputError if batch.is_input else LookalikeError
                raise kind(batch.message) from RuntimeError(batch.trace)
            for image, reason, detail in batch.bad:
                self._bad.setdefault(image, ImageError(str(self._paths[image]), reason, detail))
            yield batch.on(self._device, self._size)


def default_workers(cores: int, device_type: str, *, decodes: bool, local_size: int) -> int:
    """Return the default number of loader workers per training process.

    On a CPU the network needs the cores: one worker if files have to be decoded, else none. With a GPU all
    cores but one, divided among the processes of the machine; up to 8 if nothing has to be decoded.
    """
    if device_type == "cpu":
        return 1 if decodes and cores > local_size else 0
    workers = max(1, (cores - 1) // local_size)
    return workers if decodes else min(workers, _CACHED_WORKERS)


class BatchRequest(NamedTuple):
    """Request of one batch: positions int64 [B], as in `Loader.load`, and perhaps labels of its own."""

    epoch: int
    number: int
    positions: np.ndarray
    own: np.ndarray | None = None
    exact: bool = False

    def labels(self, of_images: np.ndarray, share: slice, replaced: np.ndarray) -> np.ndarray:
        """Return the labels of a share of the batch, int64 [b].

        Args:
            of_images: Labels of all positions.
            share: Part of the batch.
            replaced: Whether another image is in place of an unreadable one, bool [b].
        """
        labels: np.ndarray = of_images[self.positions[share]] if self.own is None else self.own[share].copy()
        if self.exact:
            labels[replaced] = -1
        return labels


def requests(
    batches: Callable[[int], Iterable[np.ndarray | Labelled]], epochs: Iterable[int], start: int
) -> Iterator[BatchRequest]:
    """Yield the batches of epochs one after the other; see `Loader.load`."""
    for epoch in epochs:
        for number, batch in islice(enumerate(batches(epoch)), start, None):
            yield BatchRequest(epoch, number, *(batch if isinstance(batch, Labelled) else (batch,)))
        start = 0


class _Prepared(NamedTuple):
    """A batch from a worker; what is left to be done to its squares is in `draws`."""

    epoch: int
    number: int
    squares: Tensor  # uint8 [b, T, T, 3]
    draws: Draws | None
    labels: Tensor  # int64 [b]
    targets: Tensor | None  # float32 [b, T]
    bad: list[tuple[int, str, str]]  # image, reason and detail of each unreadable file

    def on(self, device: torch.device, size: int) -> LoadedBatch:
        """Copy the batch to the device and finish it there."""
        squares, labels = (values.to(device, non_blocking=True) for values in (self.squares, self.labels))
        if self.draws is not None:
            squares = apply_draws(squares, self.draws.to(device), size)
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        return LoadedBatch(self.epoch, self.number, squares, labels, targets)


class _Failure(NamedTuple):
    """Error passed from a worker to the main process."""

    message: str
    is_input: bool
    trace: str


class _RequestSampler(Sampler[BatchRequest]):
    """Sampler of the batch requests of a call of `Loader.load`."""

    def __init__(self) -> None:
        self.requests: Iterable[BatchRequest] = ()

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter(self.requests)


@dataclass(frozen=True)
class _BatchDataset(Dataset[_Prepared | _Failure]):
    """Dataset of whole batches, which runs in the workers; with `augments` they augment completely."""

    images: DecodedImages
    paths: Sequence[Path]
    labels: np.ndarray
    config: Config
    rank: int
    world_size: int
    augments: bool
    targets: Targets | None

    def __getitem__(self, request: BatchRequest) -> _Prepared | _Failure:
        try:
            return self._load(request)
        except LookalikeError as error:
            return _Failure(str(error), isinstance(error, InputError), traceback.format_exc())
        except Exception as error:
            what = f"epoch {request.epoch}, batch {request.number}: cannot be loaded"
            message = f"{what} ({type(error).__name__}: {error}); --debug shows where"
            return _Failure(message, False, traceback.format_exc())

    def _load(self, request: BatchRequest) -> _Prepared:
        share = batch_share(len(request.positions), self.rank, self.world_size)
        turns, images = np.divmod(request.positions, len(self.paths))
        tried: dict[int, ImageError] = {}
        chosen = [self.readable(image, tried) for image in images[share].tolist()]
        bad = [(image, error.reason, error.detail) for image, error in tried.items()]
        cut = self._views if self.config.augment.views else self._new
        squares, draws = cut(request, turns, share, chosen)
        replaced = np.array([image for image, _ in chosen]) != images[share]
        labels = torch.from_numpy(request.labels(self.labels, share, replaced))
        if self.augments:
            squares = apply_draws(squares, draws, self.config.preprocess.size)
        left = None if self.augments else draws
        targets = None if self.targets is None else self.targets.of([image for image, _ in chosen])
        return _Prepared(request.epoch, request.number, squares, left, labels, targets, bad)

    def _new(
        self, request: BatchRequest, turns: np.ndarray, share: slice, chosen: list[tuple[int, np.ndarray]]
    ) -> tuple[Tensor, Draws]:
        """Cut a new random view of each image of the share."""
        augment = self.config.augment
        # Random values are drawn for the whole batch, whatever the number of processes.
        first, *seeds = batch_seeds(self.config.seed, request.epoch, request.number, len(turns))
        draws = draw_transform(torch.from_numpy(turns), augment, torch.Generator().manual_seed(first))
        pixels = (pixels for _, pixels in chosen)
        squares, color = cut_and_draw(pixels, augment, self.config.preprocess, seeds[share])
        return squares, draws.share(share)._replace(color=color)

    def _views(
        self, request: BatchRequest, turns: np.ndarray, share: slice, chosen: list[tuple[int, np.ndarray]]
    ) -> tuple[Tensor, Draws]:
        """Cut one of the fixed views of each image of the share."""
        config = self.config
        assert config.augment.views is not None
        drawn = drawn_views(config.augment.views, config.seed, request.epoch, request.number, len(turns))
        images, pixels = zip(*chosen, strict=True)
        paths = [self.paths[image] for image in images]
        return cut_views(pixels, paths, drawn[share], config.augment, config.preprocess)

    def readable(self, image: int, tried: dict[int, ImageError]) -> tuple[int, np.ndarray]:
        """Return an image, or the next readable one of its class, with its pixels; errors go to `tried`."""
        classes = self.labels[: len(self.paths)]
        for other in successors(image, classes):
            pixels = self.images[other]
            if not isinstance(pixels, ImageError):
                return other, pixels
            tried[other] = pixels
        raise unreadable_class(tried[image], len(successors(image, classes)))


def batch_share(count: int, rank: int, world_size: int) -> slice:
    """Return the part of a batch of `count` images that a process loads."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def successors(image: int, labels: np.ndarray) -> list[int]:
    """Return the images of the class of an image in their order, beginning with it and going round.

    If every image is a class of its own, the images that follow it.
    """
    if len(labels) == labels.max() + 1:
        return [(image + i) % len(labels) for i in range(min(len(labels), _FOLLOWING))]
    members = np.flatnonzero(labels == labels[image])
    return np.roll(members, -np.searchsorted(members, image)).tolist()


def unreadable_class(error: ImageError, count: int) -> InputError:
    """Return the error for a class of `count` images of which none can be read."""
    detail = f"none of the {count} images of its class can be read"
    return InputError(f"{error}; {detail}; repair them, or remove the class of {error.source}")


def _init_worker(number: int) -> None:
    """Ignore SIGINT: the training process handles it and stops its workers. (Torch gives each one thread.)"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Called only if the training process ends while it receives a batch: no traceback is needed.
    sys.excepthook = lambda *error: None
