"""Data loader: batches of augmented pixels, prepared by worker processes ahead of the network."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Generator, Iterable, Iterator, Sequence
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
from retrieval.images.decode import cores
from train.config import Config
from train.input.augment import apply_transform, augment_each, batch_seeds, random_transform
from train.input.cache import DecodedImages, UncachedImages, decoded_images, training_resize
from train.input.views import drawn_views, render_view

_MOST_WORKERS = 8


class LoadedBatch(NamedTuple):
    """A batch, or this process's share of it."""

    number: int  # number of the batch in its epoch
    inputs: Tensor  # pixels uint8 [b, S, S, 3], or features float32 [b, C]
    bad: list[tuple[int, str, str]]  # image, reason and detail of each unreadable file


class Loader:
    """Loads the batches of an epoch ahead of the network.

    The content of a batch depends on the seed, the epoch and the number of the batch alone: it is the same
    for any number of workers, and after resuming within an epoch. An unreadable image is replaced by the
    next readable one of its class. With `augment.views`, an image is one of its fixed random views.

    Args:
        paths: The N training images.
        labels: int64 [N], their classes.
        config: Configuration of the run.
        device_type: Batches are in pinned memory for "cuda".
        folder: Folder for temporary files.
        rank, world_size: Rank of this process and number of processes; each gets a contiguous share of a
            batch.
        show_progress: Show progress while decoding into a cache.

    Attributes:
        bad: Errors of unreadable files, each once, as far as they were used.

    Raises:
        InputError: A class without a readable image, here or while loading.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        labels: np.ndarray,
        config: Config,
        *,
        device_type: str,
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
        show_progress: bool = False,
    ) -> None:
        resize = training_resize(config)
        show = show_progress and rank == 0
        source = decoded_images(
            paths, resize, config.loader, folder=folder, world_size=world_size, show_progress=show
        )
        batches = _BatchDataset(source, paths, labels, config, rank, world_size)
        self._paths, self._bad = paths, dict(source.bad)
        for image in source.bad:
            batches.readable(image, {})
        self._order = _RequestSampler()
        workers = config.loader.workers
        if workers is None:
            decodes = isinstance(source, UncachedImages)
            workers = default_workers(cores(), device_type, decodes=decodes, world_size=world_size)
        self._data = DataLoader(
            batches,
            batch_size=None,
            sampler=self._order,
            num_workers=workers,
            pin_memory=device_type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_init_worker,
            # Forked workers share the mapped images and start immediately.
            multiprocessing_context="fork" if workers else None,
            generator=torch.Generator(),  # the global one must not be used
        )
        self._running = self._load()

    @property
    def bad(self) -> list[ImageError]:
        return list(self._bad.values())

    def epoch(self, number: int, batches: Iterable[np.ndarray], start: int = 0) -> Iterator[LoadedBatch]:
        """Load one epoch; ends a previous epoch that was not exhausted.

        Args:
            number: Number of the epoch.
            batches: All batches of the epoch, positions int64 [B]: s N + i is image i under symmetry s.
            start: Number of batches to skip without reading their images.

        Raises:
            LookalikeError: A batch cannot be loaded.
        """
        self._running.close()
        self._order.requests = (
            _Request(number, batch, positions) for batch, positions in islice(enumerate(batches), start, None)
        )
        self._running = self._load()
        return self._running

    def close(self) -> None:
        """Stop the worker processes."""
        self._running.close()
        if isinstance(self._data._iterator, _MultiProcessingDataLoaderIter):
            # Left to the garbage collector, torch waits five seconds for each of them.
            self._data._iterator._shutdown_workers()

    def _load(self) -> Generator[LoadedBatch]:
        loading = iter(self._data)
        while True:
            try:
                loaded = next(loading)
            except StopIteration:
                return
            except RuntimeError as error:  # torch's report of a dead worker
                what = f"a loader process has ended unexpectedly ({error})"
                hint = "if memory or /dev/shm was full, lower loader.workers (0: none) or batch.classes"
                raise LookalikeError(f"{what}; {hint}") from error
            if isinstance(loaded, _Failure):
                kind = InputError if loaded.is_input else LookalikeError
                raise kind(loaded.message) from RuntimeError(loaded.trace)
            for image, reason, detail in loaded.bad:
                self._bad.setdefault(image, ImageError(str(self._paths[image]), reason, detail))
            yield loaded


def default_workers(cores: int, device_type: str, *, decodes: bool, world_size: int) -> int:
    """Return the default number of loader workers per training process.

    On a CPU the network needs the cores: one worker if files have to be decoded, else none. For a GPU up to
    8, as far as there are cores.
    """
    if device_type == "cuda":
        return max(1, min((cores - 1) // world_size, _MOST_WORKERS))
    return 1 if decodes and cores > world_size else 0


class _Request(NamedTuple):
    epoch: int
    number: int
    positions: np.ndarray


class _Failure(NamedTuple):
    """Error passed from a worker to the main process."""

    message: str
    is_input: bool
    trace: str


class _RequestSampler(Sampler[_Request]):
    """Sampler of the batch requests of the current epoch."""

    def __init__(self) -> None:
        self.requests: Iterable[_Request] = ()

    def __iter__(self) -> Iterator[_Request]:
        return iter(self.requests)


@dataclass(frozen=True)
class _BatchDataset(Dataset[LoadedBatch | _Failure]):
    """Dataset of whole batches, which runs in the workers."""

    images: DecodedImages
    paths: Sequence[Path]
    labels: np.ndarray
    config: Config
    rank: int
    world_size: int

    def __getitem__(self, request: _Request) -> LoadedBatch | _Failure:
        try:
            return self._load(request)
        except LookalikeError as error:
            return _Failure(str(error), isinstance(error, InputError), traceback.format_exc())
        except Exception as error:
            what = f"epoch {request.epoch}, batch {request.number}: cannot be loaded"
            message = f"{what} ({type(error).__name__}: {error}); --debug shows where"
            return _Failure(message, False, traceback.format_exc())

    def _load(self, request: _Request) -> LoadedBatch:
        share = batch_share(len(request.positions), self.rank, self.world_size)
        turns, images = np.divmod(request.positions, len(self.labels))
        tried: dict[int, ImageError] = {}
        chosen = [self.readable(image, tried) for image in images[share].tolist()]
        bad = [(image, error.reason, error.detail) for image, error in tried.items()]
        augmented = self._views if self.config.augment.views else self._new
        return LoadedBatch(request.number, augmented(request, turns, share, chosen), bad)

    def _new(
        self, request: _Request, turns: np.ndarray, share: slice, chosen: list[tuple[int, np.ndarray]]
    ) -> Tensor:
        """Return a new random view of each image of the share, uint8 [b, S, S, 3]."""
        augment = self.config.augment
        # Random values are drawn for the whole batch, whatever the number of processes.
        first, *seeds = batch_seeds(self.config.seed, request.epoch, request.number, len(turns))
        transform = random_transform(torch.from_numpy(turns), augment, torch.Generator().manual_seed(first))
        squares = augment_each((p for _, p in chosen), augment, self.config.preprocess, seeds[share])
        return apply_transform(squares, transform[share], self.config.preprocess.size)

    def _views(
        self, request: _Request, turns: np.ndarray, share: slice, chosen: list[tuple[int, np.ndarray]]
    ) -> Tensor:
        """Return one of the fixed views of each image of the share, uint8 [b, S, S, 3]."""
        config = self.config
        assert config.augment.views is not None
        drawn = drawn_views(config.augment.views, config.seed, request.epoch, request.number, len(turns))
        views = [
            render_view(pixels, self.paths[image], view, config.augment, config.preprocess)
            for (image, pixels), view in zip(chosen, drawn[share], strict=True)
        ]
        return torch.cat(views)

    def readable(self, image: int, tried: dict[int, ImageError]) -> tuple[int, np.ndarray]:
        """Return an image, or the next readable one of its class, with its pixels; errors go to `tried`."""
        for other in successors(image, self.labels):
            pixels = self.images[other]
            if not isinstance(pixels, ImageError):
                return other, pixels
            tried[other] = pixels
        raise unreadable_class(tried[image], len(successors(image, self.labels)))


def batch_share(count: int, rank: int, world_size: int) -> slice:
    """Return the part of a batch of `count` images that a process loads."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def successors(image: int, labels: np.ndarray) -> list[int]:
    """Return the images of the class of an image in their order, beginning with it and going round."""
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
