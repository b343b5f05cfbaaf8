"""The gallery that is served, in its newest state: taken up while requests go on with the one before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import LookalikeError
from retrieval.gallery import Gallery
from serve.core.batching import Batcher
from serve.core.errors import UnavailableError
from serve.core.telemetry import Telemetry

_CPU = "CPUExecutionProvider"
_TRIES = 3
T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """A gallery with its model; without one where its vectors were made elsewhere.

    Attributes:
        embed: pixels uint8 [N, S, S, 3] -> vectors float32 [N, D]; threads may share it.
    """

    gallery: Gallery
    embedder: Embedder | None
    embed: Callable[[np.ndarray], np.ndarray] | None


class LiveGallery:
    """A gallery that other processes write.

    Args:
        folder: the gallery.
        telemetry: is told how many pictures run through the model at once.
        batching: put pictures that arrive together through the model together; `None`: where it runs on
            anything but a CPU.

    Raises:
        InputError: the folder is no gallery.
        LookalikeError: its model is damaged or does not match the stored vectors.
    """

    def __init__(self, folder: Path, telemetry: Telemetry, batching: bool | None = None) -> None:
        self._folder, self._telemetry, self._batching = folder, telemetry, batching
        self._renewing = threading.Lock()
        self._state = self._open()

    @property
    def batching(self) -> bool:
        """Whether pictures of several requests run through the model together."""
        return isinstance(self._state.embed, Batcher)

    def state(self, *, wait: bool = False) -> State:
        """The state last committed.

        One thread takes up what is new; the others go on with what they have, unless they are to wait.

        Raises:
            UnavailableError: the gallery cannot be read.
        """
        if self._renewing.acquire(blocking=wait):
            try:
                gallery = self._state.gallery
                if gallery.changed():
                    if gallery.replaced():
                        self._state = self._open()  # rebuilt, perhaps with another model
                    else:
                        gallery.refresh()
            except LookalikeError as error:
                raise UnavailableError(str(error).replace(str(self._folder), self._folder.name)) from error
            finally:
                self._renewing.release()
        return self._state

    def steadily(self, work: Callable[[State], T]) -> T:
        """What `work` makes of one state; of the next one where another gallery took its place meanwhile.

        What is kept about an item is read from the disk when it is needed: of a gallery that was replaced,
        it would be about another picture.

        Raises:
            UnavailableError: the gallery cannot be read.
        """
        for attempt in range(_TRIES):
            state = self.state(wait=attempt > 0)
            try:
                result = work(state)
            except LookalikeError:
                if not _replaced(state):
                    raise
            else:
                if not _replaced(state):
                    return result
        raise UnavailableError("the gallery is being replaced: ask again in a moment")

    def _open(self) -> State:
        """Open the gallery; its model is loaded and checked now: a mismatch must not wait for a request."""
        # Requests run on one core each: with all cores for each of them, they would get in each other's way.
        gallery = Gallery(self._folder, threads=1)
        if not gallery.store.manifest.has_model:
            return State(gallery, None, None)
        embedder = gallery.embedder
        together = embedder.provider != _CPU if self._batching is None else self._batching

        def embed(pixels: np.ndarray) -> np.ndarray:
            self._telemetry.pictures.observe(len(pixels))
            return embedder.embed_pixels(pixels)

        return State(gallery, embedder, Batcher(embed) if together else embed)


def _replaced(state: State) -> bool:
    try:
        return state.gallery.replaced()
    except LookalikeError:  # it is gone; the next look says so
        return True
