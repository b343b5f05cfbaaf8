"""Live gallery: follows the commits of other processes without interrupting requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from retrieval.errors import LookalikeError, StoreError
from retrieval.gallery import Gallery
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.model.sessions import CPU
from serve.core.batching import MAX_BATCH, Batcher
from serve.core.errors import UnavailableError
from serve.core.telemetry import Telemetry

_MAX_ATTEMPTS = 3
T = TypeVar("T")


@dataclass(frozen=True)
class LiveState:
    """A gallery with its model.

    Attributes:
        gallery: The gallery.
        embedder: Its model; None if its vectors were imported.
        embed: Thread-safe function from pixels uint8 [N, S, S, 3] to vectors float32 [N, D]; None without a
            model.
    """

    gallery: Gallery
    embedder: Embedder | None
    embed: Callable[[np.ndarray], np.ndarray] | None


class LiveGallery:
    """A gallery that other processes write to.

    Args:
        folder: Gallery folder.
        telemetry: Records the batch sizes of the model.
        runtime: Device, provider, batch size and threads of the model.
        batching: Whether to embed images of concurrent requests together; None for all devices but a CPU.

    Attributes:
        refreshes: How often another state was loaded.

    Raises:
        InputError: The folder is not a gallery.
        LookalikeError: Its model is damaged or does not match the stored vectors.
    """

    def __init__(
        self, folder: Path, telemetry: Telemetry, runtime: Runtime, batching: bool | None = None
    ) -> None:
        self._folder, self._telemetry, self._runtime = folder, telemetry, runtime
        self._batching = batching
        self._refresh_lock = threading.Lock()
        self.refreshes = 0
        self._state = self._open()

    @property
    def batching(self) -> bool:
        """Whether images of concurrent requests are embedded together."""
        return isinstance(self._state.embed, Batcher)

    def state(self, *, wait: bool = False) -> LiveState:
        """Return the last committed state.

        Args:
            wait: Whether to wait for another thread that is refreshing the state, instead of using the
                previous one.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        if self._refresh_lock.acquire(blocking=wait):
            gallery = self._state.gallery
            try:
                if gallery.changed():
                    if gallery.replaced():
                        self._state = self._open()  # rebuilt, perhaps with another model
                    else:
                        gallery.refresh()
                    self.refreshes += 1
            except StoreError:
                raise
            except LookalikeError as error:
                raise UnavailableError(gallery.public(str(error))) from error
            finally:
                self._refresh_lock.release()
        return self._state

    def with_state(self, work: Callable[[LiveState], T]) -> T:
        """Return the result of `work` on one state; repeat it if the gallery was replaced in the meantime.

        Labels and metadata are read from the disk on demand: after a replacement, they belong to another
        image.

        Raises:
            UnavailableError: The gallery cannot be read.
        """
        for attempt in range(_MAX_ATTEMPTS):
            state = self.state(wait=attempt > 0)
            try:
                result = work(state)
            except LookalikeError:
                if not _is_replaced(state):
                    raise
            else:
                if not _is_replaced(state):
                    return result
        raise UnavailableError("the gallery is being replaced: try again in a moment")

    def _open(self) -> LiveState:
        """Open the gallery; load and check its model now, so that no request fails because of it."""
        gallery = Gallery.open(self._folder, runtime=self._runtime)
        if not gallery.manifest.has_model:
            return LiveState(gallery, None, None)
        embedder = gallery.embedder
        embedder.warm_up(MAX_BATCH)
        batching = embedder.provider != CPU if self._batching is None else self._batching

        def embed(pixels: np.ndarray) -> np.ndarray:
            self._telemetry.batch_images.observe(len(pixels))
            return embedder.embed_pixels(pixels)

        return LiveState(gallery, embedder, Batcher(embed) if batching else embed)


def _is_replaced(state: LiveState) -> bool:
    try:
        return state.gallery.replaced()
    except LookalikeError:  # the gallery was deleted, which the next attempt reports
        return True
