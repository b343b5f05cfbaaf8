"""Tests of `lookalike index build`, `add`, `sync` and `rebuild`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

from retrieval.commands.options import parse_size
from retrieval.evaluation.report import trained_note
from retrieval.galleries.files import FilesView
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.model.sessions import open_session
from retrieval.model.training_images import UNKNOWN
from tests.conftest import draw, draw_classes, lookalike_here
from tests.serve.model import write_model


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three images, a metadata table and a model file."""
    draw_classes(tmp_path / "photos", ("red", "green"), 3)
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

    monkeypatch.setattr("retrieval.model.embedder.open_session", open_once)
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
    lookalike_here("index", "rebuild", "g", "--model", "n.onnx", "--device", "cpu", cwd=tmp_path)
    new, old = Runtime(Device("cpu")), Runtime()  # of the old one only the provenance is read
    assert opened == [("n.onnx", new), ("model.onnx", new), ("model.onnx", old)]


def test_every_gallery_of_a_command_is_on_the_given_device(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Runtime | None] = []
    init = FilesView.__init__

    def record(
        gallery: FilesView, folder: Path, *, root: Path | None = None, runtime: Runtime | None = None
    ) -> None:
        opened.append(runtime)
        init(gallery, folder, root=root, runtime=runtime)

    build = ("index", "build", "g", "photos", "--model", "m.onnx")
    lookalike_here(*build, cwd=tmp_path)
    lookalike_here("index", "export", "g", "g.npy", cwd=tmp_path)
    monkeypatch.setattr(FilesView, "__init__", record)
    for command in (
        build,
        ("index", "sync", "g", "photos"),
        ("index", "optimize", "g"),
        ("index", "optimize", "g", "--compact"),
        ("check", "duplicates", "g"),
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
    looked = lookalike_here("index", "sync", "g", cwd=tmp_path)
    assert "1 image whose file is gone (--prune removes them)" in looked.stderr
    write_model(tmp_path / "n.onnx", "new")
    rebuilt = lookalike_here("index", "rebuild", "g", "--model", "n.onnx", code=3, cwd=tmp_path)
    assert "old gallery: " in rebuilt.stderr
    assert json.loads(lookalike_here("index", "info", "g.old", "--json", cwd=tmp_path).stdout)["images"] == 5
    assert json.loads(lookalike_here("index", "info", "g", "--json", cwd=tmp_path).stdout)["images"] == 4


@pytest.fixture
def patterns(tmp_path: Path) -> Path:
    """Ten classes of patterns, which the colours of squares tell apart, and a model file of these colours."""
    for label in range(10):
        (tmp_path / "patterns" / f"{label}").mkdir(parents=True)
        base = np.random.default_rng(label).integers(60, 196, (4, 4, 3))
        for number in range(4):
            blocks = base + np.random.default_rng([label, number]).integers(-60, 61, (4, 4, 3))
            image = Image.fromarray(blocks.clip(0, 255).astype(np.uint8))
            image.resize((48, 48), Image.Resampling.NEAREST).save(
                tmp_path / "patterns" / f"{label}" / f"{number}.png"
            )
    write_model(tmp_path / "good.onnx")
    return tmp_path / "patterns"


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files but the lock, which names the last writer."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_rebuild_refuses_a_certain_loss(patterns: Path, tmp_path: Path, model_file: Path) -> None:
    """With an untrained network, and back; the numbers are those of the evaluations of both galleries."""

    def measured(*, tells: bool) -> dict[str, float]:
        report = json.loads(lookalike_here("evaluate", "g", "--json", cwd=tmp_path).stdout)
        assert (trained_note(UNKNOWN) not in report["notes"]) == tells, (
            "one file tells what it was trained on"
        )
        return {key: report["results"][-1]["values"][key] for key in ("recall_at_1", "map_at_r")}

    lookalike_here("index", "build", "g", "patterns", "--model", "good.onnx", cwd=tmp_path)
    good, before = measured(tells=False), contents(tmp_path / "g")
    rebuild = ("index", "rebuild", "g", "--model", str(model_file))
    refused = lookalike_here(*rebuild, code=1, cwd=tmp_path)
    assert "g: the new model finds less than the old one: Recall@1 -" in refused.stderr
    assert "for other classes like these" in refused.stderr
    assert "nothing was changed: --force takes it" in refused.stderr
    facts = json.loads(lookalike_here(*rebuild, "--json", code=1, cwd=tmp_path).stdout)
    assert facts["refused"]
    assert facts["comparison"]["verdict"]["outcome"] == "less"
    assert contents(tmp_path / "g") == before
    forced = lookalike_here(*rebuild, "--force", cwd=tmp_path)
    assert "the new model finds less" in forced.stderr
    assert "40 images already embedded by an earlier rebuild" in forced.stderr
    changes = facts["comparison"]["verdict"]["changes"]
    for key, value in measured(tells=True).items():
        assert changes[key]["difference"] == pytest.approx(value - good[key])
    back = ("index", "rebuild", "g", "--model", "good.onnx", "--drop-old", "--json")
    restored = json.loads(lookalike_here(*back, cwd=tmp_path).stdout)["comparison"]
    assert restored["verdict"]["outcome"] == "more"
    assert restored["verdict"]["sentence"].startswith("the new model finds more than the old one: Recall@1 +")
    assert "may have been trained on these images" in restored["remark"]


def test_rebuild_without_labels_says_that_models_are_not_compared(patterns: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "n.onnx", "new")
    files = "".join(f"{file}\n" for file in sorted(patterns.glob("*/*.png")))
    (tmp_path / "list.csv").write_text("path,label\n" + files.replace("\n", ",\n"))
    lookalike_here("index", "build", "g", "--metadata", "list.csv", "--model", "good.onnx", cwd=tmp_path)
    done = lookalike_here("index", "rebuild", "g", "--model", "n.onnx", cwd=tmp_path)
    assert "the models were not compared: that takes two classes of two labelled images" in done.stderr


def test_models_are_compared_on_whole_classes(
    patterns: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more images than are compared; one image has no label any more."""
    lookalike_here("index", "build", "g", "patterns", "--model", "good.onnx", cwd=tmp_path)
    (patterns / "0" / "0.png").rename(patterns / "0.png")
    write_model(tmp_path / "n.onnx", "new")
    monkeypatch.setattr("retrieval.evaluation.gallery.MOST_COMPARED", 34)
    lookalike_here("index", "add", "g", "patterns", cwd=tmp_path)
    done = lookalike_here("index", "rebuild", "g", "--model", "n.onnx", cwd=tmp_path)
    images = int(done.stderr.partition("find the same for every query; compared on ")[2].split()[0])
    assert images in (31, 32)  # eight of the ten classes: one has three images, the others have four
    assert "of 39 labelled images" in done.stderr


def test_list_from_stdin(photos: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "lookalike",
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
        (["m.onnx", "shop.csv"], "no image in 2 files is usable, such as"),
        (["shop.csv"], "; a table is named by --metadata "),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--watch",), "--watch needs FOLDER"),
        (("--dry-run",), "--dry-run needs FOLDER"),
        (("photos", "--prune"), "--prune is without FOLDER"),
        (("photos", "--watch", "--checksum"), "--watch excludes --dry-run, --checksum"),
    ],
)
def test_options_of_sync_that_exclude_each_other(words: tuple[str, ...], message: str) -> None:
    assert message in lookalike_here("index", "sync", "g", *words, code=2).stderr


def test_products_from_build_to_rebuild(photos: Path, tmp_path: Path) -> None:
    rows = [f"{shade}/{n}.png,{shade}{n // 2},size {n}" for shade in ("red", "green") for n in range(3)]
    (tmp_path / "skus.csv").write_text("\n".join(["path,sku,size", *rows]) + "\n")
    words = ("photos", "--metadata", "skus.csv", "--model", "m.onnx")
    lookalike_here("index", "build", "g", *words, "--product", "Sku,size", cwd=tmp_path)
    facts = json.loads(lookalike_here("index", "info", "g", "--json", cwd=tmp_path).stdout)
    assert (facts["product"], facts["variant"]) == ("sku", "size")
    assert "sku" in lookalike_here("index", "info", "g", cwd=tmp_path).stdout.split("product")[1]

    def found(*more: str) -> list[tuple[str, int, int]]:
        done = lookalike_here("search", "g", "photos/red/0.png", *more, "--json", cwd=tmp_path)
        hits = json.loads(done.stdout)[0]["hits"]
        return sorted((hit["group"] or "", hit["view_count"], len(hit["views"])) for hit in hits)

    each = [("green0", 2, 2), ("green1", 1, 1), ("red0", 2, 2), ("red1", 1, 1)]
    assert found("--group-size", "5") == each
    assert found("--group-by", "id") == [("", 0, 0)] * 6
    write_model(tmp_path / "n.onnx", "other")
    lookalike_here("index", "rebuild", "g", "--model", "n.onnx", cwd=tmp_path)
    assert found("--group-size", "5") == each, "a rebuild keeps the products"
    done = lookalike_here(
        "search", "g", "photos/red/0.png", "--group-size", "2", "--sheet", "s.html", cwd=tmp_path
    )
    assert "2 views, 2 variants: size 0 1.000, size 1 " in done.stdout.splitlines()[1]
    assert "size 1" in (tmp_path / "s.html").read_text()
    done = lookalike_here("search", "g", "photos/red/0.png", cwd=tmp_path)
    assert "2 views, 2 variants  " in done.stdout.splitlines()[1]
    lookalike_here("index", "add", "g", "--product", "label", cwd=tmp_path)
    assert [count for _, count, _ in found()] == [3, 3]
    unknown = lookalike_here("index", "add", "g", "--product", "skus", code=2, cwd=tmp_path)
    assert "no column 'skus'; did you mean 'sku'" in unknown.stderr
    lookalike_here("index", "add", "g", "--product", "", cwd=tmp_path)
    assert len(found()) == 6
