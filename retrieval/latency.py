"""How long a model takes to embed a batch."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import InputError

_MIN_REPETITIONS = 3


def latency(embedder: Embedder, batch: int, *, seconds: float = 1.0) -> float:
    """Median seconds to embed a batch of noise uint8 [batch, S, S, 3], decoding not counted.

    The first run, which allocates memory and on some devices compiles, is not counted either.

    Args:
        batch: pictures at a time; at least 1.
        seconds: for how long to repeat it; at least three times in any case.

    Raises:
        InputError: a batch below 1.
    """
    if batch < 1:
        raise InputError(f"a batch has at least 1 picture, got {batch}")
    side = embedder.preprocess.size
    pixels = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), np.uint8)
    embedder.embed_pixels(pixels)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _MIN_REPETITIONS or time.perf_counter() < end:
        start = time.perf_counter()
        embedder.embed_pixels(pixels)
        times.append(time.perf_counter() - start)
    return median(times)
