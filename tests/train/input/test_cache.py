"""Decoded images: identical with and without a cache; a cache is written once and survives interruption."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from retrieval import InputError, LookalikeError, Preprocess, load_image
from retrieval.errors import ImageError
from tests.conftest import draw, wait_until
from train.config import AugmentConfig, Config, LoaderConfig
from train.input import cache as cache_module
from train.input.cache import (
    CachedImages,
    UncachedImages,
    ValidationImages,
    decoded_images,
    fingerprint,
    open_cache,
    temporary_cache,
)
from train.input.resize import Resize, training_resize

PREPROCESS = Preprocess(size=20, resize=24)
WHOLE = Resize(PREPROCESS, whole=True)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Five image files of several shapes; the third is not an image."""
    for number, size in enumerate([(48, 40), (30, 60), (24, 24), (200, 50), (24, 31)]):
        draw(number, size).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"no")
    return sorted(tmp_path.glob("*.png"))


def assert_same(cached: CachedImages, paths: list[Path], resize: Resize) -> None:
    for number, path in enumerate(paths):
        image = cached[number]
        if isinstance(image, ImageError):
            assert (image.source, image.reason) == (str(path), ImageError.NOT_AN_IMAGE)
        else:
            np.testing.assert_array_equal(image, resize(load_image(path)))
    assert list(cached.bad) == [2]


@pytest.mark.parametrize("resize", [WHOLE, Resize(Preprocess(size=20, resize=24))])
def test_cached_images_equal_those_of_load_image(tmp_path: Path, paths: list[Path], resize: Resize) -> None:
    before = set(tmp_path.iterdir())
    assert_same(temporary_cache(paths, resize, tmp_path), paths, resize)
    assert set(tmp_path.iterdir()) == before, "nothing is left on the disk"
    for _ in range(2):
        assert_same(open_cache(paths, resize, tmp_path / "cache"), paths, resize)
    assert len(list((tmp_path / "cache").glob("*.pictures"))) == 1


def test_empty_list_of_images(tmp_path: Path) -> None:
    assert len(open_cache([], WHOLE, tmp_path).sizes) == 0
    assert len(temporary_cache([], WHOLE, tmp_path).sizes) == 0


