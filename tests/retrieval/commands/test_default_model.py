"""The model of a gallery: its own, EfficientNet-Lite0, the best one for a machine, or what to install."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from retrieval import Embedder, Gallery, InputError
from retrieval.commands import default_model
from retrieval.files import sha256_of
from retrieval.model.licenses import PERMISSIVE
from retrieval.model.lite0 import PACKAGE
from retrieval.model.runtime import Runtime
from tests.conftest import lookalike_here
from tests.hub_server import HubServer
from train.curated_backbones import STRONGEST, affordable, curated_backbones


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


# ---- the best one for a machine


def test_the_strongest_small_backbone_that_is_fast_enough_is_chosen() -> None:
    """Twice as many cores, or a CPU twice as fast, afford what takes twice as long."""
    listed = {row.name: row for row in curated_backbones()}
    lite0 = listed["timm:tf_efficientnet_lite0.in1k"].milliseconds / 1000
    for name in STRONGEST:
        row = listed[name]
        assert row.license in PERMISSIVE
        assert row.parameters <= 30e6
    for cores in (1, 2, 4, 16, 64):
        found, rate = affordable(lite0, cores, 15)
        fast = [name for name in STRONGEST if 1000 * cores / listed[name].milliseconds >= 15]
        assert found is listed[fast[0]]
        assert rate == pytest.approx(1000 * cores / found.milliseconds)
        assert affordable(2 * lite0, 2 * cores, 15) == (found, pytest.approx(rate))
    assert affordable(100 * lite0, 1, 15) == (None, 0)


def test_whether_the_hub_answers_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with socket.socket() as silent:  # accepts connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        started = time.monotonic()
        assert default_model._why_offline() == f"as {address} cannot be reached from here"
        assert time.monotonic() - started < 10, "two seconds, on a quiet machine"
    with HubServer().running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert default_model._why_offline() == ""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert default_model._why_offline() == "as HF_HUB_OFFLINE is set"


def test_a_damaged_download_is_noticed_and_deleted(tmp_path: Path) -> None:
    """In the cache of the hub, a large file has the name of its SHA-256."""
    hub = HubServer()
    hub.files["models", "timm/net"] = {"model.safetensors": bytes(2**20), "config.json": b"{}"}
    program = (
        "from retrieval.model import hub\n"
        "found = hub.download('timm/net', ['model.safetensors'])\n"
        "hub.check_download('timm/net', found)\n"
        "stored = (found / 'model.safetensors').resolve()\n"
        "stored.write_bytes(b'x' + stored.read_bytes()[1:])\n"
        "try: hub.check_download('timm/net', found)\n"
        "except hub.LookalikeError as error: print(error, stored.exists())\n"
    )
    with hub.running():
        environment = {**os.environ, **hub.environment(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment
        )
    assert done.stdout == "timm/net: model.safetensors was damaged, and is deleted; get it again False\n", (
        done
    )


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="--model lite1: neither a file nor a name"):
        default_model.chosen_model("lite1", Runtime())
