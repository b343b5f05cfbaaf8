"""Shared pictures: what is stored, how long, and how many."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serve.core import shared_pictures
from serve.core.errors import UnknownPictureError
from serve.core.shared_pictures import SharedPictures


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> SharedPictures:
    return SharedPictures(tmp_path / "pictures", 3600, clock)


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8))


def test_a_picture_is_read_until_it_expires(store: SharedPictures, clock: Clock, tmp_path: Path) -> None:
    shared = store.share(picture(1))
    assert shared.expires == clock.now + 3600
    other_process = SharedPictures(tmp_path / "pictures", 3600, clock)
    found = Image.open(io.BytesIO(other_process.read(shared.id).data))
    assert found.format == "WEBP"
    assert np.array_equal(found, picture(1))  # a small one, exactly
    clock.now += 3599
    assert store.share(picture(1)).id == shared.id  # shared anew
    clock.now += 3599
    store.read(shared.id)
    clock.now += 1
    with pytest.raises(UnknownPictureError):
        store.read(shared.id)
    store.forget()
    assert not list((tmp_path / "pictures").iterdir())


def test_large_pictures_are_shrunk_and_lose_their_metadata(store: SharedPictures) -> None:
    image = picture(2, (2000, 500))
    image.info["exif"] = b"Exif\0\0secret"
    image.info["icc_profile"] = b"secret"
    data = store.read(store.share(image).id).data
    assert Image.open(io.BytesIO(data)).size == (1024, 256)
    assert b"secret" not in data


def test_the_oldest_go_beyond_the_limits(
    store: SharedPictures, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[bool]:
        return [(tmp_path / "pictures" / id).exists() for id in ids]

    monkeypatch.setattr(shared_pictures, "KEPT", 3)
    ids = []
    for seed in range(5):
        clock.now += 1
        ids.append(store.share(picture(seed)).id)
    assert kept() == [False, False, True, True, True]
    size = max(file.stat().st_size for file in (tmp_path / "pictures").iterdir())
    monkeypatch.setattr(shared_pictures, "MAX_BYTES", size)
    store.forget()
    assert kept() == [False, False, False, False, True]


def test_ids_are_not_paths(store: SharedPictures, tmp_path: Path) -> None:
    store.share(picture(1))
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "pictures" / ("a" * 31)).write_text("secret")
    os.symlink(tmp_path / "secret", tmp_path / "pictures" / "link")
    for id in ("../secret", "link", "a" * 31, "", ".", "A" * 32, "0" * 32 + "\n"):
        with pytest.raises(UnknownPictureError):
            store.read(id)
