"""Choice of the precision of a new gallery's model on an NVIDIA GPU, by its own first images."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import islice

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import now
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.decode import read_ahead
from retrieval.images.location import Location
from retrieval.images.picture import Decoded
from retrieval.model.embedder import Embedder
from retrieval.model.precision import Drift, Precision, measure_drift
from retrieval.model.sessions import CUDA
from retrieval.storage.identity import probe_pixels
from retrieval.text import print_notice

SAMPLE = 256  # files
_FEWEST = 64  # images; a gallery of fewer is embedded at once in any precision, and says little of neighbours


def choose_precision(gallery: SearchableGallery, places: Iterable[Location]) -> None:
    """Record in which precision the model of an empty gallery computes on an NVIDIA GPU, and use it.

    The first images are embedded in fp32 and with TF32. TF32 is chosen if the difference is within the bounds
    of `retrieval.model.precision`, for the probe images as well. Nothing is recorded if the model does not
    run on such a GPU, if it was recorded before, if TF32 changes nothing there, as in a file of fp16, or for
    very few images.

    Args:
        gallery: Gallery, inside `writer.running()`.
        places: Files that are to be embedded, of which the first are read.

    Raises:
        LookalikeError: The model fails in fp32, or the gallery cannot be written.
    """
    if gallery.manifest.precision is not None or len(gallery) or gallery.embedder.provider != CUDA:
        return
    exact = gallery.embedder.with_tf32(False)
    fast = exact.with_tf32(True)
    if fast is exact:  # a file of fp16
        return
    drift = sample_drift(exact, fast, islice(places, SAMPLE))
    if drift is None:
        return
    chosen = Precision("tf32" if drift.within else "fp32", drift, exact.provider, now()[:10])
    gallery.writer.use_manifest(replace(gallery.manifest, precision=chosen))
    gallery.refresh()
    gallery.use_model(fast if drift.within else exact)
    print_notice(f"precision: {chosen}")


def sample_drift(exact: Embedder, fast: Embedder, places: Iterable[Location]) -> Drift | None:
    """Return what a faster precision of a model changes; `None` if nothing, or if too few images can be read.

    Args:
        exact: Model in fp32.
        fast: The same model in the other precision. If it fails, so that it cannot be used, nothing changes.
        places: Image files, each of which is read once.
    """
    preprocess = exact.preprocess
    with closing(read_ahead(places, preprocess, side=preprocess.scaled, known=lambda _: False)) as files:
        pixels = [file.pixels for file in files if isinstance(file, Decoded)]
    if len(pixels) < _FEWEST:
        return None
    probes = probe_pixels(exact)
    try:
        found, found_probes = fast.embed_pixels(pixels), fast.embed_pixels(probes)
    except LookalikeError:  # such as too little memory for a second session
        return None
    wanted, wanted_probes = exact.embed_pixels(pixels), exact.embed_pixels(probes)
    if np.array_equal(wanted, found):
        return None
    drift, of_probes = measure_drift(wanted, found), measure_drift(wanted_probes, found_probes)
    return replace(drift, least=min(drift.least, of_probes.least))
