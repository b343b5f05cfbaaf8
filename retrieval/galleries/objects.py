"""Objects in a picture: search for its parts, and the parts that look most like something in a gallery.

Each tile of the picture (`retrieval.search.regions`) is searched. Its hits are then compared with it in the
whitened space of the gallery (`retrieval.search.whitening`), and there the embedding map of the tile gives
each hit its window: the part of the tile that looks most like it. A hit's score is the mean of both cosines,
of the tile and of the window; without an embedding map it is that of the tile. A detector's boxes take the
place of the tiles, each seen in the least square around it, and have no windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from weakref import WeakKeyDictionary

import numpy as np

from retrieval.errors import InputError, pointing
from retrieval.galleries.items import Hit, PartHit
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.load import ImageSource, load_pixels
from retrieval.images.preprocess import Preprocess
from retrieval.images.resampling import Box
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.search.detector import Detector
from retrieval.search.options import SearchOptions
from retrieval.search.regions import squares_around, suppressed, tiles, windows
from retrieval.search.whitening import ridge_whitening

OBJECT_SCORES = "mean whitened cosine with a tile of the picture and its best window"
DEPTH = 100  # hits of each tile that are compared with it in detail
MOST_BOXES = 12
_BOX_DEPTH = 10  # hits of each tile whose windows may become boxes
_OVERLAP = 0.15  # of two boxes, intersection over union
_LEAST_SIDE = 0.4  # of the shorter side, a tile's: decoding at less would blur the tiles
_SAMPLE = 4000  # vectors of a gallery that the whitened space is fitted to
_ALONE = ("rerank", "order", "diversity", "min_probability", "group_size", "group_score")


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of a picture.

    Attributes:
        boxes: Their boxes, float64 [t, 4]: left, top, right, bottom as fractions of the upright picture.
        pixels: What the model sees of each, uint8 [t, S, S, 3].
        are_detected: They are boxes of a detector.
    """

    boxes: np.ndarray
    pixels: np.ndarray
    are_detected: bool = False

    @classmethod
    def of(cls, image: np.ndarray, preprocess: Preprocess, detector: Detector | None = None) -> Tiles:
        """Return the tiles of an upright RGB image, uint8 [H, W, 3], or what a detector finds in it.

        Where it finds nothing, tiles cover the picture.

        Raises:
            InputError: The detector fails.
        """
        height, width, _ = image.shape
        found = np.empty((0, 4)) if detector is None else detector.boxes(image)
        boxes = found if len(found) else tiles(width, height)
        seen = squares_around(found, width, height) if len(found) else boxes
        return cls(boxes, np.stack([preprocess.tile(image, as_box(box)) for box in seen]), len(found) > 0)


@dataclass(frozen=True)
class Objects:
    """What a gallery has of the objects in a picture.

    Attributes:
        hits: Items most similar to parts of the picture, best first, each with the part that it looks like.
        boxes: The parts that look most like something in the gallery, best first, each as the hit that it
            looks like. They overlap each other little. An object that is not in the gallery has none, unless
            it resembles one that is.
    """

    hits: list[PartHit]
    boxes: list[PartHit]


def decode_side(preprocess: Preprocess) -> int:
    """Return the shorter side of a picture, in pixels, at which its tiles have the size of model input."""
    return math.ceil(preprocess.size / _LEAST_SIDE)


def load_tiles(image: ImageSource, preprocess: Preprocess, detector: Detector | None = None) -> Tiles:
    """Load an image and return its tiles, or what a detector finds in it.

    Raises:
        ImageError: The image cannot be read.
        InputError: The detector fails.
    """
    return Tiles.of(load_pixels(image, side=decode_side(preprocess)), preprocess, detector)


def search_objects(
    gallery: SearchableGallery, parts: Tiles, options: SearchOptions, own: tuple[int, ...] = ()
) -> Objects:
    """Return what a gallery has of the objects in a picture, and where they are.

    Args:
        gallery: Gallery with a model.
        parts: Tiles of the picture.
        options: Search options without re-ranking, order, diversity, a lowest probability, and views or
            another score of groups.
        own: Ids of the items that are the picture, which are no hits.

    Raises:
        InputError: An option is invalid, or does not go with objects.
        LookalikeError: The model fails.
    """
    refuse_options(options)
    found_of_each = _search(gallery, parts, replace(options, k=max(DEPTH, options.k)), own)
    best: dict[object, PartHit] = {}
    for hit in sorted(chain(*found_of_each), key=lambda hit: (-hit.score, hit.id)):
        if options.min_score is None or hit.score >= options.min_score:
            best.setdefault(_group(hit), hit)
    first = [hit for hits in found_of_each for hit in hits[:_BOX_DEPTH]]
    places, scores = (
        np.array([hit.box for hit in first]).reshape(-1, 4),
        np.array([hit.score for hit in first]),
    )
    return Objects(
        [*best.values()][: options.k],
        [first[position] for position in suppressed(places, scores, MOST_BOXES, _OVERLAP)],
    )


