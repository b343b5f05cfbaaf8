"""Choice of a gallery's precision, with a stand-in for a GPU: TF32 rounds as fp16 does, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval import Embedder, Gallery, LookalikeError, Runtime
from retrieval.ingest import precision_choice
from retrieval.ingest.committer import Committer
from retrieval.machine.devices import Device
from retrieval.model import sessions
from retrieval.storage.manifest import parse_manifest, read_copy
from retrieval.upkeep.reprojection import projected
from retrieval.upkeep.verify import verify
from tests.conftest import draw_classes, lookalike_here
from tests.retrieval.filling import item_ids
from tests.serve.model import write_model, write_rounded

CPU = Runtime(Device("cpu"))
Card = Callable[[float], None]


class OnCard:
    """Session of a CPU that says that it runs on a GPU."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_providers(self) -> list[str]:
        return [sessions.CUDA]


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    """A function that puts in the GPU; its TF32 is the small model in fp16 times a number."""

    def put_in(scale: float) -> None:
        fast = write_rounded(tmp_path / "fast.onnx", scale).read_bytes()

        def open_session(path: Path, data: bytes, runtime: Runtime) -> Any:
            if runtime.device.kind == "cpu":
                return sessions.open_session(path, data, runtime)
            allowed = runtime.options("cuda")["use_tf32"] == "1"
            return OnCard(sessions.open_session(path, fast if allowed else data, CPU))

        monkeypatch.setattr("retrieval.model.embedder.open_session", open_session)

    return put_in


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of 24 images."""
    return draw_classes(tmp_path / "photos", 3, 24)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.onnx")


def stored(gallery: Gallery) -> tuple[list[str], np.ndarray]:
    """Return the paths of a gallery's images, and their vectors."""
    items = gallery.items(item_ids(gallery).tolist())
    return [str(item.path) for item in items.values()], np.array([gallery.vector(id) for id in items])


def test_tf32_within_the_bounds_is_recorded_and_used(
    tmp_path: Path,
    model: Path,
    photos: Path,
    card: Card,
    capsys: pytest.CaptureFixture[str],
) -> None:
    card(1)
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.add([photos])
    record = gallery.manifest.precision
    assert record is not None
    assert (record.name, record.provider, record.drift.images) == ("tf32", sessions.CUDA, 72)
    assert 0.999 <= record.drift.least <= record.drift.mean < 1
    assert f"precision: {record}\n" in capsys.readouterr().err
    paths, vectors = stored(gallery)
    exact = Embedder(model, device="cpu").embed(paths)
    fast = Embedder(tmp_path / "fast.onnx", device="cpu").embed(paths)
    assert np.allclose(vectors, fast, atol=1e-7)
    assert not np.allclose(vectors, exact, atol=1e-7)

    again = Gallery.open(tmp_path / "g")
    assert again.manifest == gallery.manifest == read_copy(tmp_path / "g")
    assert again.embedder.runtime.tf32
    assert np.allclose(again.embedder.embed(paths), fast, atol=1e-7)
    again.use_model(Embedder(model))  # as `index add --model` does
    assert again.embedder.runtime.tf32
    assert verify(tmp_path / "g").problems == []
    on_cpu = Gallery.open(tmp_path / "g", runtime=CPU)
    assert on_cpu.embedder.provider == sessions.CPU
    assert np.allclose(on_cpu.embedder.embed(paths), exact, atol=1e-7)
    assert on_cpu.search(paths[5], k=1)[0].path == paths[5]
    assert f"  precision  {record}\n" in lookalike_here("index", "info", str(tmp_path / "g")).stdout
    assert gallery.info()["precision"] == record.as_dict()


def test_tf32_beyond_the_bounds_is_refused(tmp_path: Path, model: Path, photos: Path, card: Card) -> None:
    card(1000)
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.add([photos])
    record = gallery.manifest.precision
    assert record is not None
    assert record.name == "fp32"
    assert not record.drift.within
    paths, vectors = stored(gallery)
    assert np.allclose(vectors, Embedder(model, device="cpu").embed(paths), atol=1e-7)
    assert not Gallery.open(tmp_path / "g").embedder.runtime.tf32


