"""Judged sets, read from small folders in the layout of the official ones."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval import InputError
from tests.conftest import draw
from train import data
from train.data.judged import JudgedSet, RecognitionSet, load_judged


def write_image(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draw(len(file.name), (24, 18)).save(file)


def write_buildings(root: Path) -> None:
    names = ["all_souls_000013", "ashmolean_000058", "radcliffe_1", "radcliffe_2", "view"]
    for name in [*names, "all_souls_000026", "bodleian_000107"]:
        write_image(root / "jpg" / f"{name}.jpg")
    first = {"bbx": [2.4, 3.0, 12.6, 13.0], "easy": [1, 3], "hard": np.array([0]), "junk": [2]}
    second = {"bbx": (0, 0, 24, 18), "easy": [], "hard": [4], "junk": np.array([], np.int64)}
    truth = {"imlist": names, "qimlist": ["all_souls_000026", "bodleian_000107"], "gnd": [first, second]}
    (root / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth, protocol=2))


def lists(found: JudgedSet, protocol: str) -> list[tuple[list[int], list[int]]]:
    """Return what each query should find, and what is ignored."""
    one = found.protocols[protocol]
    return [(a.tolist(), b.tolist()) for a, b in zip(one.relevant, one.ignored, strict=True)]


@pytest.mark.parametrize("inside", [True, False])
def test_revisited_buildings(tmp_path: Path, inside: bool) -> None:
    root = tmp_path / "roxford5k"
    write_buildings(root)
    write_image(root / "distractors" / "far" / "away.jpg")
    found = load_judged(f"roxford5k:{root if inside else tmp_path}")
    assert found
    assert found.depth is None
    assert [path.name for path in found.gallery][-2:] == ["view.jpg", "away.jpg"]
    assert [query.thing for query in found.queries] == ["all_souls", "bodleian"]
    assert lists(found, "easy") == [([1, 3], [0, 2]), ([], [4])]
    assert lists(found, "medium") == [([0, 1, 3], [2]), ([4], [])]
    assert lists(found, "hard") == [([0], [1, 2, 3]), ([4], [])]
    with found.query_files() as files:
        whole = Image.open(root / "jpg" / "all_souls_000026.jpg").convert("RGB")
        part = np.asarray(Image.open(files[0]))
        np.testing.assert_array_equal(part, np.asarray(whole.crop((2, 3, 13, 13))))
    assert not files[0].exists()


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_judgements_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_buildings(tmp_path)
    for content in (pickle.dumps({"imlist": Runs()}), b"", b"\x80\x04nonsense", pickle.dumps(7)):
        (tmp_path / "gnd_roxford5k.pkl").write_bytes(content)
        with pytest.raises(InputError, match=r"gnd_roxford5k\.pkl: not .*judgements"):
            load_judged(f"roxford5k:{tmp_path}")
    assert not Path("ran").exists()


def test_landmarks(tmp_path: Path) -> None:
    for name in ("aa1", "bb2", "cc3"):
        write_image(tmp_path.joinpath("index", *name, f"{name}.jpg"))
    for name in ("0f0", "1f1", "2f2"):
        write_image(tmp_path.joinpath("test", *name, f"{name}.jpg"))
    table = tmp_path / "retrieval_solution_v2.1.csv"
    table.write_text("id,images,Usage\n0f0,cc3 aa1,Private\n2f2,None,Ignored\n1f1,bb2,Public\n")
    found = load_judged(f"gldv2:{tmp_path}")
    assert found
    assert found.measures[0] == "map_at_100"
    assert [query.path.name for query in found.queries] == ["0f0.jpg", "1f1.jpg"]
    assert all(path.is_file() for path in [*found.gallery, *(query.path for query in found.queries)])
    assert list(found.protocols) == ["public", "private"]
    assert lists(found, "private") == [([0, 2], []), ([], [])]
    assert lists(found, "public") == [([], []), ([1], [])]
    table.write_text("id,images,Usage\n0f0,cc3 dd4,Private\n")
    with pytest.raises(InputError, match=r"line 2: 1 images of 0f0 are not in index, dd4 among them"):
        load_judged(f"gldv2:{tmp_path}")


def test_objects(tmp_path: Path) -> None:
    for name in ("bold_bimp_000/query/Q000_00", "bold_bimp_000/query/Q000_01", "bold_bimp_000/pos/P000_00"):
        write_image(tmp_path / "ilias_core" / f"{name}.jpg")
    for name in ("zippy_999/query/Q999_00", "zippy_999/pos/P999_00", "zippy_999/pos/P999_01"):
        write_image(tmp_path / "ilias_core" / f"{name}.jpg")
    (tmp_path / "ilias_core" / "zippy_999" / "query" / "Q999_00_bbox.txt").write_text("0 0 5 5")
    write_image(tmp_path / "distractors" / "00" / "x.jpg")
    found = load_judged(f"ilias:{tmp_path}")
    assert found
    assert found.measures[0] == "map_at_1000"
    assert [path.name for path in found.gallery] == ["P000_00.jpg", "P999_00.jpg", "P999_01.jpg", "x.jpg"]
    assert [query.thing for query in found.queries] == ["bold_bimp_000", "bold_bimp_000", "zippy_999"]
    assert lists(found, "") == [([0], []), ([0], []), ([1, 2], [])]


def write_lists(folder: Path, **lists: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, entries in lists.items():
        (folder / f"{name}.json").write_text(json.dumps(entries))


def test_domains(tmp_path: Path) -> None:
    """A domain with an index, and one whose queries are searched for among the others."""

    def entry(name: str, *classes: int) -> dict[str, Any]:
        write_image(tmp_path / "images" / name)
        return {"path": name, "class_id": classes[0] if len(classes) == 1 else list(classes)}

    cars = [entry("cars/a.jpg", 7), entry("cars/b.jpg", 8), entry("cars/c.jpg", 7)]
    write_lists(tmp_path / "info_files" / "cars", test=cars, train=[])
    index = [entry("art/i/a.jpg", 7), entry("art/i/b.jpg", 8), entry("art/i/#U6d77_#U00e9.jpg", 9)]
    index[2]["path"] = "art/i/\u6d77_\u00e9.jpg"  # as some programs unpack it
    write_lists(tmp_path / "info_files" / "art", test=[entry("art/q.jpg", 8, 9)], index=index)
    found = load_judged(f"uned:{tmp_path}")
    assert found
    assert found.measures == ("modified_precision_at_5", "recall_at_1")
    assert found.depth == 5
    assert [path.name for path in found.gallery[:2]] == ["a.jpg", "b.jpg"]
    assert found.gallery[2].is_file()
    assert [query.thing for query in found.queries] == ["art 8 9", "cars 7", "cars 8", "cars 7"]
    assert lists(found, "art") == [([1, 2], []), ([], []), ([], []), ([], [])]
    assert lists(found, "cars") == [([], []), ([5], [3]), ([], [4]), ([3], [5])]
    (tmp_path / "info_files" / "cars" / "test.json").write_text('[{"class_id": 3}]')
    with pytest.raises(InputError, match=r"test\.json: not a list of images .*'path'.*lay out ROOT/images/"):
        load_judged(f"uned:{tmp_path}")


def test_exhibits(tmp_path: Path) -> None:
    names = ["MET/1/a.jpg", "MET/1/b.jpg", "MET/2/a.jpg", "test_met/x.jpg", "test_met/y.jpg", "other/z.jpg"]
    for name in names:
        write_image(tmp_path / "images" / name)
    database = [{"id": int(name[4]), "path": name} for name in names[:3]]
    test = [
        {"MET_id": 1, "path": names[3]},
        {"path": names[5]},
        {"MET_id": 3, "path": names[4]},  # which the small database lacks
    ]
    write_lists(
        tmp_path / "ground_truth", mini_MET_database=database, testset=test, valset=[{"path": names[5]}]
    )
    found = load_judged(f"met:{tmp_path}")
    assert isinstance(found, RecognitionSet)
    assert lists(found, "") == [([0, 1], []), ([], []), ([], [])]
    assert found.classes.tolist() == [0, 0, 1]
    assert found.truth.tolist() == [0, -1, 2]
    assert found.validation_truth.tolist() == [-1]
    assert [query.thing for query in found.queries] == ["1", "", "3"]
    (tmp_path / "ground_truth" / "testset.json").unlink()
    with pytest.raises(InputError, match=r"testset\.json: no such file; unpack the images"):
        load_judged(f"met:{tmp_path}")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    for name in ("gallery/a.png", "gallery/sub/b.png", "gallery/c.png", "rooms/1.png", "rooms/2.png"):
        write_image(tmp_path / name)
    return tmp_path


def test_own_judgements(own: Path) -> None:
    rows = "rooms/1.png,gallery/a.png,relevant\nrooms/2.png,gallery/c.png,relevant\n"
    (own / "judgements.csv").write_text(
        f"query,image,judgement\n{rows}rooms/1.png,gallery/sub/b.png,ignored\n"
    )
    found = load_judged(f"judged:{own}")
    assert found
    names = [path.name for path in found.gallery]
    assert sorted(names) == ["a.png", "b.png", "c.png"]
    assert lists(found, "") == [
        ([names.index("a.png")], [names.index("b.png")]),
        ([names.index("c.png")], []),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("rooms/1.png,gallery/z.png,relevant", "line 2: gallery/z.png: there is no such image"),
        (
            "rooms/1.png,gallery/a.png,good",
            "line 2: judgement 'good'; expected relevant, easy, hard or ignored",
        ),
        ("rooms/1.png,gallery/a.png", "line 2: not one field for each column"),
        ("rooms/1.png,gallery/a.png,ignored", "no query has an image to find"),
        (
            "rooms/1.png,gallery/a.png,relevant\nrooms/1.png,gallery/a.png,ignored",
            "line 3: 1.png: 1 images are judged in two ways",
        ),
        (
            "rooms/1.png,gallery/a.png,relevant\nrooms/2.png,gallery/a.png,hard",
            "use relevant, or easy and hard, but not both",
        ),
    ],
)
def test_wrong_judgements_are_named(own: Path, rows: str, message: str) -> None:
    (own / "judgements.csv").write_text(f"query,image,judgement\n{rows}\n")
    with pytest.raises(InputError, match=message):
        load_judged(f"judged:{own}")


def test_missing_sets_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; unpack the Paris buildings"):
        load_judged(f"rparis6k:{tmp_path}")
    with pytest.raises(InputError, match=r"no folder given; write ilias:ROOT"):
        load_judged("ilias")
    with pytest.raises(InputError, match=r"judged queries have no classes"):
        data.load(f"judged:{tmp_path}")
    assert load_judged(f"folder:{tmp_path}") is None
