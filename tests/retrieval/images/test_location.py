"""Tests of locations: files, URLs and members of tar files, as users write them and as they are stored."""

from __future__ import annotations

import io
import os
import re
import tarfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from retrieval import ImageError
from retrieval.images.load import read_bytes
from retrieval.images.location import Location, locate, locate_item, shown
from retrieval.storage.planning import ImageFile
from retrieval.storage.records import FileStamp

PROTOCOLS = st.sampled_from(["s3", "gs", "https", "memory", "abfs", "s3a"])
# Names of files and folders: no slash, not empty, not "."; everything else may occur.
NAMES = st.one_of(
    st.sampled_from(["..", "a b.png", "é日.jpg", "x#1?y=2&z.png", "100%.png", "s3:", "https:", ".hidden"]),
    st.sampled_from(["00.tar", "a:b", "...", "-", "*[1]?.png", "new\nline.png", "file:", "C:", "~"]),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8),
).filter(lambda name: name != ".")
PARTS = st.lists(NAMES, min_size=1, max_size=5)
SLASHES = st.sampled_from(["/", "//", "/./", "///"])


def reference(text: str) -> str | None:
    """The URL of a path in its normal form, or `None`: the rule of galleries that exist."""
    match = re.fullmatch(r"/?([a-z][a-z0-9+-]+):/+(.*)", text, re.DOTALL)
    return None if match is None or match[1] in ("file", "local") else f"{match[1]}://{match[2]}"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://shop/a.png", "s3://shop/a.png"),
        ("s3:/shop/a.png", "s3://shop/a.png"),  # as `Path` writes it
        ("/s3:/shop/a.png", "s3://shop/a.png"),
        ("s3://shop/photos/", "s3://shop/photos"),
        ("https://example.org/a b.png", "https://example.org/a b.png"),
        ("/photos/s3:/a.png", None),
        ("photos/s3:/a.png", None),
        ("//s3:/a.png", None),
        ("s3:", None),
        ("s3://", None),
        ("/s3:", None),
        ("C:/photos/a.png", None),
        ("file:///photos/a.png", None),
        ("photos/a:b.png", None),
        ("", None),
    ],
)
def test_urls_are_recognised_in_each_spelling(text: str, url: str | None) -> None:
    where = Location.parse(text)
    assert (str(where) if where.kind == "url" else None) == url
    if url is not None:
        assert Location.parse(where.path) == Location.parse(Path(text)) == Location.parse(url) == where
        assert os.path.isabs(where.path)


@given(PROTOCOLS, PARTS, SLASHES, st.sampled_from(["", "/", "//", "/."]))
@example("memory", ["a.png"], "/", "")  # without a bucket
def test_round_trip_of_urls(protocol: str, parts: list[str], slashes: str, end: str) -> None:
    name = "/".join(parts)
    where = Location.parse(f"{protocol}://{slashes.join(parts)}{end}")
    assert where == Location("url", protocol, name)
    assert str(where) == f"{protocol}://{name}"
    assert where.path == f"/{protocol}:/{name}"
    for spelling in (where, str(where), where.path, Path(where.path), Path(str(where))):
        assert Location.parse(spelling) == where == locate(spelling)


@given(st.sampled_from(["", "/"]), PARTS, SLASHES, st.sampled_from(["", "/", "/."]))
@example("", ["s3:", "shop", "x.png"], "/", "")
@example("/", ["s3:"], "/", "/")
@example("/", ["photos", "s3:", "shop", "x.png"], "/", "")
def test_round_trip_of_paths(start: str, parts: list[str], slashes: str, end: str) -> None:
    """A path is the one of pathlib, and a URL only by the rule of galleries that exist."""
    text = f"{start}{slashes.join(parts)}{end}"
    where = Location.parse(text)
    normal = str(PurePosixPath(text))
    url = reference(normal)
    assert str(where) == (url or normal)
    assert shown(normal) == str(where)
    assert where.path == (normal if url is None else str(PurePosixPath(f"/{url.replace('://', ':/', 1)}")))
    assert Location.parse(str(where)) == Location.parse(where.path) == Location.parse(Path(text)) == where