def refuse_options(options: SearchOptions) -> None:
    """Raise an `InputError` if an option does not go with a search for objects."""
    for name in _ALONE:
        if getattr(options, name) != getattr(SearchOptions(), name):
            what = f"{name.replace('_', ' ')}: not with a search for objects, whose hits are of several parts"
            with pointing(f"#/{name}"):
                raise InputError(f"{what}; leave out one of the two")


def _search(
    gallery: SearchableGallery, parts: Tiles, options: SearchOptions, own: tuple[int, ...]
) -> list[list[PartHit]]:
    """Return the hits of each tile, by their cosine with it, each with its window."""
    vectors, maps = _embed(gallery.embedder, parts)
    plain = replace(options, calibrated=False, min_score=None)  # a score is known at the end only
    found = gallery.find(vectors, plain, [own] * len(vectors))
    ids = sorted({hit.id for hits in found for hit in hits})
    if not ids:
        return []
    space = _space(gallery)
    stored = gallery.vectors(ids)
    items = dict(zip(stored, space(np.stack([*stored.values()])), strict=True))
    boxes, seen = windows(parts.boxes, vectors[:, None, None] if maps is None else maps)
    width = vectors.shape[1]
    inside = space(seen.reshape(-1, width)).reshape(*seen.shape[:2], width)
    each = zip(found, space(vectors), boxes, inside, strict=True)
    return [_compared([hit for hit in hits if hit.id in items], items, *tile) for hits, *tile in each]


def _compared(
    hits: Sequence[Hit],
    items: Mapping[int, np.ndarray],
    tile: np.ndarray,
    boxes: np.ndarray,
    inside: np.ndarray,
) -> list[PartHit]:
    """Return the hits of a tile, best first, each with the window that is most like it.

    Args:
        hits: Hits.
        items: Whitened vectors of items, float32 [D] each.
        tile: That of the tile, float32 [D].
        boxes: Windows of the tile, float [m, 4].
        inside: Their whitened vectors, float32 [m, D].
    """
    if not hits:
        return []
    stored = np.stack([items[hit.id] for hit in hits])
    cosines = stored @ inside.T
    scores = (stored @ tile + cosines.max(1)) / 2
    best = boxes[cosines.argmax(1)]
    both = zip(hits, scores.tolist(), best, strict=True)
    found = [PartHit.part_of(hit, score, as_box(box)) for hit, score, box in both]
    return sorted(found, key=lambda hit: -hit.score)


_SPACES: WeakKeyDictionary[SearchableGallery, tuple[str, int, Layer]] = WeakKeyDictionary()


def _space(gallery: SearchableGallery) -> Layer:
    """Return the whitened space of a gallery.

    It is fitted again when the model changes, and when the number of images has doubled or become smaller.
    """
    known = _SPACES.get(gallery)
    if known is not None and known[0] == gallery.fingerprint and known[1] <= len(gallery) < 2 * known[1]:
        return known[2]
    sample = gallery.vectors(gallery.sample(_SAMPLE))
    space = ridge_whitening(np.stack([*sample.values()]))
    _SPACES[gallery] = gallery.fingerprint, len(gallery), space
    return space


def _embed(embedder: Embedder, parts: Tiles) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the vectors of tiles, float32 [t, D], and the embedding maps in which there are windows."""
    if embedder.has_map and not parts.are_detected:
        return embedder.embed_maps(parts.pixels)
    return embedder.embed_pixels(parts.pixels), None


def _group(hit: Hit) -> object:
    """Return what stands for all hits of which only the best is kept: those of an item, or of its group."""
    return ("single", hit.id) if hit.group is None else hit.group


def as_box(values: Sequence[float] | np.ndarray) -> Box:
    """Return four numbers as a box, rounded to what a region in an address has."""
    left, top, right, bottom = (round(float(value), 4) for value in values)
    return left, top, right, bottom
