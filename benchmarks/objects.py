"""Objects in clutter: share of the products that stand in a room among the first hits of its photograph.

    python -m benchmarks.objects ROOMS.csv lite0=shop.gallery [--single birds=birds.gallery]
        [--rooms whole=rooms.gallery] [--rooms parts=parts.gallery] [--labelled birds=parts.gallery]
        [--json FILE]

ROOMS.csv has the columns `room`, a photograph in the folder `rooms` beside it, and `products`, keys of a
gallery's items with semicolons between them. Each photograph is searched as a whole; as five fixed regions
and itself; as its tiles without and with the windows of the embedding map (`retrieval.galleries.objects`);
and as the boxes that are offered to people, each embedded again. A method was chosen on the first half of
the rooms; the second half has numbers of its own. Intervals are of the bootstrap over rooms, in percent.

With `--single`, pictures of one object each are searched for in a labelled gallery, as a whole and by their
tiles: the share whose first hit has their label.

With `--rooms`, the other way round: the gallery has the photographs, as they are or by `index build
--objects`, and each product that stands in one of them is searched for by its stored vector: the share found
of its rooms. Intervals are over products. Nothing was chosen, so both halves of the rooms count.
With `--labelled`, pictures of one object each in a gallery that was built in either way are searched for: the
share whose first hit, another picture, has their label.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import Gallery
from retrieval.galleries.objects import Tiles, as_box, decode_side, search_objects
from retrieval.images.load import load_pixels
from retrieval.search.options import SearchOptions

HITS = 50
DEPTH = 1000  # hits of a region that are merged
RESAMPLES = 2000
_ROOM_HITS = (5, 10)  # of a product
QUERIES = 300  # pictures of one object
_FIXED = [
    (0, 0, 1, 1),
    (0, 0, 0.6, 0.6),
    (0.4, 0, 1, 0.6),
    (0, 0.4, 0.6, 1),
    (0.4, 0.4, 1, 1),
    (0.2, 0.2, 0.8, 0.8),
]
Method = Callable[[Gallery, np.ndarray], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", type=Path)
    parser.add_argument("galleries", nargs="+", metavar="NAME=GALLERY")
    parser.add_argument("--single", action="append", default=[], metavar="NAME=GALLERY")
    parser.add_argument("--rooms", dest="photographs", action="append", default=[], metavar="NAME=GALLERY")
    parser.add_argument("--labelled", action="append", default=[], metavar="NAME=GALLERY")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with given.rooms.open(newline="") as file:
        rooms = [row for row in csv.DictReader(file) if row["products"]]
    first = np.zeros(len(rooms), bool)
    first[np.random.default_rng(0).permutation(len(rooms))[: len(rooms) // 2]] = True
    found = []
    for argument in given.galleries:
        name, _, folder = argument.partition("=")
        gallery = Gallery.open(folder)
        for method, search in METHODS.items():
            shares, seconds = _measure(gallery, given.rooms.parent / "rooms", rooms, search)
            row = {
                "gallery": name,
                "method": method,
                "seconds": round(float(np.median(seconds)), 4),
                "all": _interval(shares),
                "first half": _interval(shares[first]),
                "second half": _interval(shares[~first]),
            }
            found.append(row)
            print(f"{name:10} {method:28} {row['all']} second half {row['second half']} {row['seconds']} s")
    single = []
    for argument in given.single:
        name, _, folder = argument.partition("=")
        single.append({"gallery": name, **_single(Gallery.open(folder))})
        print(single[-1])
    reverse = []
    for argument in given.photographs:
        name, _, folder = argument.partition("=")
        reverse += _products(gallery, Gallery.open(folder), rooms, name)
    labelled = []
    for argument in given.labelled:
        name, _, folder = argument.partition("=")
        labelled.append({"gallery": name, **_labelled(Gallery.open(folder))})
        print(labelled[-1])
    if given.json is not None:
        chance = round(100 * HITS / len(gallery), 1)
        facts = {"hits": HITS, "rooms": len(rooms), "products": len(gallery), "chance": chance}
        given.json.write_text(
            json.dumps(
                {**facts, "rows": found, "single": single, "reverse": reverse, "labelled": labelled}, indent=1
            )
            + "\n"
        )


def _measure(
    gallery: Gallery, folder: Path, rooms: list[dict[str, str]], search: Method
) -> tuple[np.ndarray, np.ndarray]:
    """Return the share found of each room's products, and the CPU time of each search in seconds."""
    shares, seconds = [], []
    for room in rooms:
        wanted = set(gallery.ids_of(room["products"].split(";")))
        pixels = load_pixels(folder / room["room"], side=decode_side(gallery.embedder.preprocess))
        start = time.process_time()
        hits = search(gallery, pixels)
        seconds.append(time.process_time() - start)
        shares.append(len(wanted.intersection(hits)) / len(wanted))
    return np.array(shares), np.array(seconds)


def _products(
    catalogue: Gallery, photographs: Gallery, rooms: list[dict[str, str]], name: str
) -> list[dict[str, Any]]:
    """Return the share found of the rooms in which each product stands, and the CPU time of a search."""
    stands = dict[int, set[str]]()
    for room in rooms:
        for product in catalogue.ids_of(room["products"].split(";")):
            stands.setdefault(product, set()).add(room["room"])
    vectors = catalogue.vectors(sorted(stands))
    rows = []
    for count in _ROOM_HITS:
        shares, seconds = [], []
        for product, vector in vectors.items():
            start = time.process_time()
            hits = [*photographs.find(vector[None], SearchOptions(count), [()])[0]]
            seconds.append(time.process_time() - start)
            found = {hit.key.partition("#")[0] for hit in hits}
            shares.append(len(found & stands[product]) / len(stands[product]))
        row = {
            "gallery": name,
            "images": len(photographs),
            "hits": count,
            "products": len(shares),
            "share": _interval(np.array(shares)),
            "seconds": round(float(np.median(seconds)), 5),
        }
        print(row)
        rows.append(row)
    return rows


