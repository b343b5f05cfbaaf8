"""What a model file tells of the images that the model was trained on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.model import training_images
from retrieval.model.training_images import UNKNOWN, TrainingImages
from tests.conftest import draw, draw_classes, lookalike_here


def files_of(folder: Path, count: int, first: int = 0) -> list[Path]:
    folder.mkdir(exist_ok=True)
    found = [folder / f"{number}.png" for number in range(first, first + count)]
    for number, file in enumerate(found, first):
        file.write_bytes(b"picture %d" % number)
    return found


def contents_of(files: list[Path]) -> list[str]:
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def test_images_are_known_by_their_contents(tmp_path: Path) -> None:
    """And by their classes, if they are others; by other names under the same contents, too."""
    trained = files_of(tmp_path / "a", 40)
    missing = tmp_path / "missing.png"
    found = TrainingImages.of([*trained, missing, trained[0]], {"red", "gr\udceen"})
    assert (found.images, found.classes) == (40, 2)
    found = TrainingImages.from_dict(json.loads(json.dumps(found.to_dict()))) or pytest.fail("nothing read")
    others = files_of(tmp_path / "b", 10, first=35)  # five of them are copies
    assert found.remark(contents_of(trained), ["red"]) == "was trained on 40 of these 40 images"
    assert found.remark(contents_of(others), ["blue"]) == "was trained on 5 of these 10 images"
    expected = "was trained on other images of 1 of these 2 classes, by their names"
    assert found.remark(contents_of(others)[5:], ["blue", "red", None]) == expected
    assert not found.remark(contents_of(others)[5:], ["blue", None])
    assert not found.remark([], [])
    for other in ("", "no SHA-256", "é" * 64):  # of imported vectors
        assert found.remark([*contents_of(others)[5:], other], []) == UNKNOWN
        assert found.remark([*contents_of(others), other], []) == "was trained on 5 of these 10 images"


def test_of_many_images_a_random_sample_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_images, "_MOST", 400)
    trained = files_of(tmp_path / "a", 1600)
    found = TrainingImages.of(trained, [f"{number}" for number in range(500)])
    assert (found.images, found.classes, len(found.contents), len(found.labels)) == (1600, 500, 400, 400)
    others = files_of(tmp_path / "b", 1300, first=1600)
    # 800 of 2,100 images, by a quarter of the training images: four standard errors are about 100.
    text = found.remark(contents_of([*trained[:800], *others]), ())
    assert text.startswith("was trained on about ")
    assert text.endswith(" of these 2,100 images")
    assert abs(int(text.split()[4].replace(",", "")) - 800) < 100
    assert not found.remark(contents_of(others), ()), "1,300 images would show a quarter of 1%"
    assert found.remark(contents_of(others[:100]), ()) == UNKNOWN


def test_held_out_images_are_seen_but_not_learned(tmp_path: Path) -> None:
    trained = files_of(tmp_path / "a", 40)
    found = TrainingImages.of(trained, ["red", "blue"], set(trained[30:]))
    found = TrainingImages.from_dict(json.loads(json.dumps(found.to_dict()))) or pytest.fail("nothing read")
    new = files_of(tmp_path / "b", 3, first=40)
    files = [*trained, *new]
    assert found.learned(contents_of(files), ["red"] * 43).tolist() == [True] * 30 + [False] * 13
    assert found.remark(contents_of(files), ["red"]) == "was trained on 30 of these 43 images"
    expected = "saw 10 of these 13 images in training, but did not learn their labels"
    assert found.remark(contents_of(files[30:]), ["red"]) == expected
    # By their class where the file is unknown.
    assert found.learned(["", "no SHA-256", ""], ["red", "green", None]).tolist() == [True, False, False]


def test_of_a_sample_images_count_by_their_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_images, "_MOST", 20)
    trained = files_of(tmp_path / "a", 40)
    found = TrainingImages.of(trained, ["red"], set(trained[:10]))
    contents = contents_of(trained)
    known = np.isin([int(content[:16], 16) for content in contents], found.contents)
    held_out = known & (np.arange(40) < 10)
    assert 0 < held_out.sum() < 10
    assert found.learned(contents, ["red"] * 40).tolist() == (~held_out).tolist()
    assert found.learned(contents, ["blue"] * 40).tolist() == (known & ~held_out).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"contents": "no base64"},
        {"contents": "AAAA"},
        {"contents": ""},
        {"contents": 7},
        {"labels": None},
        {"held_out": "no base64"},
        {"images": 2},
        {"images": "many"},
        {"images": float("inf")},
        {"classes": []},
    ],
)
def test_what_somebody_else_wrote_is_unknown(tmp_path: Path, change: dict[str, Any]) -> None:
    stored = TrainingImages.of(files_of(tmp_path / "a", 3), ["red"]).to_dict()
    assert TrainingImages.from_dict(stored) is not None
    assert TrainingImages.from_dict(stored | change) is None
    assert TrainingImages.from_dict(None) is None


def test_evaluations_name_images_that_the_model_was_trained_on(
    model_file: Path, shop: Path, tmp_path: Path
) -> None:
    """In a gallery, in a data set, in a comparison of models, and by `model info`."""

    def notes(*words: str) -> list[str]:
        return json.loads(lookalike_here("evaluate", *words, "--json", cwd=tmp_path).stdout)["notes"]

    def built(name: str, images: Path) -> list[str]:
        lookalike_here("index", "build", name, str(images), "--model", str(model_file), cwd=tmp_path)
        return notes(name)

    seen = "saw 24 of these 24 images in training, but did not learn their labels"  # 0 epochs
    of_all = f"The model {seen}: others are found less well."
    assert of_all in built("own", shop)
    assert of_all in notes(str(model_file), "--data", f"folder:{shop}")
    new = draw_classes(tmp_path / "new", ("white", "black"), 4, first=50)
    assert not [note for note in built("other", new) if "trained" in note]
    (new / "red").mkdir()
    for number in range(2):
        draw(90 + number).save(new / "red" / f"{number}.png")
    lookalike_here("index", "sync", "other", str(new), cwd=tmp_path)
    expected = "The model was trained on other images of 1 of these 3 classes, by their names"
    assert f"{expected}: others are found less well." in notes("other")
    rebuilt = lookalike_here("index", "rebuild", "own", "--model", str(model_file), "--json", cwd=tmp_path)
    remark = json.loads(rebuilt.stdout)["comparison"]["remark"]
    assert remark.startswith(f"both models {seen}")
    shown = lookalike_here("model", "info", str(model_file), "--no-latency").stdout
    assert "trained on  images 24, classes 3" in shown


def test_a_sample_differs_from_no_order_of_the_files(tmp_path: Path) -> None:
    files = files_of(tmp_path / "a", 20)
    found, again = TrainingImages.of(files, ["b", "a"]), TrainingImages.of(files[::-1], ["a", "b"])
    assert np.array_equal(found.contents, again.contents)
    assert np.array_equal(found.labels, again.labels)
