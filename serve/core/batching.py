"""Pictures of several requests through the model together: what a GPU wants, and a CPU does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

LARGEST = 64


class Batcher:
    """While the model runs, the pictures that arrive gather; then they run together.

    Nobody waits for company: a picture that comes alone runs alone, at once.

    Args:
        embed: pixels uint8 [N, S, S, 3] -> vectors float32 [N, D].
        largest: pictures in one run.
    """

    def __init__(self, embed: Callable[[np.ndarray], np.ndarray], largest: int = LARGEST) -> None:
        self._embed, self._largest = embed, largest
        self._gathered: list[tuple[np.ndarray, Future[np.ndarray]]] = []
        self._gathering, self._running = threading.Lock(), threading.Lock()

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """As `embed`; blocks the thread meanwhile. An error of a run is raised for all who are in it."""
        futures: list[Future[np.ndarray]] = [Future() for _ in pixels]
        with self._gathering:
            self._gathered += zip(pixels, futures, strict=True)
        while not all(future.done() for future in futures):
            with self._running:
                self._run()
        return np.stack([future.result() for future in futures])

    def _run(self) -> None:
        """Take what has gathered, the oldest first; it may be that somebody else took ours."""
        with self._gathering:
            batch, self._gathered = self._gathered[: self._largest], self._gathered[self._largest :]
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
