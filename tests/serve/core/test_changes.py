"""Adding and removing images of a served gallery: database and files."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from retrieval import Gallery, InputError
from retrieval.errors import ImageError
from retrieval.model.embedder import Embedder
from retrieval.upkeep.rebuild import rebuild
from retrieval.upkeep.verify import verify
from serve.core import changes
from serve.core.changes import AddedImage
from serve.core.errors import (
    BusyError,
    ChangesNotAllowedError,
    UnavailableError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.conftest import draw
from tests.retrieval.filling import item_ids
from tests.serve.model import write_model

ALLOWED = Permissions(changes=True)


@pytest.fixture
def folder(shop_gallery: Path, tmp_path: Path) -> Path:
    """A copy of the shop's gallery, to be modified."""
    return shutil.copytree(shop_gallery, tmp_path / "g")


@pytest.fixture
def service(folder: Path) -> SearchService:
    return SearchService(folder, permissions=ALLOWED)


def encoded(seed: int, form: str = "PNG", **how: object) -> bytes:
    """Return the bytes of a new image."""
    buffer = io.BytesIO()
    draw(1000 + seed).save(buffer, form, **how)
    return buffer.getvalue()


def added(found: AddedImage | InputError) -> AddedImage:
    assert isinstance(found, AddedImage), found
    return found


def kept(folder: Path) -> set[str]:
    """Return the files that a gallery stores."""
    own = folder / "pictures"
    return {path.name for path in own.rglob("*")} if own.exists() else set()


def everything(gallery: Gallery) -> dict[str, tuple[str | None, bytes, bytes]]:
    """Return label, vector and file content of all items by key."""
    ids = item_ids(gallery).tolist()
    return {
        item.key: (item.label, gallery.vector(i).tobytes(), Path(item.path).read_bytes())
        for i, item in gallery.items(ids).items()
    }


def test_added_image_is_found_with_label_and_metadata(service: SearchService, folder: Path) -> None:
    data = encoded(1)
    (found,) = changes.add(service, [("new.png", data)], "red", {"price": 3.5, "brand": "acme"})
    item = added(found).item
    assert added(found).is_new
    assert (item.key, item.label, item.metadata) == ("new.png", "red", {"price": 3.5, "brand": "acme"})
    assert Path(item.path).read_bytes() == data
    assert kept(folder) == {f"{hashlib.sha256(data).hexdigest()}.png"}
    again = Gallery(folder)
    assert len(again) == service.summary().images == 25
    (hit,) = again.search(data, 1)
    assert (hit.id, hit.path) == (item.id, str(folder.resolve() / "pictures" / Path(item.path).name))
    assert hit.score == pytest.approx(1, abs=1e-5)
    assert not verify(folder).problems
    assert again.info()["runs"][0]["counts"] == {"added": 1}


def test_added_image_is_embedded_like_an_indexed_file(service: SearchService, tmp_path: Path) -> None:
    """Covers reduced decoding, EXIF orientation and scaling of a large JPEG."""
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    draw(5, size=(900, 700)).save(buffer, "JPEG", exif=exif)
    (tmp_path / "same.jpg").write_bytes(buffer.getvalue())
    other = Gallery.create(tmp_path / "other", service.folder / "model" / "model.onnx")
    other.add([tmp_path / "same.jpg"])
    (found,) = changes.add(service, [("x.jpg", buffer.getvalue())])
    number = added(found).item.id
    assert np.array_equal(service.gallery.vector(number), other.vector(1))
    (ours,), (theirs,) = service.gallery.store.items([number]), other.store.items([1])
    assert (ours.width, ours.height) == (theirs.width, theirs.height) == (700, 900)


@pytest.mark.parametrize(
    ("form", "suffix"), [("JPEG", ".jpg"), ("WEBP", ".webp"), ("TIFF", ".tif"), ("PPM", ".ppm")]
)
def test_stored_file_has_the_extension_of_its_format(
    service: SearchService, folder: Path, form: str, suffix: str
) -> None:
    changes.add(service, [("script.html", encoded(2, form))])
    assert {Path(name).suffix for name in kept(folder)} == {suffix}


