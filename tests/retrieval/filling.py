"""Galleries filled with random vectors, without images or model runs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx

from retrieval import Gallery
from retrieval.model.training_images import TrainingImages
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import FileStamp, NewItem, Value
from retrieval.storage.store import Store
from tests.serve.model import write_model

DIM = 48  # of the small model


def small_gallery(folder: Path, trained_on: TrainingImages | None = None) -> Gallery:
    """Return an empty gallery of the small model, whose file may tell what it was trained on."""
    folder.mkdir(exist_ok=True)
    file = write_model(folder / "model.onnx")
    if trained_on is not None:
        model = onnx.load(file)
        model.metadata_props.add(key="lookalike.training_images", value=json.dumps(trained_on.to_dict()))
        onnx.save(model, file)
    return Gallery.create(folder / "g", file)


def gallery_of_unknown_training(folder: Path) -> Gallery:
    """Return an empty gallery of a model whose file does not say what it was trained on."""
    folder.mkdir(exist_ok=True)
    file = write_model(folder / "model.onnx")
    model = onnx.load(file)
    (entry,) = (entry for entry in model.metadata_props if entry.key == "lookalike.provenance")
    entry.value = json.dumps({"note": "made elsewhere"})
    onnx.save(model, file)
    return Gallery.create(folder / "g", file)


def trained_on(contents: list[str], labels: list[str], held_out: list[str] | None = None) -> TrainingImages:
    """Return training images of these SHA-256."""

    def numbers(digests: list[str]) -> np.ndarray:
        return np.sort(np.array([int(digest[:16], 16) for digest in digests], np.uint64))

    names = [hashlib.sha256(label.encode()).hexdigest() for label in labels]
    return TrainingImages(
        len(contents), len(labels), numbers(contents), numbers(names), numbers(held_out or [])
    )


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
