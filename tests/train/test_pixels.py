"""Pictures decoded once, and their augmentation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from retrieval import Preprocess, load_image
from retrieval.progress import Progress
from tests.conftest import draw
from train.config import AugmentConfig
from train.pixels import Pixels, augment


def test_pixels_are_those_of_the_one_loader(shop: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no")
    paths = [*sorted(shop.rglob("*.png"))[:5], broken, *sorted(shop.rglob("*.png"))[5:9]]
    preprocess = Preprocess(size=20, resize=24)
    pixels = Pixels.read(paths, preprocess, tmp_path, Progress("reading", len(paths), show=False))
    assert pixels.positions.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [error.source for error in pixels.bad] == [str(broken)]
    whole = Preprocess(size=24)
    for image, position in zip(pixels.images, pixels.positions, strict=True):
        np.testing.assert_array_equal(image.numpy(), whole(load_image(paths[position])))
    assert list(tmp_path.iterdir()) == [broken], "nothing is left on the disk"


NOTHING = AugmentConfig(rotate=0, scale=0, shear=0, shift=0, flip=False)


def noise(count: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=torch.manual_seed(0))


def augmented(images: torch.Tensor, size: int, turn: int = 0, **config: object) -> torch.Tensor:
    turns, settings = torch.full((len(images),), turn), dataclasses.replace(NOTHING, **config)
    return augment(images, turns, size, settings, torch.Generator().manual_seed(1))


def test_nothing_random_is_a_central_crop() -> None:
    images = noise(3, 12)
    assert torch.equal(augmented(images, 12), images)
    assert torch.equal(augmented(images, 8), images[:, 2:10, 2:10])


def test_symmetries_are_the_eight_of_the_square() -> None:
    images = noise(4, 9)
    seen = [augmented(images, 9, turn) for turn in range(8)]
    plain = [torch.rot90(images, turns, (1, 2)) for turns in range(4)]
    for turn in range(4):
        assert any(torch.equal(seen[turn], other) for other in plain)
        assert any(torch.equal(seen[turn + 4], other.flip(2)) for other in plain)
    assert len({s.numpy().tobytes() for s in seen}) == 8


def test_flip_mirrors_about_half_of_them() -> None:
    images = noise(400, 4)
    flipped = augmented(images, 4, flip=True)
    mirrored = (flipped == images.flip(2)).all((1, 2, 3))
    assert ((flipped == images).all((1, 2, 3)) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250


def test_shift_moves_by_at_most_its_share() -> None:
    image = torch.zeros(500, 40, 40, 3, dtype=torch.uint8)
    image[:, 18:22, 18:22] = 255
    moved = augmented(image, 40, shift=0.25)[..., 0].double()
    places = torch.arange(40) - 19.5
    for axis in (1, 2):
        centre = (moved.sum(3 - axis) * places).sum(1) / moved.sum((1, 2))
        assert centre.abs().max() <= 10.01
        assert centre.max() > 9
        assert centre.min() < -9


def test_rotation_and_scale_by_pillow() -> None:
    """The same map as Pillow's, up to its rounding."""
    picture = draw(0, (64, 64), 1).resize((64, 64), Image.Resampling.BICUBIC)
    image = torch.from_numpy(np.array(picture))[None]
    turns, generator = torch.tensor([0]), torch.Generator().manual_seed(5)
    ours = augment(image, turns, 64, dataclasses.replace(NOTHING, rotate=30.0), generator)[0].float()
    angle = 30 * (2 * torch.rand(1, generator=torch.Generator().manual_seed(5)).item() - 1)
    errors = []
    for sign in (-1, 1):
        theirs = np.array(picture.rotate(sign * angle, Image.Resampling.BILINEAR), float)
        errors.append(np.abs(theirs - ours.numpy())[20:44, 20:44].mean())
    assert min(errors) < 1.0
    assert max(errors) > 5.0
