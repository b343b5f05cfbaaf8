"""Published preprocessing equals the libraries' own transforms: their steps for all names, their pixels."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torchvision
from PIL import Image
from sklearn.datasets import load_sample_image
from timm.data import create_transform, resolve_model_data_config
from timm.data.transforms import CenterCropOrPad, ResizeKeepRatio
from torchvision import transforms

from export.pretrained import PretrainedBackbone
from retrieval import InputError, Preprocess
from train import settings
from train.pretrained_configs import Traits, published_preprocess, traits

TIMM = timm.list_models(pretrained=True)
_LARGEST = 300  # pixels


def timm_steps(name: str) -> list[Any]:
    """The steps of timm's own transform of a name."""
    model = type("Model", (), {"pretrained_cfg": timm.get_pretrained_cfg(name).to_dict()})()
    return create_transform(**resolve_model_data_config(model)).transforms


def stated(steps: list[Any]) -> tuple[Any, ...]:
    """Scale, crop, interpolation, mean and standard deviation of timm's steps."""
    scale, crop, _, normalize = steps
    if isinstance(scale, ResizeKeepRatio):
        fit, interpolation = "pad", scale.interpolation
        assert (scale.longest, list(crop.fill)) == (
            1,
            [round(255 * value) for value in normalize.mean.tolist()],
        )
    else:
        fit, interpolation = "crop" if isinstance(scale.size, int) else "squeeze", scale.interpolation
    (resize,) = {scale.size} if fit == "crop" else set(scale.size)
    (size,) = set(crop.size)
    mean, std = normalize.mean.tolist(), normalize.std.tolist()
    return size, resize, fit, interpolation.value, *(tuple(np.round(v, 6)) for v in (mean, std))


def test_every_name_of_timm_has_the_steps_of_its_transform() -> None:
    unlike = 0
    for name in TIMM:
        theirs = timm.get_pretrained_cfg(name)
        if len(set(theirs.input_size[1:])) > 1:
            with pytest.raises(InputError, match=r"takes images of 3 x \d+ x \d+, which is not supported"):
                published_preprocess(f"timm:{name}", "imagenet")
            continue
        ours = published_preprocess(f"timm:{name}", "imagenet")
        assert ours is not None
        size, resize, *rest = stated(timm_steps(name))
        found = [tuple(np.round(v, 6)) for v in (ours.mean, ours.std)]
        assert [ours.fit, ours.interpolation, *found] == rest, name
        assert (ours.size, ours.scaled) == (size, max(resize, size)), name  # a smaller one gets black borders
        unlike += ours.mean != Preprocess.mean
    assert len(TIMM) > 1500
    assert unlike > 500, "ImageNet's mean is not that of all weights"


def torchvision_cases() -> dict[str, tuple[str, str]]:
    """Every transform of torchvision, with one name that has it."""
    found = {}
    for name in torchvision.models.list_models(module=torchvision.models):
        for weights in torchvision.models.get_model_weights(name):
            if weights.transforms().crop_size[0] <= _LARGEST:
                found.setdefault(repr(weights.transforms()), (name, weights.name))
    return found


def pixels(transform: Callable[[Image.Image], Any], image: Image.Image, ours: Preprocess) -> np.ndarray:
    """The output of a library's transform in grey levels."""
    mean, std = (np.array(v)[:, None, None] for v in (ours.mean, ours.std))
    planes = np.asarray(transform(image), np.float64) * std + mean
    return np.moveaxis(255 * planes, 0, 2)


