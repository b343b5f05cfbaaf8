"""The network: pooling, maps and weights from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from retrieval import InputError, Preprocess
from train.config import ModelConfig
from train.model import EmbeddingModel


@pytest.mark.parametrize("backbone", ["conv4", "resnet18"])
@pytest.mark.parametrize("size", [32, 50])
@pytest.mark.parametrize("pooling", ["mean", "spatial"])
def test_mean_of_the_map_is_the_embedding(backbone: str, size: int, pooling: str) -> None:
    model = EmbeddingModel(ModelConfig(backbone, 12, pooling), Preprocess(size=size)).eval()
    images = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8)
    with torch.inference_mode():
        raw, maps = model(images), model.maps(images)
    assert raw.shape == (3, 12)
    assert maps.shape[0] == 3
    assert maps.shape[3] == 12
    torch.testing.assert_close(maps.mean((1, 2)), raw, rtol=1e-4, atol=1e-5)


def test_pixels_are_normalised_inside() -> None:
    """A picture of the mean colour is all zeros to the backbone."""
    preprocess = Preprocess(size=8, mean=(51 / 255, 102 / 255, 153 / 255))
    model = EmbeddingModel(ModelConfig(embedding_dim=4), preprocess).eval()
    image = torch.tensor([51, 102, 153], dtype=torch.uint8).expand(1, 8, 8, 3)
    zeros = model.backbone(torch.zeros(1, 3, 8, 8))
    torch.testing.assert_close(model.features(image), zeros, atol=1e-6, rtol=0)


def test_weights_of_torchvision_from_a_file(tmp_path: Path) -> None:
    theirs = torchvision.models.resnet18(weights=None).eval()
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    config = ModelConfig("resnet18", 4, weights=str(tmp_path / "w.safetensors"))
    model = EmbeddingModel(config, Preprocess(size=64, mean=(0, 0, 0), std=(1, 1, 1))).eval()
    images = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    theirs.fc = torch.nn.Identity()
    expected = theirs(images.permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(model.features(images).mean((2, 3)), expected, rtol=1e-4, atol=1e-5)


def test_unusable_weights_say_why(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    for name, message in (
        ("other", "another network"),
        ("broken", "not a readable"),
        ("none", "not a readable"),
    ):
        with pytest.raises(InputError, match=message):
            EmbeddingModel(
                ModelConfig("resnet18", 4, weights=str(tmp_path / f"{name}.safetensors")), Preprocess()
            )
    with pytest.raises(InputError, match="no published weights"):
        EmbeddingModel(ModelConfig("conv4", 4, weights="imagenet"), Preprocess())
    with pytest.raises(InputError, match="did you mean 'resnet18'"):
        EmbeddingModel(ModelConfig("resnet8", 4), Preprocess())
