"""Tables of labelled pairs: CSV and Parquet, labels and scores, groups, contradictions and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval import InputError
from tests.conftest import draw
from train import data
from train.data.pairs import contradiction_note, from_pairs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(60):
        draw(number, (8, 8)).save(tmp_path / f"{number}.png")
    return tmp_path


def write(folder: Path, *rows: str, columns: str = "image_a,image_b,label") -> Path:
    file = folder / "pairs.csv"
    file.write_text("\n".join([columns, *rows]) + "\n")
    return file


def test_labels_and_scores_are_read(folder: Path) -> None:
    words = ("1", "0", "same", "Different", "true", "FALSE", "1.0", "0.0")
    file = write(folder, *(f"{2 * i}.png,{2 * i + 1}.png,{word}" for i, word in enumerate(words)))
    images, pairs = from_pairs(file)
    assert not pairs.graded
    assert pairs.values.tolist() == [1, 0, 1, 0, 1, 0, 1, 0]
    assert [images[i].path.name for i in pairs.second] == [f"{2 * i + 1}.png" for i in range(8)]
    columns = "note,score,image_b,image_a"
    file = write(folder, "x,0.25,1.png,0.png", ",-3,2.png,0.png", columns=columns)
    images, pairs = from_pairs(file)
    assert pairs.graded
    assert pairs.values.tolist() == [0.25, -3]
    assert [images[i].path.name for i in pairs.first] == ["0.png", "0.png"]
    assert contradiction_note(pairs) is None
    loaded = data.load(f"pairs:{file}", unlabelled=True)
    assert (loaded.labelled, loaded.train is loaded.test, len(loaded.train)) == (False, True, 3)


def test_parquet_equals_csv(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [(f"{i}.png", f"{i + 1}.png", i % 2) for i in range(10)]
    csv_file = write(folder, *(",".join(map(str, row)) for row in rows))
    a, b, label = zip(*rows, strict=True)
    for kind in (pa.int8(), pa.bool_(), pa.float64(), pa.string()):
        values = [str(x) if kind == pa.string() else x for x in label]
        table = pa.table({"image_a": a, "image_b": b, "label": pa.array(values).cast(kind)})
        parquet.write_table(table, folder / "pairs.parquet")
        images, pairs = from_pairs(folder / "pairs.parquet")
        others, expected = from_pairs(csv_file)
        assert images == others
        assert pairs.values.tolist() == expected.values.tolist()
    (folder / "pairs.parquet").write_bytes(b"broken")
    with pytest.raises(InputError, match="cannot be read"):
        from_pairs(folder / "pairs.parquet")


def test_classes_are_groups_of_connected_images_or_parts_of_them(folder: Path) -> None:
    separate = write(folder, *(f"{2 * i}.png,{2 * i + 1}.png,{i % 2}" for i in range(30)), "0.png,2.png,0")
    images, pairs = from_pairs(separate)
    label = {image.path.stem: image.label for image in images}
    assert len({*label.values()}) == 29
    assert label["0"] == label["1"] == label["2"] == label["3"] != label["4"]
    assert all(images[a].label == images[b].label for a, b in zip(pairs.first, pairs.second, strict=True))
    connected = write(folder, *(f"0.png,{i + 1}.png,{i % 2}" for i in range(50)))
    assert len({image.label for image in from_pairs(connected)[0]}) == 20
    chain = write(folder, *(f"{i}.png,{i + 1}.png,{i % 2}" for i in range(59)))
    images, pairs = from_pairs(chain)
    within = [images[a].label == images[b].label for a, b in zip(pairs.first, pairs.second, strict=True)]
    assert sum(within) == 59 - 19, "parts are stretches of the chain"


def test_pairs_among_some_images(folder: Path) -> None:
    file = write(folder, "0.png,1.png,1", "1.png,2.png,0", "2.png,0.png,0", "3.png,4.png,1")
    images, pairs = from_pairs(file)
    place = {image.path.stem: i for i, image in enumerate(images)}
    some = pairs.among([place["2"], place["0"], place["4"]])
    assert (some.first.tolist(), some.second.tolist(), some.values.tolist()) == ([1], [0], [0])


def test_contradictions_are_found_through_chains(folder: Path) -> None:
    file = write(folder, "0.png,1.png,1", "1.png,2.png,1", "2.png,3.png,1", "0.png,3.png,0", "4.png,0.png,0")
    _, pairs = from_pairs(file)
    assert pairs.contradictions == ("0.png and 3.png",)
    note = contradiction_note(pairs)
    assert note is not None
    assert note.startswith("pairs: 1 pair labelled different although a chain of same pairs connects them")


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (["0.png,1.png,2"], None, "line 2: label is '2'; expected 1, same"),
        (["0.png,1.png,1", "0.png,1.png,"], None, "line 3: label is ''"),
        (["0.png,1.png,x"], "image_a,image_b,score", "line 2: score is 'x'; expected a number"),
        (["0.png,1.png,nan"], "image_a,image_b,score", "line 2: score is 'nan'"),
        (["0.png,1.png,inf"], "image_a,image_b,score", "line 2: score is 'inf'"),
        ([",1.png,1"], None, "line 2: no image_a"),
        (["0.png,,1"], None, "line 2: no image_b"),
        (["0.png,0.png,1"], None, "line 2: 0.png is paired with itself"),
        (["0.png,1.png,1", "2.png,3.png,0", "1.png,0.png,0"], None,
         "1.png and 0.png are same in line 2 and different in line 4; leave"),
        (["0.png,1.png,.5", "1.png,0.png,.75"], "image_a,image_b,score",
         "are 0.5 in line 2 and 0.75 in line 3"),
        (["0.png,1.png,1", "1.png,2.png,1"], None, "all pairs have the same value"),
        (["0.png,no.png,1", "1.png,other.png,0"], None, "no such file: no.png, other.png; paths are"),
        ([], None, "lists no pairs"),
        (["0.png,1.png,1"], "a,image_b,label", "no column 'image_a'"),
        (["0.png,1.png,1"], "image_a,image_b,same", "there is neither label nor score"),
        (["0.png,1.png,1,1"], "image_a,image_b,label,score", "there is both label and score"),
    ],
)  # fmt: skip
def test_bad_tables_name_the_line(folder: Path, rows: list[str], columns: str | None, message: str) -> None:
    file = write(folder, *rows, columns=columns or "image_a,image_b,label")
    with pytest.raises(InputError) as caught:
        from_pairs(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"pairs:{file}")


def test_equal_repetitions_count_once(folder: Path) -> None:
    _, pairs = from_pairs(write(folder, "0.png,1.png,1", "1.png,0.png,same", "1.png,2.png,0"))
    assert len(pairs) == 2


def test_specification(folder: Path) -> None:
    with pytest.raises(InputError, match="no path given; write pairs:FILE"):
        data.load("pairs:", unlabelled=True)
    with pytest.raises(InputError, match="pairs have no classes; they are for `lookalike train`"):
        data.load(f"pairs:{folder / 'pairs.csv'}")
    with pytest.raises(InputError, match="no such file"):
        data.load(f"pairs:{folder / 'none.csv'}", unlabelled=True)