def _single(gallery: Gallery) -> dict[str, Any]:
    """Return the share of images whose first hit has their label: searched as a whole, and by tiles."""
    labels = dict(gallery.writer.labelled())
    ids = sorted(np.random.default_rng(0).permutation([*labels])[:QUERIES].tolist())
    paths, preprocess = gallery.paths.lookup(ids), gallery.embedder.preprocess
    right = []
    for number, path in zip(ids, paths, strict=True):
        pixels = load_pixels(path, side=decode_side(preprocess))
        vectors = gallery.embedder.embed_pixels(preprocess(pixels)[None])
        whole = gallery.find(vectors, SearchOptions(1), [(number,)])[0]
        parts = search_objects(gallery, Tiles.of(pixels, preprocess), SearchOptions(1), (number,)).hits
        right.append([hits[0].label == labels[number] for hits in (whole, parts)])
    both = np.array(right, float)
    return {
        "queries": len(right),
        "whole picture": _interval(both[:, 0]),
        "tiles and windows": _interval(both[:, 1]),
        "difference": _interval(both[:, 1] - both[:, 0]),
    }


def _labelled(gallery: Gallery) -> dict[str, Any]:
    """Return the share of pictures, not of parts, whose first hit is another picture of their label."""
    items = gallery.items(gallery.select(where="id > 0"))
    whole = [item for item in items.values() if item.part is None]
    chosen = np.random.default_rng(0).permutation(len(whole))[:QUERIES].tolist()
    right = [gallery.search_id(whole[n].id, 1)[0].label == whole[n].label for n in chosen]
    return {"images": len(items), "queries": len(right), "right": _interval(np.array(right, float))}


def _interval(shares: np.ndarray) -> list[float]:
    """Return mean, low and high end of a 95% interval over rooms, in percent."""
    random = np.random.default_rng(0)
    means = shares[random.integers(0, len(shares), (RESAMPLES, len(shares)))].mean(1)
    return [round(100 * float(one), 1) for one in (shares.mean(), *np.percentile(means, [2.5, 97.5]))]


def _whole(gallery: Gallery, pixels: np.ndarray) -> list[int]:
    vectors = gallery.embedder.embed_pixels(gallery.embedder.preprocess(pixels)[None])
    return [hit.id for hit in gallery.find(vectors, SearchOptions(HITS))[0]]


def _merged(gallery: Gallery, images: np.ndarray) -> list[int]:
    """Return the best hits of several images, each by its best score."""
    best: dict[int, float] = {}
    vectors = gallery.embedder.embed_pixels(images)
    for hits in gallery.find(vectors, SearchOptions(DEPTH)):
        for hit in hits:
            best[hit.id] = max(hit.score, best.get(hit.id, -1.0))
    return sorted(best, key=lambda one: -best[one])[:HITS]


def _regions(gallery: Gallery, pixels: np.ndarray, boxes: Any) -> list[int]:
    """Search with regions as the page does, each cut out and preprocessed."""
    height, width, _ = pixels.shape
    corners = [[round(at * side) for at, side in zip(box, (width, height) * 2, strict=True)] for box in boxes]
    parts = [pixels[top:bottom, left:right] for left, top, right, bottom in corners]
    return _merged(gallery, np.stack([gallery.embedder.preprocess(part) for part in parts]))


def _fixed(gallery: Gallery, pixels: np.ndarray) -> list[int]:
    return _regions(gallery, pixels, _FIXED)


def _tiles(gallery: Gallery, pixels: np.ndarray) -> list[int]:
    return _merged(gallery, Tiles.of(pixels, gallery.embedder.preprocess).pixels)


def _objects(gallery: Gallery, pixels: np.ndarray) -> list[int]:
    parts = Tiles.of(pixels, gallery.embedder.preprocess)
    return [hit.id for hit in search_objects(gallery, parts, SearchOptions(HITS)).hits]


def _offered(gallery: Gallery, pixels: np.ndarray) -> list[int]:
    parts = Tiles.of(pixels, gallery.embedder.preprocess)
    found = search_objects(gallery, parts, SearchOptions(HITS)).boxes
    return _merged(
        gallery,
        np.stack([gallery.embedder.preprocess.tile(pixels, _square(one.box, pixels)) for one in found]),
    )


def _square(box: tuple[float, ...], pixels: np.ndarray) -> tuple[float, float, float, float]:
    """Return the least square around a box, moved into the picture."""
    height, width, _ = pixels.shape
    left, top, right, bottom = (at * side for at, side in zip(box, (width, height) * 2, strict=True))
    side = min(max(right - left, bottom - top), width, height)
    x = min(max((left + right - side) / 2, 0), width - side)
    y = min(max((top + bottom - side) / 2, 0), height - side)
    return as_box([x / width, y / height, (x + side) / width, (y + side) / height])


METHODS: dict[str, Method] = {
    "whole picture": _whole,
    "whole and 5 fixed regions": _fixed,
    "tiles": _tiles,
    "tiles and windows": _objects,
    "offered boxes": _offered,
}


if __name__ == "__main__":
    main()
