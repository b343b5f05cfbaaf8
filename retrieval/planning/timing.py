"""Decoding and embedding measured on this machine, in place of the planner's own constants."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.images.decode import Decoded, decode_ahead
from retrieval.ingest.sources import scan
from retrieval.model.embedder import Embedder
from retrieval.planning.constants import Number
from retrieval.storage.planning import ImageFile

_IMAGES = 256
_SECONDS = 3.0


def measure_images(embedder: Embedder, folder: Path) -> tuple[Number, Number]:
    """Return the CPU milliseconds to decode an image of a folder, and to embed it.

    Takes about eight seconds on one core, or as long as the folder's images take.

    Raises:
        InputError: The folder has no image that can be decoded.
    """
    found = (entry for entry in scan([folder]) if isinstance(entry, ImageFile))
    paths = [Path(entry.root, entry.path) for entry in islice(found, _IMAGES)]
    begun, processor = time.perf_counter(), time.process_time()
    pixels, seen = [], 0
    for file in decode_ahead(paths, embedder.preprocess, side=embedder.preprocess.scaled):
        seen += 1
        if isinstance(file, Decoded):
            pixels.append(file.pixels)
        if time.perf_counter() - begun > _SECONDS:
            break
    decode = 1000 * (time.process_time() - processor) / max(seen, 1)
    if not pixels:
        raise InputError(f"{folder}: no image in it can be decoded; name a folder of images")
    batch = np.stack(pixels[: embedder.batch_size])
    embed = _milliseconds(lambda: embedder.embed_pixels(batch)) / len(batch)
    source = f"{len(pixels)} images of {folder} on this machine, {embedder.provider}"
    unit = "ms of one core per image"
    return Number(decode, unit, "measured", source), Number(embed, unit, "measured", source)


def _milliseconds(work: Callable[[], object]) -> float:
    """Return the CPU milliseconds of a piece of work, without its first run and those that still adapt."""
    for _ in range(2):
        work()
    begun, processor, rounds = time.perf_counter(), time.process_time(), 0
    while not rounds or time.perf_counter() - begun < _SECONDS:
        work()
        rounds += 1
    return 1000 * (time.process_time() - processor) / rounds