@given(st.one_of(st.just(""), PROTOCOLS.map("/{}:".format)), PARTS)
@example("/s3:", ["shop", "x.png"])
@example("", ["s3:", "shop", "x.png"])
def test_round_trip_of_stored_places(first: str, parts: list[str]) -> None:
    """Root and path of an item name the same file, wherever its path is divided."""
    whole = f"{first}/{'/'.join(parts)}"
    for count in range(len(parts)):
        root = f"{first}/{'/'.join(parts[:count])}"
        root = root if root == "/" else root.rstrip("/")
        path = "/".join(parts[count:])
        where = locate_item("/home/g.gallery", root, path)
        assert where == locate(whole) == Location.parse(ImageFile(root, path, 0, 0).full)
        assert where.path == whole
        assert FileStamp(root, path, 0, 0).shown == str(where)


@given(PARTS)
def test_relative_roots_are_below_the_gallery(parts: list[str]) -> None:
    path = "/".join(parts)
    assert locate_item("g", "pictures", path) == Location("file", "", f"g/pictures/{path}")


# ---- files on the disk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tar file in a folder that is named like one, and files and folders with unusual names."""
    folder = tmp_path / "photos.tar"
    for name in ("s3:/shop/0.png", "a b#?.tar/é.png", "00.TAR.d/1.png", ".tar/2.png", "plain.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "not a shard").write_bytes(b"")
    with tarfile.open(folder / "00.TAR", "w") as tar:
        for name in ("a/x.png", "inner.tar/y.png", "z #1?.png"):
            info = tarfile.TarInfo(name)
            info.size = len(name.encode())
            tar.addfile(info, io.BytesIO(name.encode()))
    return folder


def test_members_are_those_of_the_tar_file_on_the_path(tree: Path) -> None:
    """Kind, contents and facts agree with `tarfile` and the file system."""
    shard = tree / "00.TAR"
    with tarfile.open(shard) as tar:
        names = tar.getnames()
    assert len(names) == 3
    for name in names:
        where = locate(shard / name)
        assert where == Location("member", str(shard), name) == locate(where)
        assert where == locate_item(str(tree.parent), str(tree), f"00.TAR/{name}")
        assert str(where) == where.path == f"{shard}/{name}"
        assert read_bytes(where) == read_bytes(shard / name) == name.encode()
        assert where.stat() == where.stamp() == (len(name.encode()), shard.stat().st_mtime_ns)
    files = [path for path in tree.rglob("*") if path.is_file() and path != shard]
    assert len(files) == 6
    for path in files:
        where = locate(path)
        assert where == Location("file", "", str(path))
        assert where.stat() == (path.stat().st_size, path.stat().st_mtime_ns)
        assert read_bytes(where) == path.read_bytes()


def test_local_folder_with_the_name_of_a_protocol(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its absolute path is no URL; relative to the working folder it would be one."""
    monkeypatch.chdir(tree)
    assert locate(tree / "s3:" / "shop" / "0.png").kind == "file"
    assert locate("s3:/shop/0.png").kind == "url"
    assert locate(f"../{tree.name}/s3:/shop/0.png").kind == "file"


@pytest.mark.parametrize(
    "name", ["00.TAR/none.png", "plain.png/x.png", "not a shard/x.png", "gone.tar/x.png", ".tar/x.png"]
)
def test_missing_files_are_missing(tree: Path, name: str) -> None:
    where = locate(tree / name)
    assert (where.stamp(), where.exists()) == (None, False)
    with pytest.raises(ImageError) as caught:
        read_bytes(where)
    assert caught.value.reason == ImageError.MISSING
    assert str(tree / name) in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "loop.png"])
def test_impossible_files_do_not_exist(tree: Path, name: str) -> None:
    (tree / "loop.png").symlink_to("loop.png")
    assert not locate(tree / name).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_file_behind_a_closed_folder_may_exist(tree: Path) -> None:
    closed = tree / "s3:"
    closed.chmod(0)
    try:
        assert locate(closed / "shop" / "0.png").stamp() == (0, 0)
    finally:
        closed.chmod(0o755)


@given(PARTS)
def test_no_name_breaks_the_lookup(parts: list[str]) -> None:
    where = locate("/nowhere/" + "/".join(parts))
    assume(".." not in parts)
    assert where.kind == "file"
    assert not where.exists()
