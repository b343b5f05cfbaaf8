"""Data sets on disk: folders, CSV files and the bundled digits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from retrieval import InputError, load_image
from tests.conftest import unzip_shared
from train import data


def test_folder_of_classes(shop: Path) -> None:
    found = data.load(f"folder:{shop}")
    assert found.train is found.test, "data without a test split"
    assert len(found.train) == 24
    assert {image.label for image in found.train} == {"red", "green", "blue"}
    assert all(image.path.parent.name == image.label for image in found.train)
    np.testing.assert_array_equal(np.bincount(data.class_numbers(found.train)), [8, 8, 8])


def test_train_and_test_folders_are_splits(shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop / "red", tmp_path / "train" / "red")
    shutil.copytree(shop / "blue", tmp_path / "test" / "blue")
    found = data.load(f"folder:{tmp_path}")
    assert ({i.label for i in found.train}, {i.label for i in found.test}) == ({"red"}, {"blue"})


def test_nested_folders_are_separate_classes(tmp_path: Path) -> None:
    folder = unzip_shared("omniglot_images_background_small1.zip", tmp_path)
    found = data.load(f"folder:{folder / 'images_background_small1'}")
    assert len(found.train) == 2720
    assert len({image.label for image in found.train}) == 136
    assert "Balinese/character01" in {image.label for image in found.train}


def test_csv_with_and_without_splits(shop: Path, tmp_path: Path) -> None:
    lines = [f"{path},{path.parent.name}" for path in sorted(shop.rglob("*.png"))]
    (tmp_path / "a.csv").write_text("path,label\n" + "\n".join(lines))
    assert data.load(f"csv:{tmp_path / 'a.csv'}").train == data.load(f"csv:{tmp_path / 'a.csv'}").test
    split = [line + (",train" if "red" in line else ",test") for line in lines]
    (shop / "b.csv").write_text("\ufeffpath,label,split\n" + "\n".join(split).replace(f"{shop}/", ""))
    found = data.load(f"csv:{shop / 'b.csv'}")
    assert (len(found.train), len(found.test)) == (8, 16)
    assert all(image.path.is_file() for image in found.train + found.test), "paths are relative to the file"
    (shop / "b.csv").unlink()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na,b", "no column 'path'; columns: 'file', 'label'"),
        ("Path,label\na,b", "no column 'path'; did you mean 'Path'"),
        ("path;label\na;b", "no column 'path'; its fields are separated by ';'; save it with commas"),
        ("path,label\n,b", "line 2"),
        ("path,label,split\na,b,validate", "line 2"),
        ("path,label,split\na,b,train\nc,d,", "line 3: no split"),
        ('path,label\n\n"a\nb",c\n,d', "line 5: no path"),
        ("path,label\na,b,c", "line 2: more fields"),
        ("path,label,split,role\na,b,train,query", "line 2: the role query is allowed only"),
        ("path,label,split,role\na,b,train,\na,b,test,probe", "line 3: role is 'probe'"),
        ("path,label,split,role\na,b,train,\na,b,test,query\na,b,test,", "line 4: no role"),
        ("path,label,split,role\na,b,train,\na,b,test,query", "no test line has the role gallery"),
        ("path,label,split\na,b,train", "test split has no images"),
        ("path,label\n", "lists no images"),
    ],
)
def test_invalid_csv_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        data.load(f"csv:{tmp_path / 'a.csv'}")


def test_csv_with_queries_gallery_and_coarse_labels(tmp_path: Path) -> None:
    rows = ["a.png,x,train,,animals", "b.png,y,test,query,", "c.png,y,test,gallery,plants"]
    (tmp_path / "a.csv").write_text("path,label,split,role,coarse\n" + "\n".join(rows))
    found = data.load(f"csv:{tmp_path / 'a.csv'}")
    assert found.train == [data.LabelledImage(tmp_path / "a.png", "x", "animals")]
    assert found.test == [data.LabelledImage(tmp_path / "b.png", "y", None)]
    assert found.gallery == [data.LabelledImage(tmp_path / "c.png", "y", "plants")]
    assert found.coarse_name
    (tmp_path / "a.csv").write_text("path,label\na.png,x")
    assert data.load(f"csv:{tmp_path / 'a.csv'}").coarse_name is None


def test_image_outside_the_class_folders_of_a_split_is_refused(shop: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(shop / "red", tmp_path / split / "red")
    shutil.copy(shop / "red" / "0.png", tmp_path / "test" / "stray.png")
    with pytest.raises(InputError, match=r"stray\.png: is in a split but in no class"):
        data.load(f"folder:{tmp_path}")
    for split in ("train", "test"):
        shutil.rmtree(tmp_path / split / "red")
        shutil.copy(shop / "red" / "0.png", tmp_path / split / "0.png")
    assert {i.label for i in data.load(f"folder:{tmp_path}").train} == {"train", "test"}, "trains and tests"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "did you mean 'digits'"),
        ("floder:x", "did you mean 'folder'"),
        ("folder:", "no path given"),
        ("folder:/nowhere", "no such folder"),
        ("csv:/nowhere", "csv:/nowhere: no such file"),
        ("digits:/nowhere", "datasets fetch digits"),
        ("cub200", "no folder given; write cub200:ROOT"),
        (
            "inshop:/nowhere",
            "list_eval_partition.txt: no such file; its authors give it for research",
        ),
    ],
)
def test_invalid_specs_are_refused_with_a_hint(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        data.load(spec)


def test_folder_without_classes_is_refused(shop: Path) -> None:
    with pytest.raises(InputError, match="one folder of images for each class"):
        data.load(f"folder:{shop / 'red'}")


def test_digits_equal_those_of_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = data.load("digits")
    assert {i.label for i in found.train} == set("01234")
    assert {i.label for i in found.test} == set("56789")
    source = load_digits()
    for image in [*found.train[::200], *found.test[::200]]:
        number = int(image.path.stem)
        assert str(source.target[number]) == image.label
        shrunk = np.asarray(load_image(image.path).convert("L").resize((8, 8), Image.Resampling.BOX), float)
        original = source.images[number] * 255 / 16
        assert np.corrcoef(shrunk.ravel(), original.ravel())[0, 1] > 0.98
    shutil.rmtree(tmp_path / "lookalike" / "digits" / "test" / "7")
    with pytest.raises(
        InputError, match=r"train is in the way.*expected 896 test images of 5 classes, found 717"
    ):
        data.load("digits")