def blocks(image: np.ndarray) -> np.ndarray:
    """Means of blocks of 16 x 16 pixels, which a shift of half a pixel hardly changes."""
    height, width = (side // 16 for side in image.shape[:2])
    return image[: 16 * height, : 16 * width].reshape(height, 16, width, 16, 3).mean((1, 3))


def assert_same_pixels(ours: Preprocess, transform: Callable[[Image.Image], Any]) -> None:
    """The same grey levels, where the libraries do not round the crop and the longer side to whole pixels.

    Those of Pillow's scaling are equal to one level; those of today's scaling are near.
    """
    square = Image.fromarray(load_sample_image("china.jpg")).crop((100, 0, 527, 427))
    narrow = Image.fromarray(load_sample_image("flower.jpg")).crop((0, 0, 300, 427))
    for image in (square, narrow):
        mine, theirs = ours(image).astype(float), pixels(transform, image, ours)
        if image is square and (ours.scaled - ours.size) % 2 == 0:
            assert np.abs(ours.of_policy(2)(image) - theirs).max() < 1.01
            assert np.abs(mine - theirs).mean() < 0.2
            assert (np.abs(mine - theirs) > 2.01).mean() < 0.0005
        assert np.abs(blocks(mine) - blocks(theirs)).mean() < 1.5


def test_pixels_are_those_of_torchvision() -> None:
    cases = torchvision_cases()
    assert len(cases) > 15
    for name, weights in cases.values():
        ours = published_preprocess(name, weights)
        assert ours is not None
        theirs = torchvision.models.get_model_weights(name)[weights].transforms()
        assert_same_pixels(ours, theirs)


def test_pixels_are_those_of_timm() -> None:
    """One name for each way to scale and crop, chosen by a hash."""
    cases: dict[tuple[Any, ...], str] = {}
    for name in sorted(TIMM, key=lambda name: zlib.crc32(name.encode())):
        found = timm.get_pretrained_cfg(name)
        if max(found.input_size) <= _LARGEST:
            cases.setdefault((found.input_size, found.crop_pct, found.crop_mode, found.interpolation), name)
    assert {mode for _, _, mode, _ in cases} == {"center", "squash"}
    for name in list(cases.values())[:18]:
        ours = published_preprocess(f"timm:{name}", "imagenet")
        assert ours is not None
        assert_same_pixels(ours, transforms.Compose(timm_steps(name)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_base_patch16_siglip_224.webli", (224, 248, "crop", "bicubic", 0.5)),
        ("vit_base_patch16_siglip_256.v2_webli", (256, 284, "crop", "bicubic", 0.5)),
        ("naflexvit_base_patch16_siglip.v2_webli", (384, 384, "crop", "bicubic", 0.5)),
        ("vit_base_patch16_clip_224.openai", (224, 248, "crop", "bicubic", 0.48145466)),
        ("vit_huge_patch14_clip_378.metaclip2_worldwide", (378, 378, "squeeze", "bicubic", 0.48145466)),
        ("vit_pe_core_tiny_patch16_384.fb", (384, 384, "crop", "bicubic", 0.5)),
        ("vit_small_patch14_reg4_dinov2.lvd142m", (518, 518, "crop", "bicubic", 0.485)),
        ("vit_small_patch16_dinov3.lvd1689m", (256, 256, "crop", "bicubic", 0.485)),
        ("fastvit_mci0.apple_mclip2_dfndr2b", (256, 256, "crop", "bicubic", 0.0)),
        ("vit_base_patch16_radio_v3.c_radio", (512, 512, "crop", "bicubic", 0.48145466)),
    ],
)
def test_published_embeddings_have_the_pixels_of_timm(name: str, expected: tuple[Any, ...]) -> None:
    ours = published_preprocess(f"timm:{name}", "imagenet")
    assert ours is not None
    assert (ours.size, ours.scaled, ours.fit, ours.interpolation, ours.mean[0]) == expected
    assert_same_pixels(ours, transforms.Compose(timm_steps(name)))


@pytest.mark.parametrize("resize", [64, 80])
def test_padding_is_that_of_timm(resize: int) -> None:
    image = Image.fromarray(load_sample_image("flower.jpg")).crop((0, 0, 300, 427))
    ours = Preprocess(size=64, resize=resize, fit="pad", mean=(0.1, 0.5, 0.9))
    fill = [round(255 * value) for value in ours.mean]
    theirs = [ResizeKeepRatio(resize, longest=1.0, interpolation="bicubic"), CenterCropOrPad(64, fill=fill)]
    expected = np.asarray(transforms.Compose(theirs)(image))
    np.testing.assert_array_equal(ours.of_policy(2)(image), expected)
    near = np.abs(ours(image).astype(int) - expected)
    assert near.mean() < 0.3
    assert near.max() <= 8


@pytest.mark.parametrize(
    ("library", "name", "weights"),
    [
        ("timm", "vit_base_patch16_siglip_224", "imagenet"),
        ("timm", "resnet50.a1_in1k", "imagenet"),
        ("timm", "vit_base_patch16_clip_224:depth=2", "weights.safetensors"),
        ("torchvision", "resnet50", "imagenet1k_v1"),
        ("torchvision", "resnet50", "weights.safetensors"),
    ],
)
@pytest.mark.parametrize("size", [None, 160])
def test_training_and_export_have_the_same_preprocessing(
    library: str, name: str, weights: str, size: int | None
) -> None:
    words = [f"model.backbone={'timm:' if library == 'timm' else ''}{name}", f"model.weights={weights}"]
    words += [f"preprocess.size={size}"] if size else []
    trained = settings.resolve("folder:x", None, words).preprocess
    assert trained == PretrainedBackbone(library, name, weights, size).preprocess()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm:vit_small_patch14_reg4_dinov2.lvd142m", Traits(True, False)),
        ("timm:vit_base_patch16_clip_224:depth=2", Traits(True, False)),
        (
            "timm:beit_base_patch16_224",
            Traits(False, False),
        ),  # a class token, but the classifier takes the mean
        ("timm:vit_base_patch16_siglip_224", Traits(False, False)),
        ("timm:swin_tiny_patch4_window7_224", Traits(False, False)),
        ("timm:convnext_tiny", Traits(False, False)),
        ("timm:xcit_nano_12_p8_224", Traits(True, False)),  # batch norm beside layer norm
        ("timm:mobilenetv2_100:pad_type=same", Traits(False, True)),
        ("timm:resnet50", Traits(False, True)),
        ("vit_b_16", Traits(True, False)),
        ("swin_t", Traits(False, False)),
        ("resnet50", Traits(False, True)),
        ("googlenet", Traits(False, True)),
        ("regnet_y_400mf", Traits(False, True)),  # cannot be built on the device meta
        ("squeezenet1_0", Traits(False, False)),
        ("bn-inception", Traits(False, True)),
        ("timm:no-such-model", Traits(False, False)),
    ],
)
def test_traits_of_architectures(name: str, expected: Traits) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert traits(name) == expected