def test_a_file_of_fp16_always_allows_tf32(tmp_path: Path, photos: Path, card: Card) -> None:
    """Without it, ONNX Runtime excludes the kernels of cuDNN for fp16 as well."""
    card(1)
    half = write_rounded(tmp_path / "half.onnx", precision="fp16")
    embedder = Embedder(half)
    assert embedder.runtime.tf32
    assert embedder.with_tf32(False) is embedder
    assert not Embedder(half, device="cpu").runtime.tf32
    gallery = Gallery.create(tmp_path / "g", half)
    gallery.add([photos])
    assert gallery.manifest.precision is None  # there was nothing to choose
    assert Gallery.open(tmp_path / "g").embedder.runtime.tf32


def test_probe_images_count_as_well(
    tmp_path: Path, model: Path, photos: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gallery must open on the card that it was made on, whose vectors of the probe images are others."""
    card(1)
    fast = Embedder(tmp_path / "fast.onnx", device="cpu")
    turned = np.roll(fast.embed_pixels(precision_choice.probe_pixels(fast)), 1, axis=1)
    original = Embedder.embed_pixels

    def embed_pixels(self: Embedder, pixels: Any) -> np.ndarray:
        return turned if self.runtime.tf32 and len(pixels) == 4 else original(self, pixels)

    monkeypatch.setattr(Embedder, "embed_pixels", embed_pixels)
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.add([photos])
    assert gallery.manifest.precision is not None
    assert gallery.manifest.precision.name == "fp32"
    assert Gallery.open(tmp_path / "g").embedder.provider == sessions.CUDA


def test_nothing_is_recorded_where_nothing_was_measured(
    tmp_path: Path, model: Path, photos: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, of few images, in a gallery that has images, and where TF32 is forbidden or the same."""
    plain = Gallery.create(tmp_path / "cpu", model)
    plain.add([photos])
    card(1)
    few = Gallery.create(tmp_path / "few", model)
    few.add([photos / "00"])
    few.add([photos])
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    forbidden = Gallery.create(tmp_path / "forbidden", model)
    forbidden.add([photos])
    for gallery in (plain, few, forbidden):
        assert len(gallery) >= 72
        assert gallery.manifest.precision is None
        assert not Gallery.open(gallery.folder).embedder.runtime.tf32
    assert "precision" not in lookalike_here("index", "info", str(tmp_path / "few")).stdout


def test_interrupted_build_keeps_its_decision(
    tmp_path: Path, model: Path, photos: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card(1)
    gallery = Gallery.create(tmp_path / "g", model)

    def fail(*_: object) -> None:
        raise LookalikeError("killed before the first commit")

    with monkeypatch.context() as broken:
        broken.setattr(Committer, "commit", fail)
        with pytest.raises(LookalikeError, match="killed"):
            gallery.add([photos])
    first = Gallery.open(tmp_path / "g")
    assert len(first) == 0
    assert first.manifest.precision is not None
    monkeypatch.setattr(precision_choice, "now", lambda: "2099-01-01T00:00:00")
    first.add([photos])
    assert len(first) == 72
    assert first.manifest.precision == gallery.manifest.precision


def test_record_outlives_a_lost_database_and_not_another_model(
    tmp_path: Path, model: Path, photos: Path, card: Card
) -> None:
    card(1)
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.add([photos])
    record = gallery.manifest.precision
    assert projected(gallery.manifest, gallery.embedder).precision is None
    lookalike_here("index", "export", str(tmp_path / "g"), str(tmp_path / "v.parquet"))
    words = ("index", "import", str(tmp_path / "h"), str(tmp_path / "v.parquet"), "--model", str(model))
    lookalike_here(*words)
    assert Gallery.open(tmp_path / "h").manifest.precision is None
    (tmp_path / "g" / "gallery.db").unlink()
    assert verify(tmp_path / "g", repair=True).left == []
    assert Gallery.open(tmp_path / "g").manifest.precision == record


def test_damaged_record_is_an_error(tmp_path: Path, model: Path) -> None:
    manifest = Gallery.create(tmp_path / "g", model).manifest
    assert parse_manifest("g", manifest.rows().items()) == manifest
    rows = {**manifest.rows(), "precision": '{"name": "tf32"}'}
    with pytest.raises(LookalikeError, match="damaged"):
        parse_manifest("g", rows.items())
