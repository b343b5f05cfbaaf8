"""What the server gives to browsers that embed pictures themselves, and to whom."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import onnx
import pytest
from fastapi.testclient import TestClient

from retrieval import Gallery, InputError
from retrieval.model.archive import IMAGE, ModelArchive
from serve.app import create_app
from serve.config import Settings
from serve.core.service import SearchService
from serve.http.stack import protect
from serve.page import on_device
from serve.page.assets import files_path
from tests.serve.model import write_model

SCRIPT, BINARY = on_device._CHECKSUMS
RUNTIME = f"/page/onnxruntime-web-{on_device.VERSION}"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that of the package, whose files are others."""
    folder = tmp_path / "package"
    (folder / "dist").mkdir(parents=True)
    contents = {SCRIPT: b"export {};" * 1000, BINARY: b"\0asm" * 50_000}
    for name, content in contents.items():
        (folder / "dist" / name).write_bytes(content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(on_device, "_CHECKSUMS", sums)
    return folder


def opened(gallery: Path, runtime: Path | None) -> TestClient:
    service = SearchService(gallery)
    settings = Settings(galleries={"g": gallery}, names=("*",))
    return TestClient(protect(create_app(service, on_device=runtime), settings, service.telemetry))


@pytest.fixture
def client(shop_gallery: Path, runtime: Path) -> Iterator[httpx.Client]:
    with opened(shop_gallery, runtime) as client:
        yield client


def test_nothing_is_given_without_the_option(shop_gallery: Path) -> None:
    with opened(shop_gallery, None) as client:
        worker = f"{files_path()}/{on_device.WORKER}"
        paths = ("/parts/device", f"/parts/device/{'0' * 64}", f"{RUNTIME}/{SCRIPT}", f"{RUNTIME}/{BINARY}")
        for path in (*paths, worker):
            answer = client.get(path)
            assert answer.status_code == 404, path
            assert "wasm" not in answer.headers["content-security-policy"]
        page = client.get("/")
        assert "data-device" not in page.text
        assert "this device" not in page.text


def test_the_page_gets_the_very_model_of_the_gallery(client: httpx.Client, shop_gallery: Path) -> None:
    embedder = Gallery.open(shop_gallery).embedder
    found = client.get("/parts/device").json()
    assert found["fingerprint"] == embedder.fingerprint
    assert found["preprocess"] == embedder.preprocess.to_dict()
    answer = client.get(found["model"])
    assert hashlib.sha256(answer.content).hexdigest() == embedder.fingerprint
    assert int(answer.headers["content-length"]) == found["bytes"] == len(answer.content)
    assert "content-encoding" not in answer.headers, "weights do not compress"
    assert "immutable" in answer.headers["cache-control"]
    assert client.get(f"/parts/device/{'0' * 64}").status_code == 404
    assert "data-device" in client.get("/").text


def test_only_the_worker_may_compile_webassembly(client: httpx.Client) -> None:
    policies = {
        path: client.get(path).headers["content-security-policy"]
        for path in (
            "/",
            f"{files_path()}/main.js",
            f"{files_path()}/{on_device.WORKER}",
            f"{RUNTIME}/{SCRIPT}",
        )
    }
    (allowed,) = (path for path, policy in policies.items() if "wasm" in policy)
    assert allowed.endswith(on_device.WORKER)
    assert "script-src 'self' 'wasm-unsafe-eval';" in policies[allowed]
    for policy in policies.values():
        assert "'unsafe-eval'" not in policy
        assert "http" not in policy


def test_the_runtime_is_compressed_and_kept_for_ever(client: httpx.Client, runtime: Path) -> None:
    described = client.get("/parts/device").json()["runtime"]
    assert [one["address"] for one in described] == [f"{RUNTIME}/{SCRIPT}", f"{RUNTIME}/{BINARY}"]
    for one, kind in zip(described, ("text/javascript", "application/wasm"), strict=True):
        plain = client.get(one["address"], headers={"Accept-Encoding": "identity"})
        packed = client.get(one["address"], headers={"Accept-Encoding": "gzip"})
        name = one["address"].rpartition("/")[2]
        assert plain.content == packed.content == (runtime / "dist" / name).read_bytes()
        assert int(plain.headers["content-length"]) == one["bytes"]
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, 9, mtime=0))
        assert plain.headers["content-type"].startswith(kind)
        assert "immutable" in plain.headers["cache-control"]
    assert client.get(f"{RUNTIME}/package.json").status_code == 404


def test_of_a_pair_the_image_encoder_is_given(
    pair_file: Path, shop: Path, runtime: Path, tmp_path: Path
) -> None:
    gallery = Gallery.create(tmp_path / "pair.gallery", pair_file)
    gallery.add([shop / "red"])
    with opened(gallery.folder, runtime) as client:
        found = client.get("/parts/device").json()
        assert found["fingerprint"] == gallery.fingerprint
        content = client.get(found["model"]).content
        assert content == ModelArchive(pair_file).read(IMAGE)
        assert [one.name for one in onnx.load_model_from_string(content).graph.input] == ["images"]


def test_a_gallery_that_was_rebuilt_gives_its_new_model(shop: Path, runtime: Path, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    gallery = Gallery.create(folder, write_model(tmp_path / "old.onnx", "old"))
    gallery.add([shop / "red"])
    with opened(folder, runtime) as client:
        old = client.get("/parts/device").json()
        assert client.get(old["model"]).status_code == 200
        new = Gallery.create(tmp_path / "made", write_model(tmp_path / "new.onnx", "new"))
        new.add([shop / "red"])
        folder.rename(tmp_path / "away")
        new.folder.rename(folder)
        found = client.get("/parts/device").json()
        assert found["fingerprint"] == new.fingerprint != old["fingerprint"]
        assert hashlib.sha256(client.get(found["model"]).content).hexdigest() == new.fingerprint
        assert client.get(old["model"]).status_code == 404


def test_a_model_too_large_for_browsers_is_not_given(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_device, "_LARGEST", 100)
    answer = client.get("/parts/device")
    assert answer.status_code == 422
    assert "for browsers" in answer.json()["detail"]


def test_other_files_of_the_runtime_are_refused(runtime: Path, shop_gallery: Path) -> None:
    file = runtime / "dist" / BINARY
    good = file.read_bytes()
    assert list(on_device.read_runtime(runtime)) == list(on_device.read_runtime(runtime / "dist"))
    for spoil, said in (
        (lambda: file.write_bytes(good[:-1] + b"x"), "SHA-256"),
        (file.unlink, "cannot be read"),
    ):
        spoil()
        with pytest.raises(InputError, match=rf"--on-device .*{BINARY}: .*{said}.*npm pack onnxruntime-web@"):
            create_app(SearchService(shop_gallery), on_device=runtime)
