"""Tests of image sources: folders, glob patterns, lists, tables and tar shards."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from retrieval import ImageError, InputError, load_image
from retrieval.ingest.sources import Scan, Sources, collect, scan
from retrieval.storage.planning import ImageFile
from retrieval.storage.records import BadFile
from tests.conftest import draw


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of two images, and a file that is not an image."""
    folder = tmp_path / "photos"
    for name in ("red/0.png", "red/1.png", "blue/0.png", "blue/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        draw(int(name[-5])).save(folder / name)
    (folder / "notes.txt").write_text("not for us")
    return folder


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def images(found: Scan) -> list[ImageFile]:
    return [entry for entry in found if isinstance(entry, ImageFile)]


def stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def named(found: Scan) -> dict[str, ImageFile]:
    return {image.path: image for image in images(found)}


def unusable(found: Scan) -> list[tuple[str, str]]:
    return [(entry.stamp.path, entry.reason) for entry in found if isinstance(entry, BadFile)]


# ---- folders, globs, lists


def test_links_are_followed_without_loops(photos: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    draw(9).save(elsewhere / "9.png")
    (photos / "green").symlink_to(elsewhere)
    (photos / "again").symlink_to(photos / "red")  # would come first by its name
    (elsewhere / "back").symlink_to(photos)
    found = named(scan([photos]))
    assert sorted(found) == ["blue/0.png", "blue/1.png", "green/9.png", "red/0.png", "red/1.png"]
    assert found["green/9.png"].label == "green"


def test_glob_labels_are_relative_to_the_fixed_part(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    for pattern in ("photos/**/*.png", f"{photos}/**/*.png", "photos/*", "photos/?*/*.png"):
        found = named(scan([pattern]))
        assert {path: image.label for path, image in found.items()} == {
            f"{label}/{n}.png": label for label in ("red", "blue") for n in (0, 1)
        }, pattern
        assert {image.root for image in found.values()} == {str(photos)}
    assert list(named(scan(["photos/red/*"]))) == ["0.png", "1.png"]
    with pytest.raises(InputError, match=r"\*\.gif: no image files"):
        list(scan(["photos/*.gif"]))


def test_file_name_with_brackets_is_literal(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]"
    folder.mkdir()
    draw(0).save(folder / "x.png")
    assert list(named(scan([folder]))) == ["x.png"]


def test_overlapping_sources_count_once(photos: Path) -> None:
    found = scan([photos, photos / "red", photos / "red" / "0.png"])
    assert found.repeats
    assert not scan([photos]).repeats
    assert images(found)[2].path == "red/0.png"
    assert images(scan([photos]))[2] == ImageFile(
        str(photos), "red/0.png", *stamp(photos / "red" / "0.png"), "red"
    )


def test_list_is_relative_to_the_working_folder(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    text = f"photos/red/0.png\n\n{photos}/blue/1.png\r\nphotos/gone.png\n"
    listed = write(photos.parent / "list.txt", text)
    found = named(collect(Sources([], list_file=str(listed))))
    assert list(found) == ["photos/red/0.png", "photos/blue/1.png", "photos/gone.png"]
    assert found["photos/red/0.png"].label == "photos/red"
    rooted = named(collect(Sources([], list_file=str(write(listed, "red/0.png")), root=photos)))
    assert {path: image.label for path, image in rooted.items()} == {"red/0.png": "red"}


def test_list_from_standard_input(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"red/0.png\nred/1.png\n")))
    assert list(named(collect(Sources([], list_file="-")))) == ["red/0.png", "red/1.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("\n \n", "lists no images"), ("red/0.png\n../x.png\n", "line 2: '../x.png' is outside")],
)
def test_invalid_list_is_rejected(photos: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(collect(Sources([], list_file=str(write(photos / "list.txt", text)), root=photos)))


def test_no_source_is_rejected() -> None:
    with pytest.raises(InputError, match="name files or folders"):
        collect(Sources([]))


# ---- tables


CSV = "path,id,label,brand,price,weight,code\nred/0.png,a1,scarlet,acme,12,1.5,007\nblue/1.png,b2,,,3,2,12\n"


def test_table_for_a_folder(photos: Path, tmp_path: Path) -> None:
    found = named(collect(Sources([photos], metadata=write(tmp_path / "t.csv", CSV))))
    assert len(found) == 4
    red, blue, other = (found[path] for path in ("red/0.png", "blue/1.png", "red/1.png"))
    assert (red.id, red.label) == ("a1", "scarlet")
    assert red.metadata == {"brand": "acme", "price": 12, "weight": 1.5, "code": "007"}
    assert blue.metadata == {"brand": None, "price": 3, "weight": 2.0, "code": "12"}
    assert blue.label is None, "an empty label is no label"
    assert (other.id, other.label, other.metadata) == (None, "red", {})


def test_table_as_the_source(photos: Path, tmp_path: Path) -> None:
    table = write(photos / "t.csv", CSV)
    for found in (
        collect(Sources([], metadata=table)),
        collect(Sources([], metadata=write(tmp_path / "t.csv", CSV), root=photos)),
    ):
        listed = named(found)
        assert list(listed) == ["red/0.png", "blue/1.png"]
        assert {image.root for image in listed.values()} == {str(photos)}


def test_table_without_label_or_id_keeps_the_defaults(photos: Path) -> None:
    found = named(collect(Sources([], metadata=write(photos / "t.csv", "path,price\nred/0.png,1\n"))))
    assert (found["red/0.png"].label, found["red/0.png"].id) == ("red", None)
    assert not found["red/0.png"].has_own_label


def test_parquet_equals_csv(photos: Path) -> None:
    rows = {
        "path": ["red/0.png", "blue/1.png"],
        "id": [1, 2],
        "price": [12, None],
        "weight": [1.5, float("nan")],
        "new": [True, False],
        "brand": ["acme", None],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), photos / "t.parquet")
    found = named(collect(Sources([], metadata=photos / "t.parquet")))
    assert found["red/0.png"].metadata == {"price": 12, "weight": 1.5, "new": 1, "brand": "acme"}
    assert set(found["blue/1.png"].metadata.values()) == {None, 0}
    assert [image.id for image in found.values()] == ["1", "2"]
    pyarrow.parquet.write_table(pyarrow.table({"path": ["a"], "tags": [["x"]]}), photos / "t.parquet")
    with pytest.raises(InputError, match=r"row 1, column 'tags': a list"):
        list(collect(Sources([], metadata=photos / "t.parquet")))


def test_parquet_without_pyarrow_names_the_extra(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'lookalike\[parquet\]'"):
        collect(Sources([], metadata=photos / "t.parquet"))


def test_rows_of_other_files_are_unmatched_or_bad(photos: Path, tmp_path: Path) -> None:
    text = "path\nred/0.png\nblue/0.png\nblue/gone.png\n"
    found = collect(Sources([photos / "red"], metadata=write(tmp_path / "t.csv", text), root=photos))
    *there, bad = found
    assert isinstance(bad, BadFile)
    assert (len(there), found.unmatched) == (2, 1)
    assert (bad.stamp.path, bad.reason) == ("blue/gone.png", ImageError.MISSING)
    assert "line 4" in bad.detail
    as_source = collect(Sources([], metadata=tmp_path / "t.csv", root=photos))
    assert len(images(as_source)) == 3, "the missing file is reported on reading"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'path'"),
        ("file,label\nred/0.png,x\n", r"no column 'path'; columns: 'file', 'label'"),
        ("Path\nred/0.png\n", "did you mean 'Path'"),
        ("path,price\n", "lists no images"),
        ("path,a,a\nred/0.png,1,2\n", "two columns are named 'a'"),
        (
            "path\nred/0.png\n../../secret.png\n",
            r"'../../secret.png' is outside .*; write absolute paths, and set --root",
        ),
        ("path\n/etc/hostname\n", "line 2: '/etc/hostname' is outside"),
        ("path\nred/0.png\nred/./0.png\n", "line 3: 'red/./0.png' is in the table twice"),
        ("path,id\nred/0.png,x\nred/1.png,x\n", r"line 3: the id 'x' is already used in .*line 2"),
        ("path,id\nred/0.png,\n", "line 2: no id"),
        ("path,a\n,1\n", "line 2: no path"),
        ("path,a\nred/0.png,1,2\n", "line 2: 3 fields, but the header has 2"),
        ('path,a\nred/0.png,"1\n', "cannot be read as a CSV"),
        ("path\nelsewhere.png\n", "no row matches an image"),
    ],
)
def test_invalid_table_is_rejected_with_the_line(
    photos: Path, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        list(collect(Sources([photos], metadata=write(tmp_path / "t.csv", text))))


def test_unreadable_table_is_rejected(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        collect(Sources([photos], metadata=tmp_path / "nowhere.csv"))
    (tmp_path / "t.csv").write_bytes(b"path\n\xff\xfe\n")
    with pytest.raises(InputError, match="UTF-8"):
        collect(Sources([photos], metadata=tmp_path / "t.csv"))
    with pytest.raises(InputError, match="Parquet"):
        collect(Sources([photos], metadata=write(tmp_path / "t.parquet", "path\n")))


# ---- tar shards


def shard(file: Path, members: dict[str, bytes | str], mode: str = "w") -> Path:
    with tarfile.open(file, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    draw(seed).save(buffer, "PNG")
    return buffer.getvalue()


def test_shard_with_sidecar_files(tmp_path: Path) -> None:
    members = {
        "a/0.png": png(0),
        "a/0.json": json.dumps({"price": 3, "tags": ["x"], "id": 77}),
        "a/1.jpg": png(1),
        "a/1.cls": "5\n",
        "a/1.txt": "a red car\n",
        "2.seg.png": png(2),
        "./b/3.png": png(3),
        "4.wav": "sound",
    }
    found = scan([shard(tmp_path / "s.tar", members)])
    listed = named(found)
    assert list(listed) == ["s.tar/a/0.png", "s.tar/a/1.jpg", "s.tar/2.seg.png", "s.tar/b/3.png"]
    zero, one, two, three = listed.values()
    assert (zero.id, zero.label, zero.metadata) == ("77", "a", {"price": 3, "tags": '["x"]'})
    assert (one.label, one.metadata) == ("5", {"text": "a red car"})
    assert (two.label, three.label, found.ignored) == (None, "b", 1)
    for seed, image in enumerate(listed.values()):
        assert load_image(image.full).tobytes() == draw(seed).tobytes()


def test_shard_in_a_folder_is_not_a_source(photos: Path) -> None:
    shard(photos / "s.tar", {"x.png": png(0)})
    assert len(images(scan([photos]))) == 4
    assert len(images(scan([photos, photos / "s.tar"]))) == 5
    assert len(images(scan([photos / "*.tar"]))) == 1
    alone = photos.parent / "shards"
    alone.mkdir()
    (photos / "s.tar").rename(alone / "s.tar")
    with pytest.raises(InputError, match=r"pass tar shards explicitly, for example '.*/\*\.tar'"):
        list(scan([alone]))


def test_shard_member_names_that_escape_the_tar_file(tmp_path: Path) -> None:
    tar = shard(tmp_path / "s.tar", {"../x.png": png(0), "/y.png": png(1), "z.png": png(2)})
    assert list(named(scan([tar]))) == ["s.tar/z.png"]
    assert [reason for _, reason in unusable(scan([tar]))] == ["name", "name"]


def test_damaged_shards(tmp_path: Path) -> None:
    whole = shard(tmp_path / "s.tar", {f"{n}.png": png(n) + bytes(2000) for n in range(9)})
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:9000])
    *found, _ = images(scan([cut]))
    assert 0 < len(found) < 8
    for image in found:
        assert load_image(image.full).size == draw(0).size
    packed = shard(tmp_path / "packed.tar", {"x.png": png(0)}, "w:gz")
    with pytest.raises(InputError, match="must not be compressed"):
        list(scan([packed]))
    with pytest.raises(InputError, match="cannot be read as a tar file"):
        list(scan([write(tmp_path / "text.tar", "text" * 1000)]))


def test_broken_sidecar_makes_its_image_unusable(tmp_path: Path) -> None:
    members = {
        "x.png": png(0),
        "x.json": "{",
        "y.png": png(1),
        "y.json": '{"width": 7, "price": NaN, "b": true}',
    }
    tar = shard(tmp_path / "s.tar", members)
    assert unusable(scan([tar])) == [("s.tar/x.png", "metadata")]
    assert named(scan([tar]))["s.tar/y.png"].metadata == {"price": None, "b": 1}


# ---- files that cannot be used


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_unreadable_folder_is_reported(photos: Path) -> None:
    (photos / "red").chmod(0)
    try:
        found = list(scan([photos]))
    finally:
        (photos / "red").chmod(0o755)
    assert unusable(Scan(found)) == [("red", ImageError.PERMISSION)]
    assert len(images(Scan(found))) == 2


def test_special_files_are_listed(photos: Path) -> None:
    os.mkfifo(photos / "red" / "pipe.jpg")
    os.mkfifo(photos / "red" / "pipe.txt")
    (photos / "red" / "loop.png").symlink_to("loop.png")
    (photos / "red" / "broken.png").symlink_to("nowhere")
    (photos / "red" / "zero.png").symlink_to("/dev/zero")
    entries = list(found := scan([photos]))
    assert unusable(Scan(entries)) == [
        ("red/broken.png", ImageError.MISSING),
        ("red/loop.png", ImageError.MISSING),
        ("red/pipe.jpg", ImageError.NOT_AN_IMAGE),
        ("red/zero.png", ImageError.NOT_AN_IMAGE),
    ]
    assert (len(images(Scan(entries))), found.ignored) == (4, 2)
    assert unusable(scan([photos / "red" / "pipe.jpg"])) == [("pipe.jpg", ImageError.NOT_AN_IMAGE)]


def test_paths_too_long_for_the_system_are_listed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree deeper than 4,096 characters; it is made and removed step by step."""
    monkeypatch.chdir(photos / "red")
    for _ in range(21):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    draw(0).save("x.png")
    try:
        entries = list(scan([photos]))
    finally:
        os.unlink("x.png")
        for _ in range(21):
            os.chdir("..")
            os.rmdir("d" * 200)
    assert len(images(Scan(entries))) == 4
    ((path, reason),) = unusable(Scan(entries))
    assert (len(path) > 3000, reason) == (True, ImageError.MISSING)


def test_folder_that_vanishes_while_listing_is_listed(photos: Path) -> None:
    found = iter(scan([photos]))
    assert next(found).path == "blue/0.png"
    shutil.rmtree(photos / "red")
    assert unusable(Scan(rest := list(found))) == [("red", ImageError.MISSING)]
    assert [image.path for image in images(Scan(rest))] == ["blue/1.png"]


def test_paths_through_symbolic_links(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(photos)
    table = write(tmp_path / "t.csv", f"path\n{tmp_path / 'link' / 'red' / '0.png'}\n")
    assert list(named(collect(Sources([], metadata=table, root=photos)))) == ["red/0.png"]
    table = write(tmp_path / "t.csv", "path\nred/0.png\n")
    assert len(images(collect(Sources([tmp_path / "link"], metadata=table)))) == 4