@example("../../etc/cron.d/x.png")
@example("/tmp/x.png")
@example("a\0b.png")
@example("n" * 300 + ".png")
@example("..")
@example("")
@example("17")
@example("red/1.png")
@example("C:\\pictures\\x.png")
@example("\ud800.png")
@example("<img src=x onerror=alert(1)>.png")
@given(name=st.text(max_size=30))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_file_names_cannot_escape_the_folder(service: SearchService, folder: Path, name: str) -> None:
    before = {path for path in folder.parent.rglob("*") if not path.is_relative_to(folder)}
    data = encoded(3)
    (found,) = changes.add(service, [(name, data)])
    item = added(found).item
    assert {path for path in folder.parent.rglob("*") if not path.is_relative_to(folder)} == before
    assert kept(folder) == {f"{hashlib.sha256(data).hexdigest()}.png"}
    assert item.key.isprintable()
    assert not item.key.isdecimal()
    assert not set(item.key) & set("/\\")
    assert 1 <= len(item.key) <= 210
    assert service.gallery.ids_of([item.key]) == [item.id]
    changes.remove(service, [item.id])
    assert kept(folder) == set()


def test_duplicate_name_overwrites_no_file(service: SearchService) -> None:
    service.gallery.ids_of(["red/1.png"])
    found = changes.add(service, [("a.png", encoded(n)) for n in range(3)])
    keys = [added(one).item.key for one in found]
    assert keys[0] == "a.png"
    assert all(re.fullmatch(r"a-[0-9a-f]{8}\.png", key) for key in keys[1:])
    assert len({*keys}) == 3
    assert service.summary().images == 27
    (again,) = changes.add(service, [("a.png", encoded(9))])
    assert added(again).item.key not in keys


def test_identical_bytes_are_stored_once(service: SearchService, folder: Path, shop: Path) -> None:
    (there,) = service.gallery.ids_of(["green/2.png"])
    data = encoded(4)
    known = (shop / "green" / "2.png").read_bytes()
    found = changes.add(service, [("x.png", known), ("y.png", data), ("z.png", data)], "blue")
    assert [added(one).is_new for one in found] == [False, True, False]
    assert added(found[0]).item.id == there
    assert added(found[0]).item.label == "green"
    assert added(found[1]).item.id == added(found[2]).item.id
    assert len(kept(folder)) == 1
    (later,) = changes.add(service, [("later.png", data)])
    assert (added(later).is_new, added(later).item.id) == (False, added(found[1]).item.id)
    assert service.summary().images == 25


