"""A gallery in a database whose replacement is killed: it has the old collection or the new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval import Embedder, Gallery
from retrieval.model.layer import Layer
from retrieval.stores.qdrant.embedded import QdrantEdgeEngine
from retrieval.upkeep import store_rebuild, store_reprojection, store_successor
from tests.conftest import draw
from tests.serve.model import DIM, write_model
from train.layers.folding import append_layer

pytestmark = pytest.mark.slow

IMAGES = 12
_WEIGHT = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, DIM)))[0][:9]
LAYER = Layer(_WEIGHT.astype(np.float32), np.zeros(DIM, np.float32))
# Where a process is killed: after the nth call of a function.
POINTS = {
    "reproject": [
        *[("create_folder", 1), ("create", 1), ("put", 1), ("put", 3), ("optimize", 1), ("copy_log", 1)],
        *[("exchange", 1), ("fsync_folder", 1)],
    ],
    "rebuild": [("create_folder", 1), ("create", 1), ("put", 1), ("exchange", 1), ("fsync_folder", 1)],
    "undo": [("put", 1), ("remove", 1), ("copy_log", 1), ("exchange", 1), ("drop", 1)],
}


def run(folder: Path, operation: str) -> None:
    """Put a gallery through the layer, or restore it."""
    gallery = Gallery.open(folder)
    if operation == "rebuild":
        found = gallery.rebuild(Embedder(folder.parent / "layered.onnx")).gallery
    elif operation == "reproject":
        model = Embedder(folder.parent / "layered.onnx")
        found = gallery.reproject(LAYER, model, command="teach").gallery
    else:
        found = gallery.undo_reprojection()
    for one in (gallery, found):
        one.engine.close()


def run_killed(point: str, calls: str, folder: str, operation: str) -> None:
    """Do the same, four items at a time, in a process that is killed."""
    store_reprojection._CHUNK = 4
    modules = (store_successor, store_rebuild if operation == "rebuild" else store_reprojection)
    owner = next((module for module in modules if hasattr(module, point)), QdrantEdgeEngine)
    kill_after(owner, point, int(calls))
    run(Path(folder), operation)


def kill_after(owner: Any, name: str, calls: int) -> None:
    """Let this process kill itself after a number of calls of a function."""
    original: Callable[..., Any] = getattr(owner, name)
    left = [calls]

    def killing(*given: Any, **named: Any) -> Any:
        result = original(*given, **named)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killing)


def state(folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Return which model a gallery has, and the vector of each item by key."""
    gallery = Gallery.open(folder)
    gallery.use_model(Embedder(gallery.embedder.path))  # checks the vectors of the probe images
    stored = gallery.embeddings()
    keys = [gallery.item(number).key for number in stored.ids.tolist()]
    gallery.engine.close()
    return gallery.fingerprint, dict(zip(keys, stored.vectors, strict=True))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a model, the model with the layer."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "images").mkdir()
    for n in range(IMAGES):
        draw(n).save(folder / "images" / f"{n}.png")
    append_layer(write_model(folder / "model.onnx"), LAYER, folder / "layered.onnx", {"command": "test"})
    return folder


@pytest.mark.parametrize(
    ("operation", "point", "calls"), [(name, *point) for name, points in POINTS.items() for point in points]
)
def test_killed(made: Path, tmp_path: Path, operation: str, point: str, calls: int) -> None:
    for name in ("images", "model.onnx", "layered.onnx"):
        (tmp_path / name).symlink_to(made / name)
    folder, models = tmp_path / "gallery", [Embedder(made / f"{name}.onnx") for name in ("model", "layered")]
    gallery = Gallery.create(folder, models[0], store=f"qdrant://{tmp_path / 'collection'}")
    gallery.add([made / "images"])
    gallery.engine.close()
    if operation == "undo":
        run(folder, "reproject")
        taught = Gallery.open(folder)
        taught.remove(["0.png"])
        taught.engine.close()
    keys = {f"{n}.png" for n in range(operation == "undo", IMAGES)}
    program = f"import sys; import {__name__} as t; t.run_killed(*sys.argv[1:])"
    words = [sys.executable, "-c", program, point, str(calls), str(folder), operation]
    killed = subprocess.run(words, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    fingerprint, items = state(folder)
    assert items.keys() == keys
    check(made, items, models, fingerprint)
    finished = fingerprint == models[operation != "undo"].fingerprint
    if not finished:
        run(folder, operation)
        fingerprint, items = state(folder)
        assert fingerprint == models[operation != "undo"].fingerprint
        check(made, items, models, fingerprint)
        assert items.keys() == keys
    if operation == "reproject":
        run(folder, "undo")
        assert state(folder)[0] == models[0].fingerprint
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            *("collection", "gallery", "images", "layered.onnx", "model.onnx"),
        ], "no collection is left behind"


def check(made: Path, items: dict[str, np.ndarray], models: list[Embedder], fingerprint: str) -> None:
    """Compare vectors with those of the model that the gallery names."""
    (model,) = (model for model in models if model.fingerprint == fingerprint)
    expected = model.embed([made / "images" / key for key in items])
    np.testing.assert_allclose(np.stack([*items.values()]), expected, atol=2e-3)
