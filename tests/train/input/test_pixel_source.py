"""Where decoded pictures come from, and that it makes no difference to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import InputError, Preprocess, load_image
from tests.conftest import draw
from train.config import AugmentConfig, Config, LoaderConfig
from train.input import pixel_source
from train.input.cache import Kept, Scale
from train.input.pixel_source import Files, Squares, pictures, training_scale

PREPROCESS = Preprocess(size=20, resize=24)


@pytest.fixture
def paths(shop: Path, tmp_path: Path) -> list[Path]:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no")
    good = sorted(shop.rglob("*.png"))
    return [*good[:5], broken, *good[5:9]]


def test_what_fits_is_kept_and_what_does_not_is_not(shop: Path, tmp_path: Path) -> None:
    files = sorted(shop.rglob("*.png"))
    scale, config = Scale(Preprocess(size=224, resize=256)), LoaderConfig()
    assert isinstance(pictures(files, scale, config, folder=tmp_path), Kept)
    assert isinstance(pictures(files * 250, scale, config, folder=tmp_path), Files), "6000 x 192 KiB > 1 GiB"
    assert isinstance(pictures(files, scale, config, folder=tmp_path, world=250), Files)
    assert not list(tmp_path.iterdir())
    named = LoaderConfig(cache=str(tmp_path / "cache"))
    assert isinstance(pictures(files, scale, named, folder=tmp_path, world=250), Kept)
    assert list((tmp_path / "cache").glob("*.pictures"))


@pytest.mark.parametrize("room", [2**30, 0])
def test_squares_are_what_the_model_sees(
    paths: list[Path], tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_source, "_ROOM", room)
    squares = Squares(paths, PREPROCESS, LoaderConfig(), folder=tmp_path)
    for _ in range(2):
        batches = list(squares.batches(4))
        assert [len(positions) for positions, _ in batches] == [4, 4, 1]
        assert np.concatenate([p for p, _ in batches]).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        for positions, images in batches:
            for position, image in zip(positions, images, strict=True):
                np.testing.assert_array_equal(image, PREPROCESS(load_image(paths[position])))
        assert [error.source for error in squares.bad] == [str(paths[5])]


def test_squares_where_the_last_cannot_be_read(paths: list[Path], tmp_path: Path) -> None:
    few = Squares(paths[:6], PREPROCESS, LoaderConfig(), folder=tmp_path)
    assert [positions.tolist() for positions, _ in few.batches()] == [[0, 1, 2, 3, 4]]
    none = Squares(paths[5:6], PREPROCESS, LoaderConfig(), folder=tmp_path)
    assert not list(none.batches())


@pytest.mark.parametrize("size", [(48, 40), (40, 48), (24, 24), (33, 100), (7, 9), (25, 24)])
def test_a_whole_picture_has_its_shape_and_the_shorter_side(size: tuple[int, int]) -> None:
    image = Image.effect_noise(size, 60).convert("RGB")
    whole = PREPROCESS.whole(image)
    assert min(whole.shape[:2]) == 24
    assert abs(whole.shape[1] / whole.shape[0] - size[0] / size[1]) < 0.05 * size[0] / size[1]
    theirs = image.resize(whole.shape[1::-1], Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(whole, np.asarray(theirs))


def test_training_may_choose_from_more_than_testing_does() -> None:
    """Its crops come out of a picture of another size, with the same resampling."""
    preprocess, picture = Preprocess(size=20, resize=24), draw(1, (64, 40))
    for crop, shape in (("random", (30, 48, 3)), ("center", (30, 30, 3))):
        config = Config(data="", preprocess=preprocess, augment=AugmentConfig(crop=crop, resize=30))
        seen = training_scale(config)(picture)
        assert seen.shape == shape
        whole = np.asarray(picture.resize((48, 30), Image.Resampling.BICUBIC)).astype(int)
        middle = whole[:, (48 - shape[1]) // 2 :][:, : shape[1]]
        assert np.abs(seen - middle).max() <= 1
    with pytest.raises(InputError, match=r"augment.resize: expected preprocess.size or more"):
        Config(data="", preprocess=preprocess, augment=AugmentConfig(resize=19))


def test_of_a_strip_the_middle_is_kept() -> None:
    strip = Image.new("RGB", (50_000, 2))
    strip.paste("white", (24_990, 0, 25_010, 2))
    whole = PREPROCESS.whole(strip)
    assert whole.shape == (24, 192, 3)
    assert whole.min() == 255
