"""`datasets info`: counts and problems of a data set."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import draw, lookalike_here, unzip_shared
from train import data
from train.data.inspection import inspect_dataset


def test_counts_and_problems_of_a_folder(shop: Path, tmp_path: Path) -> None:
    for split, names in (("train", ("red", "green")), ("test", ("blue", "green"))):
        for name in names:
            shutil.copytree(shop / name, tmp_path / split / name)
    for seed in range(8):
        (tmp_path / "test" / "green" / f"{seed}.png").unlink()
    draw(99).save(tmp_path / "test" / "green" / "only.png")
    shutil.copy(shop / "red" / "0.png", tmp_path / "train" / "red" / "again.png")
    shutil.copy(shop / "green" / "0.png", tmp_path / "test" / "blue" / "mixed\nup.png")
    (tmp_path / "train" / "red" / "1.png").write_bytes(b"not an image")
    done = lookalike_here("datasets", "info", f"folder:{tmp_path}", "--json", code=3)
    found = json.loads(done.stdout)
    assert (found["images"], found["classes"], found["coarse"]) == (27, 3, None)
    assert found["splits"] == {
        "train": {"images": 17, "classes": 2, "per_class": {"min": 8, "median": 8.5, "max": 9}},
        "test": {"images": 10, "classes": 2, "per_class": {"min": 1, "median": 5.0, "max": 9}},
    }
    assert [(Path(bad["path"]).name, bad["reason"]) for bad in found["unusable"]] == [
        ("1.png", "not-an-image")
    ]
    worse, milder = found["duplicates"]
    assert (worse["across_classes"], worse["across_splits"]) == (True, True)
    assert {Path(f["path"]).name for f in worse["files"]} == {"0.png", "mixed\nup.png"}
    assert (milder["across_classes"], milder["across_splits"]) == (False, False)
    assert {Path(f["path"]).name for f in milder["files"]} == {"0.png", "again.png"}
    assert found["single"] == {"test": ["green"]}
    text = lookalike_here("datasets", "info", f"folder:{tmp_path}", code=3).stdout
    assert "it is not a JPEG" in text
    assert r"mixed\nup.png" in text, "a name stays on its line"
    assert "in different classes and different splits" in text


def test_good_data_has_no_problems(shop: Path) -> None:
    done = lookalike_here("datasets", "info", f"folder:{shop}")
    assert "24 images of 3 classes" in done.stdout
    assert "No problems found." in done.stdout


def test_class_folders_without_images_are_named(shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop, tmp_path / "all")
    for name in ("oak/old", "elm", "red/kept", ".hidden"):
        (tmp_path / "all" / name).mkdir(parents=True)
    (tmp_path / "all" / "elm" / "notes.txt").write_text("photographs follow")
    text = lookalike_here("datasets", "info", f"folder:{tmp_path}/all").stdout
    assert "24 images of 3 classes" in text
    assert text.endswith(
        "Class folders without images, which are left out: 3\n  elm\n  oak/old\n  red/kept\n"
    )
    for number in range(20):
        (tmp_path / "all" / f"{number:02}").mkdir()
    text = lookalike_here("datasets", "info", f"folder:{tmp_path}/all").stdout
    assert ": 23\n  00\n" in text
    assert text.endswith("  09\n  and 13 more; --json has them all\n")
    found = json.loads(lookalike_here("datasets", "info", f"folder:{tmp_path}/all", "--json").stdout)
    assert found["empty"] == [*(f"{number:02}" for number in range(20)), "elm", "oak/old", "red/kept"]
    assert {image.label for image in data.load(f"folder:{tmp_path}/all").train} == {"red", "green", "blue"}


def test_transitions_of_label_noise_are_printed(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = lookalike_here("datasets", "info", f"folder:{shop}")
    assert "Transitions" not in plain.stdout
    defined = replace(data.load(f"folder:{shop}"), transitions=data.KNOWN["cifar10"].transitions)
    monkeypatch.setattr(data, "load", lambda *_, **__: defined)
    text = lookalike_here("datasets", "info", "cifar10").stdout
    assert (
        "Transitions of asymmetric label noise (the other classes stay clean):\n"
        "  truck -> automobile, bird -> airplane, deer -> horse, cat -> dog, dog -> cat\n"
    ) in text
    facts = json.loads(lookalike_here("datasets", "info", "cifar10", "--json").stdout)
    assert facts["transitions"]["truck"] == "automobile"


def test_queries_and_gallery(shop: Path, tmp_path: Path) -> None:
    rows = [f"{shop}/red/{i}.png,red,train,,warm" for i in range(3)]
    rows += [f"{shop}/green/{i}.png,green,test,{role},cold" for i, role in enumerate(("query", "gallery"))]
    rows += [f"{shop}/blue/0.png,blue,test,query,cold", f"{shop}/green/0.png,green,test,gallery,cold"]
    rows += ["nowhere.png,green,test,gallery,"]
    (tmp_path / "a.csv").write_text("path,label,split,role,coarse\n" + "\n".join(rows))
    found = inspect_dataset(data.load(f"csv:{tmp_path / 'a.csv'}"))
    assert {name: split.images for name, split in found.splits.items()} == {
        "train": 3,
        "queries": 2,
        "gallery": 3,
    }
    assert found.coarse_classes == 2
    assert [error.reason for error in found.unusable] == ["missing"]
    assert found.single == {"queries": ["blue"]}, "nothing in the gallery is like it"
    assert [(d.across_classes, d.across_splits) for d in found.duplicates] == [(False, True)]


def test_one_duplicate_across_classes_of_real_photographs(tmp_path: Path) -> None:
    found = inspect_dataset(data.load(f"folder:{unzip_shared('cars196_256.zip', tmp_path)}"))
    assert (found.images, found.classes) == (2744, 196)
    assert {name: (s.images, s.fewest, s.most) for name, s in found.splits.items()} == {"all": (2744, 14, 14)}
    (pair,) = found.duplicates
    assert pair.across_classes
    names = [f"{entry.path.parent.name[:3]}/{entry.path.stem}" for entry in pair.entries]
    assert names == ["042/00050", "043/03436"]
    assert not found.unusable


def test_one_class_is_not_plural(shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop / "red", tmp_path / "red")
    assert "8 images of 1 class\n" in lookalike_here("datasets", "info", f"folder:{tmp_path}").stdout
