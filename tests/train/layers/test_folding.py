"""Folding of a layer into a model file, against the same layer in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import Embedder, InputError
from retrieval.model.layer import Layer
from tests.conftest import draw
from train.layers.folding import append_layer


def exact(layer: Layer, vectors: np.ndarray) -> np.ndarray:
    """Return the vectors after a layer in float64, one by one."""
    found = []
    for vector in vectors.astype(np.float64):
        moved = np.array([row @ (vector - layer.mean) for row in layer.weight.astype(np.float64)])
        found.append(moved / np.sqrt((moved**2).sum()))
    return np.array(found)


def a_layer(seed: int, before: int, after: int) -> Layer:
    random = np.random.default_rng(seed)
    mean = random.normal(size=before).astype(np.float32) / before
    return Layer(random.normal(size=(after, before)).astype(np.float32), mean)


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 9))
def test_layer_of_arrays(seed: int, before: int, after: int) -> None:
    layer = a_layer(seed, before, after)
    vectors = np.random.default_rng(seed + 1).normal(size=(5, before)).astype(np.float32)
    centred = vectors - layer.mean
    kept = np.linalg.norm(centred @ layer.weight.T, axis=1) / np.linalg.norm(centred, axis=1)
    # Rounding is relative to the terms of the sums, which may nearly cancel.
    allowed = 2e-6 * np.linalg.norm(layer.weight) / kept
    assert (np.abs(layer(vectors) - exact(layer, vectors)).max(1) <= allowed).all()


def test_two_layers_are_folded_one_after_another(tmp_path: Path, model_file: Path) -> None:
    """Embedding and map of the file, at several batch sizes; the map's mean is the embedding."""
    before = Embedder(model_file)
    first, second = a_layer(0, before.dim, 12), a_layer(1, 12, 7)
    append_layer(model_file, first, tmp_path / "one.onnx", {"method": "first"})
    append_layer(tmp_path / "one.onnx", second, tmp_path / "one.onnx", {"method": "second"})
    after = Embedder(tmp_path / "one.onnx")
    images = [draw(seed, hue=seed % 3) for seed in range(5)]
    expected = exact(second, exact(first, before.embed(images)))
    for size in (1, 5):
        np.testing.assert_allclose(after.embed(images, batch_size=size), expected, atol=1e-5)
    vectors, maps = after.embed_maps(np.stack([after.pixels(image) for image in images]))
    means = maps.mean((1, 2))
    np.testing.assert_allclose(means / np.linalg.norm(means, axis=1, keepdims=True), expected, atol=1e-5)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert after.dim == 7
    assert [(note["method"], note["dim"]) for note in after.provenance["layers"]] == [
        ("first", 12),
        ("second", 7),
    ]
    assert after.fingerprint != before.fingerprint
    onnx.checker.check_model(onnx.load(tmp_path / "one.onnx"), full_check=True)


def test_images_and_texts_of_an_archive_get_the_layer(tmp_path: Path, pair_file: Path) -> None:
    before = Embedder(pair_file)
    layer = a_layer(3, before.dim, 5)
    append_layer(pair_file, layer, tmp_path / "new.zip", {"method": "test"})
    after = Embedder(tmp_path / "new.zip")
    texts, images = ["a red photo", "blue"], [draw(1), draw(2, hue=1)]
    np.testing.assert_allclose(after.embed_texts(texts), exact(layer, before.embed_texts(texts)), atol=1e-5)
    np.testing.assert_allclose(after.embed(images), exact(layer, before.embed(images)), atol=1e-5)


def test_layer_of_another_dimension_is_refused(tmp_path: Path, model_file: Path) -> None:
    with pytest.raises(InputError, match="has 16 dimensions, but the layer has"):
        append_layer(model_file, a_layer(0, 15, 4), tmp_path / "new.onnx", {})
    assert not (tmp_path / "new.onnx").exists()
