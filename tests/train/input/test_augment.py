"""Augmentation: crops located by search, transforms checked against Pillow and symmetries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retrieval import Preprocess
from tests.conftest import draw as draw_image
from train.config import AugmentConfig
from train.input.augment import apply_transform, image_transform, random_transform

NOTHING = AugmentConfig(rotate=0, scale=0, shear=0, shift=0, flip=False)


def noise(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=torch.manual_seed(0))


def augmented(images: torch.Tensor, size: int, turn: int = 0, **config: object) -> torch.Tensor:
    turns, settings = torch.full((len(images),), turn), NOTHING.model_copy(update=config)
    return apply_transform(images, random_transform(turns, settings, torch.Generator().manual_seed(1)), size)


# ---- one image


def cut(image: torch.Tensor, size: int, seed: int, **config: object) -> torch.Tensor:
    change = image_transform(NOTHING.model_copy(update=config), Preprocess(size=size))
    assert change is not None
    torch.manual_seed(seed)
    return change(image)


def places(part: torch.Tensor, whole: torch.Tensor) -> list[tuple[int, int]]:
    """Return all positions of `part` [3, s, s] in `whole` [3, h, w]."""
    windows = whole.unfold(1, part.shape[1], 1).unfold(2, part.shape[2], 1)  # [3, y, x, s, s]
    return [tuple(place) for place in (windows == part[:, None, None]).all((0, 3, 4)).nonzero().tolist()]


@pytest.mark.parametrize("padding", [0, 3])
def test_random_crop_is_a_window_of_the_whole_image(padding: int) -> None:
    whole = noise(1, 40)[0].permute(2, 0, 1)[:, :16, :24]
    padded = torch.zeros(3, 16 + 2 * padding, 24 + 2 * padding, dtype=torch.uint8)
    padded[:, padding : padding + 16, padding : padding + 24] = whole
    seen = set()
    for seed in range(400):
        [place] = places(cut(whole, 12, seed, crop="random", padding=padding), padded)
        seen.add(place)
    assert {y for y, _ in seen} == set(range(padded.shape[1] - 11))
    assert {x for _, x in seen} == set(range(padded.shape[2] - 11))


def test_resized_crop_has_at_least_the_minimum_area() -> None:
    """Pixel values encode their position, so the range of values gives the extent of the crop."""
    y, x = torch.meshgrid(torch.arange(200), torch.arange(250), indexing="ij")
    ramps = torch.stack([y, x, x * 0]).to(torch.uint8)
    areas = []
    for seed in range(200):
        part = cut(ramps, 50, seed, crop="resized", min_area=0.3).int()
        assert part.shape == (3, 50, 50)
        height, width = ((part[i].amax() - part[i].amin()).item() * 50 / 49 for i in (0, 1))
        areas.append(height * width / (200 * 250))
    assert min(areas) > 0.27
    assert min(areas) < 0.4
    assert max(areas) > 0.8


def test_colour_jitter_is_bounded() -> None:
    grey = torch.full((3, 8, 8), 100, dtype=torch.uint8)
    seen = [cut(grey, 8, seed, color=0.2) for seed in range(100)]
    values = torch.stack(seen)
    assert (values.amax((2, 3)) == values.amin((2, 3))).all()
    assert values.min() >= 79
    assert values.max() <= 121
    assert values.float().std() > 5
    red = torch.tensor([200, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 8, 8)
    assert all(cut(red, 8, seed, color=0.2)[:, 0, 0].argmax() == 0 for seed in range(50))


def test_no_image_transform_without_crop_and_colour() -> None:
    assert image_transform(AugmentConfig(), Preprocess(size=8)) is None


# ---- batches


def test_without_random_settings_it_is_a_central_crop() -> None:
    images = noise(3, 12)
    assert torch.equal(augmented(images, 12), images)
    assert torch.equal(augmented(images, 8), images[:, 2:10, 2:10])


def test_symmetries_are_those_of_the_square() -> None:
    images = noise(4, 9)
    seen = [augmented(images, 9, turn, symmetries=8) for turn in range(8)]
    turned = [torch.rot90(images, turns, (1, 2)) for turns in range(4)]
    mirrored = [torch.rot90(images.flip(2), turns, (1, 2)) for turns in range(4)]
    for found, expected in ((seen[:4], turned), (seen[4:], mirrored)):
        assert all(any(torch.equal(f, e) for f in found) for e in expected)
    assert torch.equal(seen[0], images)


def test_random_flip_precedes_the_symmetry() -> None:
    """Classes of different symmetries stay distinct: the image is flipped before it is rotated."""
    images = noise(100, 5)
    for turn in range(4):
        quarter, mirrored = (torch.rot90(start, turn, (1, 2)) for start in (images, images.flip(2)))
        seen = augmented(images, 5, turn, flip=True, symmetries=4)
        plain = (seen == quarter).all((1, 2, 3))
        assert (plain ^ (seen == mirrored).all((1, 2, 3))).all()
        assert 25 < plain.sum() < 75


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = noise(400, 4)
    flipped = augmented(images, 4, flip=True)
    mirrored = (flipped == images.flip(2)).all((1, 2, 3))
    assert ((flipped == images).all((1, 2, 3)) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250


def test_shift_is_bounded() -> None:
    image = torch.zeros(500, 40, 40, 3, dtype=torch.uint8)
    image[:, 18:22, 18:22] = 255
    moved = augmented(image, 40, shift=0.25)[..., 0].double()
    places = torch.arange(40) - 19.5
    for axis in (1, 2):
        centre = (moved.sum(3 - axis) * places).sum(1) / moved.sum((1, 2))
        assert centre.abs().max() <= 10.01
        assert centre.max() > 9
        assert centre.min() < -9


def test_rotation_equals_pillow() -> None:
    """The same map as Pillow's, up to rounding, by an angle within the limit."""
    image = draw_image(0, (64, 64), 1).resize((64, 64), Image.Resampling.BICUBIC)
    ours = augmented(torch.from_numpy(np.array(image))[None], 64, rotate=30.0)[0].numpy()
    errors = []
    for angle in np.arange(-30, 30.1, 0.25):
        theirs = np.array(image.rotate(angle, Image.Resampling.BILINEAR), float)
        errors.append(np.abs(theirs - ours)[20:44, 20:44].mean())
    assert min(errors) < 1.0
    assert np.median(errors) > 5.0


@given(st.integers(2, 9), st.integers(0, 8), st.integers(1, 9))
def test_transform_of_a_share_equals_that_of_the_batch(count: int, start: int, length: int) -> None:
    config = AugmentConfig(shear=0.2, symmetries=8)
    images = noise(count, 10)
    transform = random_transform(torch.arange(count) % 8, config, torch.Generator().manual_seed(count))
    share = slice(start % count, start % count + length)
    assert torch.equal(
        apply_transform(images, transform, 8)[share], apply_transform(images[share], transform[share], 8)
    )
