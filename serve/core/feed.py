"""Feed of a gallery: what it holds now, for clients that wait for changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from retrieval.errors import LookalikeError
from retrieval.progress import Stage
from serve.core.service import SearchService

_SECONDS = 1.0  # between two looks at the gallery
_SHARE = 0.1  # of the time, at most, to look: in a large gallery it takes longer
_BEAT_SECONDS = 15.0  # proxies close connections that are silent for a minute


@dataclass(frozen=True)
class GalleryState:
    """What a gallery holds.

    Attributes:
        uuid: UUID of the gallery; that of a rebuilt one is another, and its ids are of other images.
        generation: Text that differs after every change of the images or their facts.
        images: Number of images.
        indexing: How far the server is in indexing a folder; None if it is not.
    """

    uuid: str
    generation: str
    images: int
    indexing: Stage | None


class Feed:
    """Looks at a gallery for all who listen, about once a second while somebody does.

    Args:
        service: The gallery.
        stopping: Set when the server stops, which ends all.
    """

    def __init__(self, service: SearchService, stopping: asyncio.Event) -> None:
        self._service, self._stopping = service, stopping
        self._looking = asyncio.Lock()
        self._next_look = 0.0
        self._seen: tuple[int, int] | None = None
        self._state: GalleryState | None = None

    async def state(self) -> GalleryState:
        """Return the state, which is at most about a second old.

        Raises:
            UnavailableError, StoreError: The gallery cannot be read.
        """
        async with self._looking:
            if self._state is None or time.monotonic() >= self._next_look:
                start = time.monotonic()
                self._state = await self._service.run(self._look)
                now = time.monotonic()
                self._next_look = now + max(_SECONDS, (now - start) / _SHARE)
            return self._state

    async def states(self, first: GalleryState) -> AsyncIterator[GalleryState | None]:
        """Yield the first state and each other one, and `None` when nothing has changed for a while.

        A gallery that cannot be read at the moment has not changed.
        """
        last, beat = first, time.monotonic()
        yield first
        while not await self._is_stopping():
            try:
                state = await self.state()
            except LookalikeError:
                state = last
            if state != last or time.monotonic() > beat + _BEAT_SECONDS:
                yield state if state != last else None
                last, beat = state, time.monotonic()

    async def _is_stopping(self) -> bool:
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    def _look(self) -> GalleryState:
        service = self._service
        summary = service.summary()
        seen = service.refreshes, summary.images  # those of a database are counted, not followed
        before, self._seen = self._seen, seen
        is_same = before == seen and self._state is not None
        generation = self._state.generation if is_same and self._state else service.gallery.state_digest()
        return GalleryState(summary.uuid, generation, summary.images, service.indexing)
