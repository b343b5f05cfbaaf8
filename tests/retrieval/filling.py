"""Galleries filled with random vectors, without images or model runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from retrieval import Gallery
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import FileStamp, NewItem, Value
from retrieval.storage.store import Store
from tests.serve.model import write_model

DIM = 48  # of the small model


def small_gallery(folder: Path) -> Gallery:
    """Return an empty gallery of the small model."""
    folder.mkdir(exist_ok=True)
    return Gallery.create(folder / "g", write_model(folder / "model.onnx"))


def bare_gallery(folder: Path) -> Gallery:
    """Return an empty gallery without a model."""
    Store.create(folder, Manifest("", DIM, embedding="random"))
    return Gallery(folder)


def unit_vectors(count: int, seed: int = 0) -> np.ndarray:
    """Return random unit vectors, float32 [count, DIM]."""
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def new_items(names: list[str], root: str = "/pictures", **metadata: Value) -> list[NewItem]:
    """Return an item per name; the file sizes are distinct."""
    stamps = [FileStamp(root, f"{name}.jpg", len(name), 1, name[0]) for name in names]
    return [NewItem(stamp, f"sha-{stamp.path}", 4, 3, metadata) for stamp in stamps]


def commit(gallery: Gallery, names: list[str], seed: int = 0, **metadata: Value) -> np.ndarray:
    """Commit random vectors under names, and return the vectors."""
    vectors = unit_vectors(len(names), seed)
    with gallery.store.writing():
        gallery.store.commit(vectors, new_items(names, **metadata))
    gallery.refresh()
    return vectors


def item_ids(gallery: Gallery) -> np.ndarray:
    """Return the ids of the live items, int64 [n], oldest vector first."""
    return gallery.state.item_ids(gallery.state.live_rows())


def contents(gallery: Gallery) -> dict[str, tuple[str | None, dict[str, Value], bytes]]:
    """Return label, metadata and vector bytes of all live items by key, in the committed state."""
    gallery.refresh()
    ids = item_ids(gallery)
    vectors = gallery.state.vectors(gallery.state.rows_of(ids))
    items = gallery.items(ids.tolist())
    return {
        items[i].key: (items[i].label, items[i].metadata, vector.tobytes())
        for i, vector in zip(ids.tolist(), vectors, strict=True)
    }
