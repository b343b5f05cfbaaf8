"""Tests of `lookalike index build`, `add`, `update`, `sync` and `rebuild`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import onnxruntime as ort
import pytest

from retrieval.commands.options import parse_size
from retrieval.devices import Device
from retrieval.gallery import Gallery
from retrieval.inference.runtime import Runtime
from retrieval.inference.sessions import open_session
from tests.conftest import draw, lookalike_here
from tests.serve.model import write_model


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three images, a metadata table and a model file."""
    for hue, name in enumerate(("red", "green")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for seed in range(3):
            draw(seed, hue=hue).save(tmp_path / "photos" / name / f"{seed}.png")
    (tmp_path / "shop.csv").write_text("path,id,label,price\nred/0.png,a,scarlet,12\ngreen/1.png,b,,3\n")
    write_model(tmp_path / "m.onnx")
    return tmp_path / "photos"


def test_commands_load_the_model_once_on_the_given_device(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Runtime]] = []

    def open_once(path: Path, data: bytes, runtime: Runtime) -> ort.InferenceSession:
        opened.append((path.name, runtime))
        return open_session(path, data, runtime)

    monkeypatch.setattr("retrieval.embedder.open_session", open_once)
    build = ("index", "build", "g", "photos", "--model", "m.onnx")
    commands: list[tuple[str, ...]] = [
        build,
        (*build, "--retry"),
        ("index", "sync", "g", "photos"),
        ("index", "add", "g", "photos", "--model", "m.onnx"),
        ("search", "g", "photos/red/0.png"),
    ]
    write_model(tmp_path / "n.onnx", "other")
    for command in commands:
        draw(len(opened), hue=2).save(photos / f"{len(opened)}.png")  # something to embed
        lookalike_here(*command, "--device", "cpu", "--batch-size", "7", cwd=tmp_path)
    assert opened == [
        (name, Runtime(Device("cpu"), batch_size=7))
        for name in ["m.onnx"] * 2 + ["model.onnx"] + ["m.onnx", "model.onnx"]
    ]
    opened.clear()
    lookalike_here("index", "rebuild", "g", "--model", "n.onnx", "--provider", "cpu", cwd=tmp_path)
    assert opened == [("n.onnx", Runtime(provider="cpu")), ("model.onnx", Runtime(provider="cpu"))]


def test_every_gallery_of_a_command_is_on_the_given_device(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Runtime | None] = []
    init = Gallery.__init__

    def record(
        gallery: Gallery, folder: Path, *, root: Path | None = None, runtime: Runtime | None = None
    ) -> None:
        opened.append(runtime)
        init(gallery, folder, root=root, runtime=runtime)

    build = ("index", "build", "g", "photos", "--model", "m.onnx")
    lookalike_here(*build, cwd=tmp_path)
    lookalike_here("index", "export", "g", "g.npy", cwd=tmp_path)
    monkeypatch.setattr(Gallery, "__init__", record)
    for command in (
        build,
        ("index", "sync", "g", "photos"),
        ("index", "optimize", "g"),
        ("index", "compact", "g"),
        ("duplicates", "g"),
        ("evaluate", "g"),
        ("search", "g", "--id", "1"),
    ):
        opened.clear()
        lookalike_here(*command, "--device", "cpu", cwd=tmp_path)
        assert opened == [Runtime(Device("cpu"))], command
    opened.clear()
    lookalike_here("index", "import", "h", "g.npy", "--model", "m.onnx", "--device", "cpu", cwd=tmp_path)
    assert opened[0] == Runtime(Device("cpu"))


def test_build_update_sync_and_rebuild(photos: Path, tmp_path: Path) -> None:
    build = ["index", "build", "g", "photos", "--metadata", "shop.csv", "--model", "m.onnx"]
    facts = json.loads(lookalike_here(*build, "--json", "--memory", "1GB", cwd=tmp_path).stdout)
    assert (facts["added"], facts["unchanged"], facts["columns"]) == (6, 0, ["price"])
    assert "nothing new to add, 6 unchanged" in lookalike_here(*build, cwd=tmp_path).stdout
    found = lookalike_here("search", "g", "photos/red/0.png", "--where", "price > 10", "--json", cwd=tmp_path)
    assert json.loads(found.stdout)[0]["hits"][0]["key"] == "a"
    (photos / "red" / "1.png").rename(photos / "red" / "other.png")
    (photos / "red" / "2.png").unlink()
    dry = json.loads(
        lookalike_here("index", "sync", "g", "photos", "--dry-run", "--json", cwd=tmp_path).stdout
    )
    assert (dry["new"], dry["moved"], dry["changed"], dry["unchanged"]) == (0, 1, 0, 4)
    assert len(dry["gone"]) == 1
    done = lookalike_here("index", "sync", "g", "photos", cwd=tmp_path)
    assert "1 moved, 1 removed, 4 unchanged; 5 images in the gallery" in done.stdout
    (photos / "red" / "other.png").unlink()
    looked = lookalike_here("index", "update", "g", cwd=tmp_path)
    assert "1 image whose file is gone (--prune removes them)" in looked.stderr
    write_model(tmp_path / "n.onnx", "new")
    rebuilt = lookalike_here("index", "rebuild", "g", "--model", "n.onnx", code=3, cwd=tmp_path)
    assert "old gallery: " in rebuilt.stderr
    assert json.loads(lookalike_here("index", "info", "g.old", "--json", cwd=tmp_path).stdout)["images"] == 5
    assert json.loads(lookalike_here("index", "info", "g", "--json", cwd=tmp_path).stdout)["images"] == 4


def test_list_from_stdin(photos: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "retrieval.cli",
        "index",
        "build",
        "g",
        "--list",
        "-",
        "--model",
        "m.onnx",
    ]
    names = "".join(f"photos/red/{n}.png\n" for n in range(3))
    done = subprocess.run(command, input=names, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "3 added" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no images: name files or folders"),
        (["nowhere"], "no such file or folder"),
        (["photos/*.gif"], "no image files"),
        (["archives"], "; unpack the archives in it"),
        (["archives/a.tar.gz"], "is an archive; unpack it"),
        (["m.onnx", "shop.csv"], "2 files contain no usable image, such as"),
        (["photos", "--metadata", "m.onnx"], "cannot be read as a CSV file"),
        (["photos", "--memory", "much"], "not a size"),
        (["photos", "--kind", "tree"], "Invalid value for '--kind'"),
        (["photos", "--max-bad", "2"], "Invalid value for '--max-bad'"),
    ],
)
def test_unusable_input_creates_no_gallery(
    photos: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "a.tar.gz").touch()
    done = lookalike_here("index", "build", "g", *words, "--model", "m.onnx", code=2, cwd=tmp_path)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("500m", 500 * 10**6), ("4KiB", 4096)],
)
def test_sizes_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2 apples", "-1GB", "1e9"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_size(text)
