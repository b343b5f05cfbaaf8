"""The off-the-shelf backbone as the default baseline of a run, against torchvision's features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

from retrieval import InputError
from retrieval.evaluation.report import OFF_THE_SHELF, Report
from retrieval.images.preprocess import Preprocess
from tests.conftest import draw_classes, lookalike_here
from train import data, settings
from train.experiments.evaluation import evaluate_target
from train.experiments.targets import BEFORE
from train.loop.refit import train_run
from train.loop.run_folder import Run

PLAIN = ["epochs=0", "split.validation=0", "model.backbone=squeezenet1_1", "model.embedding_dim=4"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("images"), 4, 4)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    torch.manual_seed(0)
    save_file(squeezenet1_1().state_dict(), file)
    return file


def run_with(folder: Path, images: Path, *more: str) -> Path:
    config = settings.resolve(f"folder:{images}", None, [*PLAIN, *more])
    train_run(Run.start(folder, config), data.load(config.data))
    return folder


def recall_of_torchvision(images: Path, weights: Path, preprocess: Preprocess) -> float:
    """Recall@1 of mean-pooled features by torchvision's network and its constants, in loops."""
    from safetensors.torch import load_file

    network = squeezenet1_1()
    network.load_state_dict(load_file(weights))
    files = sorted(images.glob("*/*.png"))
    squares = np.stack([preprocess(Image.open(file).convert("RGB")) for file in files])
    published = SqueezeNet1_1_Weights.DEFAULT.transforms()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (published.mean, published.std))
    with torch.inference_mode():
        pixels = torch.from_numpy(squares).permute(0, 3, 1, 2) / 255
        found = network.eval().features((pixels - mean) / std).mean((2, 3)).double().numpy()
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    right = 0
    for query in range(len(files)):
        cosines = found @ found[query]
        cosines[query] = -2
        right += files[int(cosines.argmax())].parent == files[query].parent
    return right / len(files)


@pytest.mark.parametrize("size", [48, 224])
def test_backbone_has_its_own_preprocessing(tmp_path: Path, images: Path, weights: Path, size: int) -> None:
    """Also if the run has another; the note says which."""
    folder = run_with(tmp_path / "run", images, f"model.weights={weights}", f"preprocess.size={size}")
    report = evaluate_target(folder, data.load(f"folder:{images}"), ["untrained"], with_backbone=True)
    names = [result.name for result in report.results]
    assert names == [OFF_THE_SHELF, BEFORE, "after training"]
    own = Preprocess(size=224, resize=256, interpolation="bilinear")
    assert report.results[0].values["recall_at_1"] == recall_of_torchvision(images, weights, own)
    (note,) = (note for note in report.notes if "off-the-shelf" in note)
    assert "squeezenet1_1 without a head, 512 dimensions" in note
    assert ("its own preprocessing: preprocess.size 224, not 48" in note) == (size == 48)
    assert ("with the preprocessing of the run" in note) == (size == 224)


def test_command_measures_the_backbone_unless_left_out(tmp_path: Path, images: Path, weights: Path) -> None:
    more = [f"model.weights={weights}", "preprocess.size=32", "model.trainable=0"]
    folder = run_with(tmp_path / "run", images, *more, f"loader.cache={tmp_path / 'cache'}")
    words = ["evaluate", str(folder), "--data", f"folder:{images}", "--json"]
    shown = json.loads(lookalike_here(*words, "--out", str(tmp_path / "out")).stdout)
    assert [result["name"] for result in shown["results"]] == [OFF_THE_SHELF, "after training"]
    assert OFF_THE_SHELF in (tmp_path / "out" / "report.html").read_text()
    assert Report.load(tmp_path / "out").results[0].name == OFF_THE_SHELF
    without = json.loads(lookalike_here(*words, "--baseline", "none").stdout)
    assert [result["name"] for result in without["results"]] == ["after training"]
    assert not any("off-the-shelf" in note for note in without["notes"])


def test_backbone_is_left_out_with_a_reason(tmp_path: Path, images: Path, weights: Path) -> None:
    """If it began with random weights, or its weights are gone; if it is asked for, that is an error."""
    random = run_with(tmp_path / "random", images, "preprocess.size=32")
    dataset = data.load(f"folder:{images}")
    report = evaluate_target(random, dataset, with_backbone=True)
    assert [result.name for result in report.results] == ["after training"]
    assert any("Without the off-the-shelf backbone" in n and "random weights" in n for n in report.notes)
    with pytest.raises(InputError, match="the backbone began with random weights"):
        evaluate_target(random, dataset, ["backbone"])
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(weights.read_bytes())
    folder = run_with(tmp_path / "run", images, f"model.weights={moved}", "preprocess.size=32")
    moved.unlink()
    report = evaluate_target(folder, dataset, with_backbone=True)
    assert any("Without the off-the-shelf backbone" in note and str(moved) in note for note in report.notes)
