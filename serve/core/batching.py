"""Dynamic batching: images of concurrent requests share one run of the model, which a GPU needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

MAX_BATCH = 64


class Batcher:
    """Collects images while the model runs and embeds them in the next run.

    Adds no delay: an image that arrives while the model is idle is embedded at once.

    Args:
        embed: Function from pixels uint8 [N, S, S, 3] to vectors float32 [N, D].
        max_batch: Images per run.
    """

    def __init__(self, embed: Callable[[np.ndarray], np.ndarray], max_batch: int = MAX_BATCH) -> None:
        self._embed, self._max_batch = embed, max_batch
        self._pending: list[tuple[np.ndarray, Future[np.ndarray]]] = []
        self._pending_lock, self._run_lock = threading.Lock(), threading.Lock()

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Embed pixels like `embed`; blocks the thread. An error of a run is raised for all images in it."""
        futures: list[Future[np.ndarray]] = [Future() for _ in pixels]
        with self._pending_lock:
            self._pending += zip(pixels, futures, strict=True)
        while not all(future.done() for future in futures):
            with self._run_lock:
                self._run()
        return np.stack([future.result() for future in futures])

    def _run(self) -> None:
        """Embed the oldest pending images, which may include none of this thread."""
        with self._pending_lock:
            batch, self._pending = self._pending[: self._max_batch], self._pending[self._max_batch :]
        if not batch:
            return
        try:
            vectors = self._embed(np.stack([pixels for pixels, _ in batch]))
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
        else:
            for (_, future), vector in zip(batch, vectors, strict=True):
                future.set_result(vector)
