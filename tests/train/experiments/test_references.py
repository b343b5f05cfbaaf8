"""References of a sweep without training, against scikit-learn and a brute-force search."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.decomposition import PCA
from torchvision.models import squeezenet1_1

from retrieval.metrics import linear_probe
from tests.conftest import draw_classes
from train import data, settings
from train.config import Config
from train.experiments import references
from train.experiments.references import find_references
from train.experiments.results_table import ResultsTable
from train.experiments.sweep_comparison import compare_variants
from train.loop.run_folder import initial_model
from train.models.embedding_model import EmbeddingModel

CHANGES = [
    "model={backbone: squeezenet1_1, trainable: 0, embedding_dim: 8}",
    "preprocess={size: 32, resize: 32, interpolation: bicubic}",
    "linear_probe=clean",
    "split={by: images, validation: 0.0}",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes, half of the images of each in the training and half in the test split."""
    folder = tmp_path_factory.mktemp("images")
    for split, first in (("train", 0), ("test", 50)):
        draw_classes(folder / split, 6, 4, first=first)
    return folder


@pytest.fixture(scope="module")
def config(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # other weights may put an image on the border of two classes
        save_file(squeezenet1_1().state_dict(), folder / "weights.safetensors")
    words = [*CHANGES, f"model.weights={folder / 'weights.safetensors'}", f"loader.cache={folder / 'cache'}"]
    return settings.resolve(f"folder:{images}", None, words)


def pooled(model: EmbeddingModel, config: Config, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return pooled features, image by image, and classes."""
    files = sorted(folder.glob("*/*.png"))
    pixels = [torch.tensor(config.preprocess(Image.open(file).convert("RGB"))) for file in files]
    with torch.inference_mode():
        found = torch.cat([model.eval().pooled(image[None]) for image in pixels])
    return found.double().numpy(), np.array([file.parent.name for file in files])


def recall_at_1(vectors: np.ndarray, classes: np.ndarray) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    return float(np.mean(classes[cosines.argmax(1)] == classes))


def probe_accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, classes: np.ndarray) -> float:
    ours, theirs = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test))
    return linear_probe(ours.astype(np.float32), labels, theirs.astype(np.float32), classes)


def test_references_equal_scikit_learn_and_are_computed_once(
    images: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variants share them, a third has another dimension, and a random backbone has none."""
    wide = config.model_copy(update={"model": config.model.model_copy(update={"embedding_dim": 12})})
    random = config.model_copy(update={"model": config.model.model_copy(update={"weights": None})})
    configs = {"a": config, "b": config.model_copy(update={"epochs": 2}), "wide": wide, "random": random}
    dataset = data.load(config.data)
    found = {one.name: one for one in find_references(tmp_path, configs, dataset)}
    assert list(found) == [
        "off-the-shelf",
        *(f"{kind} (embedding_dim {dim})" for kind in ("pca", "pca-whitened") for dim in (8, 12)),
    ]
    model = initial_model(config)
    (train, labels), (test, classes) = (pooled(model, config, images / split) for split in ("train", "test"))
    assert found["off-the-shelf"].values["recall_at_1"] == recall_at_1(test, classes)
    assert found["off-the-shelf"].values["linear_probe"] == probe_accuracy(train, labels, test, classes)
    for kind in ("pca", "pca-whitened"):
        for dim in (8, 12):
            fitted = PCA(dim, whiten=kind == "pca-whitened").fit(train)
            values = found[f"{kind} (embedding_dim {dim})"].values
            assert values["recall_at_1"] == recall_at_1(fitted.transform(test), classes)
            assert 0 < values["nmi"] <= 1

    monkeypatch.setattr(references, "evaluate_opened", None)  # nothing is computed again
    again = {one.name: one for one in find_references(tmp_path, configs, dataset)}
    assert again == found
    (kept, *_) = json.loads((tmp_path / "references.json").read_text())
    assert kept["settings"]["backbone"] == "squeezenet1_1"
    rows = compare_variants({"a": ()}, "a", [])
    lines = ResultsTable(rows, "a", "", list(again.values())).lines()
    assert lines[2].split()[:3] == ["off-the-shelf", "-", f"{100 * recall_at_1(test, classes):.1f}"]


def test_projection_that_cannot_be_fitted_is_left_out(config: Config, tmp_path: Path) -> None:
    """Whitening of more dimensions than training images, or no training images apart from the test images."""
    many = config.model_copy(update={"model": config.model.model_copy(update={"embedding_dim": 24})})
    dataset = data.load(config.data)
    names = [one.name for one in find_references(tmp_path, {"a": many}, dataset)]
    assert names == ["off-the-shelf", "pca"]
    one_split = dataclasses.replace(dataset, train=dataset.test)
    plain = config.model_copy(update={"linear_probe": None})
    assert [one.name for one in find_references(tmp_path, {"a": plain}, one_split)] == ["off-the-shelf"]