def test_unusable_image_does_not_affect_the_others(service: SearchService, folder: Path) -> None:
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    data = encoded(5)
    cut = data[: len(data) // 2]
    sent = [b"", b"not an image", cut, bomb.getvalue(), b"<svg xmlns='http://www.w3.org/2000/svg'/>", data]
    found = changes.add(service, [(f"{n}.png", one) for n, one in enumerate(sent)])
    reasons = [one.reason for one in found if isinstance(one, ImageError)]
    assert reasons == ["not-an-image", "not-an-image", "damaged", "too-large", "not-an-image"]
    assert added(found[-1]).item.key == "5.png"
    assert len(kept(folder)) == 1
    assert service.gallery.contents.bad_files() == []
    assert changes.add(service, [("0.png", b"")])[0]
    assert changes.add(service, []) == []


def test_label_and_metadata_are_validated(service: SearchService, folder: Path) -> None:
    changes.add(service, [("a.png", encoded(6))], metadata={"price": 3})
    for metadata in ({"price": "dear"}, {"path": "/x"}, {"": 1}, {"x": float("nan")}):
        with pytest.raises(InputError):
            changes.add(service, [("b.png", encoded(7))], metadata=metadata)
    for label in ("x" * 1001, "a\0b"):
        with pytest.raises(InputError, match="invalid label"):
            changes.add(service, [("b.png", encoded(7))], label)
    with pytest.raises(InputError, match="at most 64"):
        changes.add(service, [("c.png", encoded(8))] * 65)
    assert len(kept(folder)) == 1
    assert service.summary().images == 25


def test_changes_need_permission(folder: Path) -> None:
    service = SearchService(folder)
    before = (folder / "gallery.db").read_bytes()
    with pytest.raises(ChangesNotAllowedError):
        changes.add(service, [("a.png", encoded(1))])
    with pytest.raises(ChangesNotAllowedError):
        changes.remove(service, [1])
    assert (folder / "gallery.db").read_bytes() == before


def test_removal_deletes_only_files_stored_by_the_gallery(
    service: SearchService, folder: Path, shop: Path
) -> None:
    (mine,) = changes.add(service, [("a.png", encoded(1))])
    (other,) = changes.add(service, [("b.png", encoded(2))])
    (folder / "pictures" / "of-the-owner.png").write_bytes(b"mine")
    (theirs,) = service.gallery.ids_of(["red/1.png"])
    changes.remove(service, [added(mine).item.id, theirs])
    assert kept(folder) == {Path(added(other).item.path).name, "of-the-owner.png"}
    assert (shop / "red" / "1.png").exists()
    assert service.summary().images == 24
    for number in (theirs, added(mine).item.id, 0, 2**62):
        with pytest.raises(UnknownItemError):
            changes.remove(service, [added(other).item.id, number])
    assert service.summary().images == 24
    assert not verify(folder).problems
    assert verify(folder).leftovers == 0


def test_id_of_a_rebuilt_gallery_removes_nothing(service: SearchService, folder: Path) -> None:
    uuid = service.summary().uuid
    rebuild(Gallery(folder), Embedder(write_model(folder.with_name("other.onnx"), "other")))
    with pytest.raises(UnavailableError):
        changes.remove(service, [3], uuid=uuid)
    assert service.summary().images == 24
    changes.remove(service, [3], uuid=service.summary().uuid)
    assert service.summary().images == 23


# ---- concurrency and failures


def add_with_retries(
    service: SearchService, images: Sequence[tuple[str, bytes]], attempts: int = 20
) -> list[AddedImage | InputError]:
    """Add images; if the gallery is busy, wait for Retry-After and try again, as clients are expected to."""
    for _ in range(attempts - 1):
        try:
            return changes.add(service, images)
        except BusyError as error:  # on a slow machine the other writers may hold the lock for long
            time.sleep(int(error.headers["Retry-After"]))
    return changes.add(service, images)


def test_concurrent_additions_all_succeed(folder: Path, service: SearchService) -> None:
    others = [SearchService(folder, permissions=ALLOWED), service]
    with ThreadPoolExecutor(6) as pool:
        jobs = [
            pool.submit(
                add_with_retries, others[n % 2], [("same.png", encoded(n)), (f"{n}.png", encoded(n + 100))]
            )
            for n in range(10)
        ]
        found = [added(one) for job in jobs for one in job.result()]
    assert all(one.is_new for one in found)
    assert len({one.item.id for one in found}) == len({one.item.key for one in found}) == 20
    assert len(kept(folder)) == 20
    for each in others:
        each.refresh()
        assert each.summary().images == 44
    assert not verify(folder).problems


def test_locked_gallery_is_retried_then_reported_busy(
    service: SearchService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from retrieval.storage.store import Store\n"
        f"with Store(Path({str(folder)!r})).writing(): print('held', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        monkeypatch.setattr(changes, "_LOCK_SECONDS", 0.2)
        for work in (
            lambda: changes.add(service, [("a.png", encoded(1))]),
            lambda: changes.remove(service, [1]),
        ):
            with pytest.raises(BusyError) as error:
                work()
            assert str(folder) not in str(error.value)
        monkeypatch.setattr(changes, "_LOCK_SECONDS", 30)
        release = threading.Timer(0.3, lambda: holder.communicate("\n"))
        release.start()
        (found,) = changes.add(service, [("a.png", encoded(1))])
        release.join()
    assert added(found).is_new


def test_nearly_full_disk_refuses_additions(
    service: SearchService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_MIN_FREE_BYTES", 2**62)
    with pytest.raises(UnwritableError, match="nearly full"):
        changes.add(service, [("a.png", encoded(1))])
    assert kept(folder) == set()
    changes.remove(service, [1])  # frees space


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("free", [0, 8, 40, 100, 140])
def test_disk_full_during_an_addition_changes_nothing(
    shop_gallery: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(changes, "_MIN_FREE_BYTES", -(2**40))
    folder = shutil.copytree(shop_gallery, disk / "g")
    service = SearchService(folder, permissions=ALLOWED)
    before = everything(Gallery(folder))
    noise = np.random.default_rng(0).integers(0, 256, (200, 160, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")  # 96 kB
    space = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "ballast").write_bytes(b"x" * (space - free * 1024))
    with pytest.raises(UnwritableError) as error:
        changes.add(service, [("a.png", encoded(1)), ("b.png", buffer.getvalue())])
    assert str(folder) not in str(error.value)
    assert everything(Gallery(folder)) == before
    assert kept(folder) == set()
    (disk / "ballast").unlink()
    changes.add(service, [("a.png", encoded(1)), ("b.png", buffer.getvalue())])
    assert len(kept(folder)) == 2
    assert not verify(folder).problems


def test_read_only_disk_is_reported(shop_gallery: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_MIN_FREE_BYTES", 0)
    folder = shutil.copytree(shop_gallery, disk / "g")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    service = SearchService(folder, permissions=ALLOWED)
    for work in (lambda: changes.add(service, [("a.png", encoded(1))]), lambda: changes.remove(service, [1])):
        with pytest.raises(UnwritableError) as error:
            work()
        assert str(folder) not in str(error.value)


# ---- near-duplicates


def like(data: bytes, *, quality: int = 95) -> bytes:
    """Return another file of an image, which looks the same."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def test_near_duplicates_are_refused_if_asked(service: SearchService, folder: Path) -> None:
    """Of an image of the gallery, of one sent before, and of one that was refused itself."""
    first, second = encoded(20), encoded(21)
    (there,) = changes.add(service, [("first.png", first)])
    names = ("like.jpg", "second.png", "like2.jpg", "same.png", "like.jpg", "bad.png")
    sent = [like(first), second, like(second), first, like(first), b"no"]
    count, images = len(kept(folder)), list(zip(names, sent, strict=True))
    *found, bad = changes.add(service, images, "red", duplicates="refuse")
    assert isinstance(bad, ImageError)
    results = [added(one) for one in found]
    own = results[1].item.id
    assert [(one.item.id, one.is_new) for one in results] == [
        (added(there).item.id, False),
        (own, True),
        (own, False),
        (added(there).item.id, False),
        (added(there).item.id, False),
    ]
    vectors = service.gallery.embedder.embed(sent[:-1])
    expected = [vectors[0] @ vectors[3], None, vectors[2] @ vectors[1], None, vectors[0] @ vectors[3]]
    for one, score in zip(results, expected, strict=True):
        assert one.similarity == (None if score is None else pytest.approx(float(score), abs=1e-5))
    assert len(kept(folder)) == count + 1
    kept_too = changes.add(service, images[:1])
    assert added(kept_too[0]).is_new, "kept by default"
    assert verify(folder).problems == []


def test_nothing_like_it_is_added(service: SearchService) -> None:
    data = [encoded(seed) for seed in range(30, 36)]
    vectors = service.gallery.embedder.embed(data)
    stored = service.gallery.embeddings().vectors
    assert np.triu(vectors @ vectors.T, 1).max() < 0.94
    assert (vectors @ stored.T).max() < 0.94
    found = changes.add(service, [(f"{n}.png", one) for n, one in enumerate(data)], duplicates="refuse")
    assert all(added(one).is_new for one in found)


def test_refusal_sees_what_another_process_has_added(service: SearchService, folder: Path) -> None:
    data = encoded(40)
    changes.add(SearchService(folder, permissions=ALLOWED), [("other.png", data)])
    (found,) = changes.add(service, [("like.jpg", like(data))], duplicates="refuse")
    assert not added(found).is_new
    assert added(found).item.key == "other.png"
