"""Augmentation: crops located by search; torchvision image by image, Pillow and symmetries as references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from retrieval import Preprocess
from tests.conftest import draw as draw_image
from tests.train.pretend_device import Watch, pretend_device
from train.config import AugmentConfig
from train.input.augment import Draws, apply_draws, cut_and_draw, draw_transform

NOTHING = AugmentConfig(rotate=0, scale=0, shear=0, shift=0, flip=False)


def noise(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=torch.manual_seed(0))


def augmented(images: torch.Tensor, size: int, turn: int = 0, **config: object) -> torch.Tensor:
    turns, settings = torch.full((len(images),), turn), NOTHING.model_copy(update=config)
    return apply_draws(images, draw_transform(turns, settings, torch.Generator().manual_seed(1)), size)


# ---- one image


def cut(image: torch.Tensor, size: int, seed: int, **config: object) -> torch.Tensor:
    """Cut and colour an image [3, h, w] with a seed."""
    settings = NOTHING.model_copy(update=config)
    pixels = image.permute(1, 2, 0).numpy()
    squares, color = cut_and_draw([pixels], settings, Preprocess(size=size), [seed])
    return apply_draws(squares, Draws(None, None, color), size)[0].permute(2, 0, 1)


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


def photograph(number: int, height: int, width: int) -> torch.Tensor:
    """Return an image [3, h, w] with smooth areas, edges and some noise."""
    drawn = np.asarray(draw_image(number, (width, height), number % 5)).astype(int)
    noisy = drawn + np.random.default_rng(number).integers(-9, 10, drawn.shape)
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)


def reference(config: AugmentConfig, size: int, interpolation: str) -> v2.Transform:
    """Return crop and colours of one image, by torchvision."""
    steps: list[v2.Transform] = []
    if config.crop == "random":
        steps.append(v2.RandomCrop(size, padding=config.padding or None))
    elif config.crop == "resized":
        how = v2.InterpolationMode(interpolation)
        steps.append(v2.RandomResizedCrop(size, (config.min_area, 1.0), interpolation=how, antialias=True))
    return v2.Compose([*steps, v2.ColorJitter(config.color, config.color, config.color)])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"crop": "center", "color": 0.4}, id="center"),
        pytest.param({"crop": "random", "padding": 3}, id="random"),
        pytest.param({"crop": "random", "color": 0.2}, id="random-color"),
        pytest.param({"crop": "resized", "min_area": 0.1, "color": 0.1}, id="resized"),
    ],
)
def test_images_are_those_of_torchvision_with_the_same_seeds(
    config: dict[str, object], interpolation: str
) -> None:
    """Crops are equal; colours differ at 0.1% of the values: sums in another order are rounded otherwise."""
    settings = NOTHING.model_copy(update=config)
    preprocess = Preprocess(size=32, interpolation=interpolation)
    shapes = [(32, 32)] * 40 if settings.crop == "center" else [(32 + i % 9, 74 - i) for i in range(40)]
    images = [photograph(i, *shape) for i, shape in enumerate(shapes)]
    seeds = list(range(100, 140))
    pixels = (image.permute(1, 2, 0).numpy() for image in images)
    squares, color = cut_and_draw(pixels, settings, preprocess, seeds)
    ours = apply_draws(squares, Draws(None, None, color), 32).int()
    theirs = []
    for image, seed in zip(images, seeds, strict=True):
        torch.manual_seed(seed)
        theirs.append(reference(settings, 32, interpolation)(image).permute(1, 2, 0))
    difference = (ours - torch.stack(theirs).int()).abs()
    assert difference.max() <= (2 if settings.color else 0)  # one level, doubled by more contrast
    assert (difference > 0).float().mean() < 1e-3


def test_strip_gets_the_central_window_if_no_draw_fits() -> None:
    strip = photograph(0, 32, 200)
    theirs = v2.RandomResizedCrop(32, (1.0, 1.0), interpolation=v2.InterpolationMode.BICUBIC)
    assert torch.equal(cut(strip, 32, 0, crop="resized", min_area=1.0), theirs(strip))


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
    config = AugmentConfig(shear=0.2, symmetries=8, color=0.3)
    images = noise(count, 10)
    draws = draw_transform(torch.arange(count) % 8, config, torch.Generator().manual_seed(count))
    color = cut_and_draw(images.numpy(), config, Preprocess(size=10), range(count))[1]
    draws = draws._replace(color=color)
    share = slice(start % count, start % count + length)
    whole, part = apply_draws(images, draws, 8), apply_draws(images[share], draws.share(share), 8)
    assert torch.equal(whole[share], part)


@pytest.mark.parametrize("resamples", [True, False])
def test_nothing_is_read_from_the_device(resamples: bool) -> None:
    with pretend_device() as device:
        images = torch.zeros(3, 12, 12, 3, dtype=torch.uint8, device=device)
        if resamples:
            matrix, color = torch.zeros(3, 2, 3, device=device), torch.zeros(3, 3, 3, device=device)
            draws = Draws(None, matrix, color)
        else:
            draws = Draws(torch.zeros(3, dtype=torch.bool, device=device), None, None)
        with Watch() as watch:
            assert apply_draws(images, draws, 8).shape == (3, 8, 8, 3)
    assert watch.found == []
