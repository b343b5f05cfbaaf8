"""Original files: links, special files and replaced files."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import tarfile
import threading
import time
from pathlib import Path

import httpx
import pytest
from PIL import Image

from retrieval import Gallery
from retrieval.errors import ImageError
from retrieval.search.options import SearchOptions
from serve.app import create_app
from serve.core.originals import Original, find_original
from serve.core.queries import Region, RegionQuery
from serve.core.service import SearchService
from serve.core.thumbnails import MISSING
from tests.conftest import draw
from tests.serve.asgi_server import answering

IMAGE, SECRET = b"a picture", b"a secret of the server's"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An indexed folder with an image, beside a private folder."""
    for name, content in (("shop/a/1.png", IMAGE), ("inside/1.png", SECRET)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path / "shop"


def _original(root: Path, path: str = "a/1.png", content: bytes | None = IMAGE) -> Original:
    return Original(str(root), path, hashlib.sha256(content).hexdigest() if content is not None else "")


def _is_refused(file: Original) -> bool:
    try:
        assert file.read() == IMAGE
    except ImageError:
        return True
    return False


# ---- readable files


def test_regular_file_is_read_also_if_modified(root: Path) -> None:
    assert _original(root).read() == IMAGE
    (root / "a" / "1.png").write_bytes(b"a better picture")
    assert _original(root).read() == b"a better picture"


@pytest.mark.parametrize("way", ["file", "folder", "chain"])
def test_links_to_indexed_bytes_are_read(root: Path, way: str) -> None:
    links = root.with_name("links")
    (links / "a").mkdir(parents=True)
    if way == "folder":
        (links / "a").rmdir()
        (links / "a").symlink_to(root / "a")
    elif way == "chain":
        (links / "a" / "1.png").symlink_to("2.png")
        (links / "a" / "2.png").symlink_to(root / "a" / "1.png")
    else:
        (links / "a" / "1.png").symlink_to(root / "a" / "1.png")
    assert _original(links).read() == IMAGE
    (root / "a" / "1.png").write_bytes(b"not the one that was indexed")
    assert _is_refused(_original(links))


def test_linked_folder_is_read(root: Path) -> None:
    root.rename(root.with_name("moved"))
    root.symlink_to("moved")
    assert _original(root).read() == IMAGE
    assert _original(root, content=None).read() == IMAGE  # also with an unknown checksum


# ---- replaced files


@pytest.mark.parametrize("content", [IMAGE, None])
@pytest.mark.parametrize("way", ["file", "folder", "relative", "within"])
def test_links_to_other_files_are_refused(root: Path, way: str, content: bytes | None) -> None:
    inside = root.with_name("inside")
    file = root / "a" / "1.png"
    if way == "folder":
        shutil.rmtree(root / "a")
        (root / "a").symlink_to(inside)
    else:
        file.unlink()
        (root / "other.png").write_bytes(SECRET)
        targets = {
            "file": inside / "1.png",
            "relative": Path("../../inside/1.png"),
            "within": root / "other.png",
        }
        file.symlink_to(targets[way])
    assert file.read_bytes() == SECRET
    assert _is_refused(_original(root, content=content))


@pytest.mark.parametrize(
    "way", ["pipe", "link to a pipe", "zero", "folder", "loop", "nothing", "not allowed"]
)
def test_special_files_are_refused_without_blocking(root: Path, way: str) -> None:
    file = root / "a" / "1.png"
    file.unlink()
    if way == "pipe":
        os.mkfifo(file)
    elif way == "link to a pipe":
        os.mkfifo(root / "pipe")
        file.symlink_to(root / "pipe")
    elif way in ("zero", "loop"):
        file.symlink_to("/dev/zero" if way == "zero" else file)
    elif way == "folder":
        file.mkdir()
    elif way == "not allowed":
        file.symlink_to("/proc/1/mem")
    assert _is_refused(_original(root))


def test_item_without_file_is_missing() -> None:
    assert _is_refused(Original("", "", ""))


def test_tar_member_is_read_if_unchanged(root: Path) -> None:
    for name, content in (("good.tar", IMAGE), ("bad.tar", SECRET)):
        with tarfile.open(root.with_name(name), "w") as tar:
            (root / "1.png").write_bytes(content)
            tar.add(root / "1.png", "a/1.png")
    tar_file = root / "x.tar"
    for name, refused in (("good.tar", False), ("bad.tar", True), ("good.tar", False)):
        tar_file.unlink(missing_ok=True)
        tar_file.symlink_to(root.with_name(name))
        assert _is_refused(_original(root, "x.tar/a/1.png")) == refused
    tar_file.unlink()
    shutil.copy(root.with_name("good.tar"), tar_file)
    assert _original(root, "x.tar/a/1.png").read() == IMAGE


def test_swapped_link_does_not_win_the_race(root: Path) -> None:
    folder, aside, inside = root / "a", root / "b", root.with_name("inside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            folder.rename(aside)
            folder.symlink_to(inside)
            time.sleep(random.random() / 2000)  # else the two threads may keep in step
            folder.unlink()
            aside.rename(folder)
            time.sleep(random.random() / 2000)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        found: set[bytes] = set()
        refused = 0
        end = time.monotonic() + 30
        while (refused < 2000 or not found) and time.monotonic() < end:
            try:
                found.add(_original(root, content=None).read())
            except ImageError:
                refused += 1
    finally:
        over.set()
        thread.join()
    assert found == {IMAGE}
    assert refused


# ---- through the server


@pytest.fixture
def swapped(tmp_path: Path, shop: Path, model_file: Path) -> tuple[SearchService, int]:
    """A gallery whose first image was replaced by a link to a file that was not indexed."""
    own = shutil.copytree(shop, tmp_path / "shop")
    gallery = Gallery.create(tmp_path / "shop.gallery", model_file)
    gallery.add([own])
    draw(99, size=(600, 600)).save(tmp_path / "secret.png")
    (number,) = gallery.ids_of(["red/1.png"])
    (own / "red" / "1.png").unlink()
    (own / "red" / "1.png").symlink_to(tmp_path / "secret.png")
    return SearchService(gallery.folder), number


def test_replaced_file_is_not_shown_anywhere(swapped: tuple[SearchService, int]) -> None:
    service, number = swapped
    region = Region(0, 0, 1, 1)
    assert service.thumbnail(number) is MISSING
    assert service.picture(number) is MISSING
    (found,) = service.find([RegionQuery(number, region)], SearchOptions()).found
    assert isinstance(found, ImageError)
    with answering(create_app(service, page=False)) as url:
        thumbnail = httpx.get(f"{url}/v1/items/{number}/thumbnail")
        assert thumbnail.headers["content-type"] == "image/svg+xml"
        assert thumbnail.headers["cache-control"] == "no-store"
        found = httpx.post(f"{url}/v1/search", json={"id": number, "region": region.values})
        assert (found.status_code, found.json()["code"]) == (422, "unusable-image")
        assert "secret" not in found.text
        assert httpx.post(f"{url}/v1/search", json={"id": number}).status_code == 200  # by its vector


def test_reindexed_image_is_shown_again(swapped: tuple[SearchService, int]) -> None:
    service, number = swapped
    file = find_original(service.gallery, number)
    Gallery(service.folder).add([file.root])
    (again,) = service.gallery.ids_of(["red/1.png"])
    assert again == number
    picture = Image.open(io.BytesIO(service.picture(again).data))
    assert picture.size == (600, 600)  # indexing follows links, by intent of the owner
