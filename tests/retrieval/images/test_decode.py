"""Tests of multi-threaded decoding: order, errors, memory bounds."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval import ImageError, Preprocess, load_image
from retrieval.images import decode
from retrieval.images.decode import decode_ahead, read_ahead
from retrieval.images.load import OpenedImage, load_pixels
from retrieval.images.picture import Decoded, KnownFile
from retrieval.machine.resources import cores
from tests.conftest import draw

PREPROCESS = Preprocess(size=16)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write_files(tmp_path, 100, "png")


def write_files(folder: Path, count: int, suffix: str) -> list[Path]:
    """Write images of different sizes; every tenth file is invalid."""
    paths = [folder / f"{number}.{suffix}" for number in range(count)]
    for number, path in enumerate(paths):
        if number % 10 == 3:
            path.write_text("not an image")
        else:
            draw(number, (20 + number % 7, 30)).save(path)
    return paths


def test_results_are_in_order_and_equal_single_decoding(paths: list[Path]) -> None:
    files = list(decode_ahead(paths, PREPROCESS, side=PREPROCESS.scaled))
    assert len(files) == 100
    for number, (path, file) in enumerate(zip(paths, files, strict=True)):
        if number % 10 == 3:
            assert isinstance(file, ImageError)
            assert file.source == str(path)
            continue
        assert isinstance(file, Decoded)
        np.testing.assert_array_equal(file.pixels, PREPROCESS(load_image(path)))
        assert file.content_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert (file.width, file.height) == (20 + number % 7, 30)


def test_known_bytes_are_not_decoded(paths: list[Path]) -> None:
    known = {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths[:50]}
    files = list(read_ahead(paths, PREPROCESS, side=None, known=known.__contains__))
    # The invalid files all have the same bytes, which are known.
    assert [isinstance(file, KnownFile) for file in files[:50]] == [True] * 50
    assert sum(isinstance(file, KnownFile) for file in files[50:]) == 5


def test_pixels_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(100, 100), (300, 300), (50, 50), (400, 500), (100, 100)] * 8
    paths = [tmp_path / f"{number}.png" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        Image.new("RGB", size).save(path)
    monkeypatch.setattr(decode, "PIXELS_IN_FLIGHT", 120_000)
    monkeypatch.setattr(decode, "cores", lambda: 8)
    lock, now, most = threading.Lock(), [0], [0]

    def count(image: np.ndarray) -> np.ndarray:
        pixels = image.shape[0] * image.shape[1]
        with lock:
            now[0] += min(pixels, 120_000)
            most[0] = max(most[0], now[0])
        small = PREPROCESS(image)
        with lock:
            now[0] -= min(pixels, 120_000)
        return small

    assert len(list(decode_ahead(paths, count))) == 40
    assert 0 < most[0] <= 120_000


def test_early_stop_ends_all_threads(paths: list[Path]) -> None:
    files = decode_ahead(paths, PREPROCESS)
    next(files)
    files.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_read_ahead_is_bounded(tmp_path: Path) -> None:
    draw(0).save(tmp_path / "0.png")
    taken = []

    def endless() -> object:
        while True:
            taken.append(1)
            yield tmp_path / "0.png"

    files = decode_ahead(endless(), PREPROCESS)  # type: ignore[arg-type]
    for _ in range(10):
        next(files)
    assert len(taken) <= 10 + decode.files_ahead(cores())
    files.close()


def test_parts_of_one_picture_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pixels are those of each part alone, and the errors stay at their places."""
    pictures = []
    for seed in range(3):
        draw(seed, (640, 480)).save(tmp_path / f"{seed}.jpg", quality=95)
        pictures.append(str(tmp_path / f"{seed}.jpg"))
    parts = [f"#xywh=percent:{left},{top},25,25" for top in (0, 25, 50, 75) for left in (0, 25, 50, 75, 100)]
    places = [Path(picture + part) for picture in pictures for part in ["", *parts, "#xywh=0,0,9,9"]]
    places.insert(5, Path(f"{tmp_path}/none.jpg#xywh=1,1,9,9"))
    decoded = []
    whole = OpenedImage.decode_whole

    def counted(image: OpenedImage) -> Any:
        decoded.append(image.name)
        return whole(image)

    monkeypatch.setattr(OpenedImage, "decode_whole", counted)
    found = [*decode_ahead(places, lambda pixels: pixels.copy(), side=60)]
    assert len(decoded) < len(places) / 3
    monkeypatch.undo()
    bad = [error for error in found if isinstance(error, ImageError)]
    for place, file in zip(places, found, strict=True):
        if isinstance(file, ImageError):
            with pytest.raises(ImageError) as alone:
                load_pixels(place, side=60)
            assert (file.reason, file.detail) == (alone.value.reason, alone.value.detail)
        else:
            assert isinstance(file, Decoded)
            assert np.array_equal(file.pixels, load_pixels(place, side=60))
            assert (file.width, file.height) == (640, 480)
    assert len(bad) == 1 + 3 * 4
