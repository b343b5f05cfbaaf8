"""The model file as the runtime sees it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from retrieval import Embedder, ImageError, InputError
from tests.conftest import draw


def changed(model_file: Path, **properties: object) -> bytes:
    model = onnx.load(model_file)
    kept = {p.key: p.value for p in model.metadata_props}
    kept |= {f"lookalike.{name}": json.dumps(value) for name, value in properties.items()}
    onnx.helper.set_model_props(model, kept)
    return model.SerializeToString()


def test_batches_of_any_size_give_the_same_vectors(model_file: Path, shop: Path) -> None:
    embedder, paths = Embedder(model_file), sorted(shop.rglob("*.png"))
    whole = embedder.embed(paths)
    assert whole.shape == (24, embedder.dim)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
    for size in (1, 5, 32):
        np.testing.assert_allclose(embedder.embed(paths, batch_size=size), whole, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(str(paths[0])), whole[:1], atol=1e-6)
    assert embedder.embed([]).shape == (0, embedder.dim)


def test_unreadable_picture_is_refused(model_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError):
        Embedder(model_file).embed([draw(0), tmp_path / "missing.png"])


def test_fingerprint_is_the_sha256_of_the_file(model_file: Path) -> None:
    from hashlib import sha256

    assert Embedder(model_file).fingerprint == sha256(model_file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda model: b"", "not a complete ONNX model"),
        (lambda model: b"not a model", "not a complete ONNX model"),
        (lambda model: model.read_bytes()[:5000], "not a complete ONNX model"),
        (lambda model: changed(model, format={"version": 2}), "update lookalike"),
        (lambda model: without_metadata(model), "not one made by"),
    ],
    ids=["empty", "garbage", "truncated", "newer", "foreign"],
)
def test_unusable_files_say_why(tmp_path: Path, model_file: Path, content, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content(model_file))
    with pytest.raises(InputError, match=message):
        Embedder(path)


def test_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lookalike export"):
        Embedder(tmp_path / "m.onnx")


def without_metadata(model_file: Path) -> bytes:
    model = onnx.load(model_file)
    del model.metadata_props[:]
    return model.SerializeToString()
