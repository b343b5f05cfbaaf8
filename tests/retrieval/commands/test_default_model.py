"""`lookalike index build` without --model: the gallery's own, EfficientNet-Lite0, or what to install."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from retrieval import Embedder, Gallery
from retrieval.commands import default_model
from retrieval.files import sha256_of
from retrieval.model.lite0 import PACKAGE
from tests.conftest import lookalike_here


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lookalike" / "models"


def test_lite0_is_made_once_and_said(tmp_path: Path, shop: Path, cache: Path) -> None:
    """The gallery needs the cache no more; a damaged file of the cache is made again."""
    first = lookalike_here("index", "build", str(tmp_path / "a"), str(shop), "--json")
    assert "EfficientNet-Lite0 with ImageNet weights (apache-2.0)" in first.stderr
    assert json.loads(first.stdout)["images"] == 24, "nothing else is on stdout"
    (file,) = cache.glob("*.onnx")
    before = file.stat().st_mtime_ns
    again = lookalike_here("index", "build", str(tmp_path / "b"), str(shop))
    assert "EfficientNet-Lite0" in again.stderr
    assert file.stat().st_mtime_ns == before
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert default_model.default_model().read_bytes() == whole
    shutil.rmtree(cache)
    kept = Gallery.open(tmp_path / "b")
    assert kept.embedder.provenance["license"] == "apache-2.0"
    paths = sorted(shop.rglob("*.png"))
    hits = [kept.search(path, k=1)[0] for path in paths]
    assert [Path(hit.path) for hit in hits] == paths


def test_a_gallery_is_continued_with_its_own_model(tmp_path: Path, shop: Path, model_file: Path) -> None:
    gallery = tmp_path / "g"
    lookalike_here("index", "build", str(gallery), str(shop), "--model", str(model_file))
    done = lookalike_here("index", "build", str(gallery), str(shop), "--json")
    facts = json.loads(done.stdout)
    assert (facts["added"], facts["unchanged"], facts["images"]) == (0, 24, 24)
    assert "EfficientNet" not in done.stderr
    assert Embedder(gallery / "model" / "model.onnx").fingerprint == sha256_of(model_file)
    (gallery / "model" / "model.onnx").unlink()
    refused = lookalike_here("index", "build", str(gallery), str(shop), code=2)
    assert "model.onnx: missing; give --model" in refused.stderr


def test_without_the_weights_the_error_says_how_to_get_a_model(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_weights(name: str) -> object:
        return None if name == PACKAGE else find_spec(name)

    monkeypatch.setattr(default_model, "find_spec", without_weights)
    refused = lookalike_here("index", "build", str(tmp_path / "g"), str(shop), code=2)
    assert refused.stderr.count("\n") == 1
    assert f"needs {PACKAGE}" in refused.stderr
    assert "install 'lookalike[standard]'" in refused.stderr
    assert not (tmp_path / "g").exists()
