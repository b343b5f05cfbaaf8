"""Data loader: batches of augmented pixels, prepared by worker processes ahead of the network."""

from __future__ import annotations

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
from retrieval.images.decode import cores
from train.config import Config
from train.input.augment import apply_transform, image_transform, random_transform
from train.input.cache import DecodedImages, UncachedImages, decoded_images, training_resize

_MOST_WORKERS = 8


class LoadedBatch(NamedTuple):
    """A batch, or this process's share of it."""

    number: int  # number of the batch in its epoch
    pixels: Tensor  # uint8 [b, S, S, 3]
    bad: list[tuple[int, str, str]]  # image, reason and detail of each unreadable file


class Loader:
    """Loads the batches of an epoch ahead of the network.

    The content of a batch depends on the seed, the epoch and the number of the batch alone: it is the same
    for any number of workers, and after resuming within an epoch. An unreadable image is replaced by the
    next readable one of its class.

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
        batches = _BatchDataset(source, labels, config, rank, world_size)
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
        augment, size = self.config.augment, self.config.preprocess.size
        count = len(request.positions)
        share = slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)
        # Random values are drawn for the whole batch, whatever the number of processes.
        random = np.random.SeedSequence(self.config.seed, spawn_key=(request.epoch, request.number))
        first, *seeds = random.generate_state(1 + count).tolist()
        turns, images = np.divmod(request.positions, len(self.labels))
        transform = random_transform(torch.from_numpy(turns), augment, torch.Generator().manual_seed(first))
        tried: dict[int, ImageError] = {}
        chosen = (self.readable(image, tried) for image in images[share].tolist())
        per_image = image_transform(augment, self.config.preprocess)
        if per_image is None:
            squares = torch.from_numpy(np.stack(list(chosen)))
        else:
            squares = _apply_to_each(chosen, per_image, seeds[share])
        bad = [(image, error.reason, error.detail) for image, error in tried.items()]
        return LoadedBatch(request.number, apply_transform(squares, transform[share], size), bad)

    def readable(self, image: int, tried: dict[int, ImageError]) -> np.ndarray:
        """Return the pixels of an image, or of the next readable one of its class; errors go to `tried`."""
        pixels = self.images[image]
        if not isinstance(pixels, ImageError):
            return pixels
        tried[image] = pixels
        members = np.flatnonzero(self.labels == self.labels[image])
        for other in np.roll(members, -np.searchsorted(members, image))[1:].tolist():
            instead = self.images[other]
            if not isinstance(instead, ImageError):
                return instead
            tried[other] = instead
        detail = f"none of the {len(members)} images of its class can be read"
        raise InputError(f"{pixels}; {detail}; repair them, or remove the class of {pixels.source}")


def _apply_to_each(
    images: Iterable[np.ndarray], function: Callable[[Tensor], Tensor], seeds: Sequence[int]
) -> Tensor:
    """Apply a function to images uint8 [h, w, 3], each with its own seed; return uint8 [b, S, S, 3]."""
    done = []
    with torch.random.fork_rng(devices=[]):
        for image, seed in zip(images, seeds, strict=True):
            torch.default_generator.manual_seed(seed)
            done.append(function(torch.from_numpy(image).permute(2, 0, 1)).permute(1, 2, 0))
    return torch.stack(done)


def _init_worker(number: int) -> None:
    """Ignore SIGINT: the training process handles it and stops its workers. (Torch gives each one thread.)"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Called only if the training process ends while it receives a batch: no traceback is needed.
    sys.excepthook = lambda *error: None