def test_cache_is_rewritten_when_a_file_changes(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    first = np.array(open_cache(paths, WHOLE, cache)[0])
    stamp = paths[0].stat()
    draw(9, (48, 40), 1).save(paths[0])
    changed = paths[0].read_bytes()
    paths[0].write_bytes(changed[: stamp.st_size].ljust(stamp.st_size))
    os.utime(paths[0], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    np.testing.assert_array_equal(open_cache(paths, WHOLE, cache)[0], first)  # size and time are unchanged
    paths[0].write_bytes(changed)
    assert_same(open_cache(paths, WHOLE, cache), paths, WHOLE)
    assert not np.array_equal(open_cache(paths, WHOLE, cache)[0], first)
    assert len(list(cache.glob("*.pictures"))) == 2, "the other one is left alone"


def test_fingerprint_covers_exactly_what_pixels_depend_on(tmp_path: Path, paths: list[Path]) -> None:
    seen = [
        fingerprint(paths, WHOLE.fingerprint),
        fingerprint(paths[::-1], WHOLE.fingerprint),
        fingerprint(paths[:4], WHOLE.fingerprint),
    ]
    others = [Preprocess(size=20, resize=25), Preprocess(size=20, resize=24, interpolation="bilinear")]
    seen += [fingerprint(paths, Resize(other, whole=True).fingerprint) for other in others]
    seen += [fingerprint(paths, Resize(Preprocess(size=size, resize=24)).fingerprint) for size in (20, 21)]
    assert len(set(seen)) == len(seen)
    same = Preprocess(size=10, resize=24, mean=(0, 0, 0))
    relative = [Path(os.path.relpath(path)) for path in paths]
    assert fingerprint(relative, Resize(same, whole=True).fingerprint) == seen[0]


def test_truncated_cache_file_is_rewritten(tmp_path: Path, paths: list[Path]) -> None:
    open_cache(paths, WHOLE, tmp_path / "cache")
    [file] = (tmp_path / "cache").glob("*.pictures")
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert_same(open_cache(paths, WHOLE, tmp_path / "cache"), paths, WHOLE)
        assert file.read_bytes() == whole


# ---- other processes: reading `slow.png` blocks until the test creates the file `go` beside it

_OPEN_CACHE = """
import resource, sys, time
from pathlib import Path
from retrieval import Preprocess
from retrieval.images import picture
from train.input.cache import open_cache
from train.input.resize import Resize
if sys.argv[1] != "-":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
read = picture.read_bytes
def read_slowly(place):
    path = Path(place.path)
    while path.name == "slow.png" and not path.with_name("go").exists():
        time.sleep(0.01)
    return read(place)
picture.read_bytes = read_slowly
cached = open_cache([Path(p) for p in sys.argv[3:]], Resize(Preprocess(size=20, resize=24), whole=True),
            Path(sys.argv[2]), show_progress=True)
print(cached.pixels.sum(), list(cached.bad))
"""


def cache_process(cache: Path, paths: list[Path], limit: str = "-") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", _OPEN_CACHE, limit, str(cache), *map(str, paths)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_writer_leaves_no_cache_file(tmp_path: Path, paths: list[Path]) -> None:
    slow, cache = tmp_path / "slow.png", tmp_path / "cache"
    shutil.copy(paths[0], slow)
    builder = cache_process(cache, [*paths, slow])
    wait_until(lambda: list(cache.glob("*.tmp-*")))
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    assert not list(cache.glob("*.pictures"))
    assert_same(open_cache(paths, WHOLE, cache), paths, WHOLE)
    assert sorted(file.suffix for file in cache.iterdir()) == ["", ".pictures"], "the lock and the images"


def test_one_process_writes_and_the_others_wait(tmp_path: Path, paths: list[Path]) -> None:
    slow, cache = tmp_path / "slow.png", tmp_path / "cache"
    shutil.copy(paths[0], slow)
    first = cache_process(cache, [*paths, slow])
    wait_until(lambda: list(cache.glob("*.tmp-*")))
    second = cache_process(cache, [*paths, slow])
    assert second.stderr is not None
    assert "waiting for another process" in second.stderr.readline()
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert outputs[0] == outputs[1]
    assert outputs[0].endswith("[2]\n")


def test_full_disk_is_reported(tmp_path: Path, paths: list[Path]) -> None:
    done = cache_process(tmp_path / "cache", paths, limit="4000")
    errors = done.communicate(timeout=30)[1]
    last = errors.splitlines()[-1]
    assert last.startswith("retrieval.errors.LookalikeError")
    assert str(tmp_path / "cache") in last
    assert "File too large" in last
    assert "loader.cache" in last
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["LOCK"]


def test_cache_folder_below_a_file_is_refused(tmp_path: Path, paths: list[Path]) -> None:
    shutil.copyfile(paths[0], tmp_path / "file")
    with pytest.raises(LookalikeError, match="cannot be written there"):
        open_cache(paths, WHOLE, tmp_path / "file" / "cache")


# ---- choosing a source, and validation images


@pytest.fixture
def mixed(shop: Path, tmp_path: Path) -> list[Path]:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no")
    good = sorted(shop.rglob("*.png"))
    return [*good[:5], broken, *good[5:9]]


def test_images_are_cached_only_if_they_fit(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(shop.rglob("*.png"))
    resize, config = Resize(Preprocess(size=224, resize=256)), LoaderConfig()
    assert isinstance(decoded_images(files, resize, config, folder=tmp_path), CachedImages)
    assert not list(tmp_path.iterdir())
    needed = len(files) * 3 * 256**2
    plenty, little = (SimpleNamespace(free=size) for size in (10**12, 4 * needed - 4))
    for memory, disk in ((10**12, little), (little.free, plenty)):
        monkeypatch.setattr(cache_module, "free_memory", lambda memory=memory: memory)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, disk=disk: disk)
        assert isinstance(decoded_images(files, resize, config, folder=tmp_path), UncachedImages)
        assert isinstance(decoded_images(files[1:], resize, config, folder=tmp_path), CachedImages)
    named = LoaderConfig(cache=str(tmp_path / "cache"))
    assert isinstance(decoded_images(files, resize, named, folder=tmp_path), CachedImages)
    assert list((tmp_path / "cache").glob("*.pictures"))


def test_processes_share_one_temporary_cache(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "run" / "decoded-0"
    first = decoded_images(paths, WHOLE, LoaderConfig(), folder=tmp_path, shared=shared)
    monkeypatch.setattr(cache_module, "decode_ahead", None)  # decoding again would fail
    second = decoded_images(paths, WHOLE, LoaderConfig(), folder=tmp_path, shared=shared)
    assert len(list(shared.glob("*.pictures"))) == 1
    shutil.rmtree(shared)  # by the first process to end
    for images in (first, second):
        assert isinstance(images, CachedImages)
        assert_same(images, paths, WHOLE)


@pytest.mark.parametrize("limit", [2**30, 0])
def test_validation_images_equal_preprocessed_files(
    mixed: list[Path], tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "room_for_images", lambda folder: limit)
    validation = ValidationImages(mixed, PREPROCESS, LoaderConfig(), folder=tmp_path)
    for _ in range(2):
        batches = list(validation.batches(4))
        assert [len(positions) for positions, _ in batches] == [4, 4, 1]
        assert np.concatenate([p for p, _ in batches]).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        for positions, images in batches:
            for position, image in zip(positions, images, strict=True):
                np.testing.assert_array_equal(image, PREPROCESS(load_image(mixed[position])))
        assert [error.source for error in validation.bad] == [str(mixed[5])]


def test_unreadable_last_image_does_not_drop_the_batch(mixed: list[Path], tmp_path: Path) -> None:
    few = ValidationImages(mixed[:6], PREPROCESS, LoaderConfig(), folder=tmp_path)
    assert [positions.tolist() for positions, _ in few.batches(64)] == [[0, 1, 2, 3, 4]]
    none = ValidationImages(mixed[5:6], PREPROCESS, LoaderConfig(), folder=tmp_path)
    assert not list(none.batches(64))


@pytest.mark.parametrize("size", [(48, 40), (40, 48), (24, 24), (33, 100), (7, 9), (25, 24)])
def test_whole_image_keeps_its_aspect_ratio(size: tuple[int, int]) -> None:
    image = Image.effect_noise(size, 60).convert("RGB")
    whole = PREPROCESS.whole(image)
    assert min(whole.shape[:2]) == 24
    assert abs(whole.shape[1] / whole.shape[0] - size[0] / size[1]) < 0.05 * size[0] / size[1]
    theirs = image.resize(whole.shape[1::-1], Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(PREPROCESS.of_policy(2).whole(image), np.asarray(theirs))


def test_training_crops_come_from_a_larger_image() -> None:
    """`augment.resize` changes the size that crops are taken from; the resampling stays the same."""
    preprocess, image = Preprocess(size=20, resize=24), draw(1, (64, 40))
    for crop, shape in (("random", (30, 48, 3)), ("center", (30, 30, 3))):
        config = Config(data="", preprocess=preprocess, augment=AugmentConfig(crop=crop, resize=30))
        seen = training_resize(config)(image)
        assert seen.shape == shape
        whole = np.asarray(image.resize((48, 30), Image.Resampling.BICUBIC)).astype(int)
        middle = whole[:, (48 - shape[1]) // 2 :][:, : shape[1]]
        assert np.abs(seen - middle).mean() <= 0.5
    with pytest.raises(InputError, match=r"augment.resize: expected preprocess.size or more"):
        Config(data="", preprocess=preprocess, augment=AugmentConfig(resize=19))


def test_center_of_a_long_strip_is_kept() -> None:
    strip = Image.new("RGB", (50_000, 2))
    strip.paste("white", (24_990, 0, 25_010, 2))
    whole = PREPROCESS.whole(strip)
    assert whole.shape == (24, 192, 3)
    assert whole.min() == 255


@pytest.mark.parametrize("fit", ["crop", "squeeze", "pad"])
@pytest.mark.parametrize("size", [(75, 60), (40, 64), (61, 200), (24, 31), (20, 24)])
def test_training_resize_is_that_of_indexing(size: tuple[int, int], fit: str) -> None:
    preprocess, image = Preprocess(size=20, resize=24, fit=fit), draw(3, size)
    config = Config(data="", preprocess=preprocess, augment=AugmentConfig(crop="random"))
    np.testing.assert_array_equal(training_resize(config)(image), preprocess.whole(image))
    central = training_resize(Config(data="", preprocess=preprocess))(image)
    np.testing.assert_array_equal(central, dataclasses.replace(preprocess, size=24)(image))
