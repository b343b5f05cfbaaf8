"""Learning rate range test: known curves, and steps compared with a plain training loop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from retrieval.errors import InputError
from tests.conftest import lookalike_here
from train import data as data_sets
from train import losses, settings
from train.config import Config, OptimizerConfig
from train.loop.process_group import ProcessGroup
from train.loop.run_folder import initial_model
from train.loop.training_data import TrainingData
from train.losses import Objective
from train.papers.rate_range import RateRange, find_fall, has_diverged, measure_rates

SETTINGS = {
    "data": "digits",
    "split": {"validation": 0.0},
    "preprocess": {"size": 16},
    "model": {"backbone": "conv4", "embedding_dim": 8},
    "loss": {"name": "sct"},
    "batch": {"classes": 5, "per_class": 4, "per_epoch": 7},
    "optimizer": {"name": "sgd", "lr": 0.05, "head_lr": 0.2, "momentum": 0.5},
    "device": "cpu",
    "seed": 3,
}
RATES = np.geomspace(1e-6, 1, 100)


def configuration(**changes: Any) -> Config:
    return settings.parse_config(SETTINGS | changes)


def curve(center: float, noise: float, seed: int = 0) -> np.ndarray:
    """Losses that fall from 3 to 1, fastest at the rate `center`, and explode above 30 times of it."""
    gaps = np.log(RATES / center)
    values = 3 - 2 / (1 + np.exp(-2 * gaps)) + np.exp(np.minimum(5 * (gaps - math.log(30)), 20))
    return values + noise * np.random.default_rng(seed).standard_normal(len(RATES))


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("center", [1e-4, 1e-3, 1e-2])
def test_steepest_fall_of_known_curves_is_found(center: float, noise: float) -> None:
    ratios = []
    for seed in range(10):
        values = curve(center, noise, seed)
        end = next((n for n in range(1, len(values)) if has_diverged(values[:n])), len(values))
        fall = find_fall(values[:end])
        assert fall is not None
        ratios.append(math.log(RATES[fall.steepest] / center))
        moved = find_fall(10 * values[:end] - 100)  # neither zero nor the unit of the loss matters
        assert moved is not None
        assert moved.steepest == fall.steepest
    assert abs(np.median(ratios)) < math.log(1.5)  # no lag
    spread = math.sqrt(np.square(ratios).mean())
    assert spread < math.log({0.0: 1.15, 0.1: 1.3, 0.4: 3.0}[noise])


def test_lowest_loss_of_a_noisy_plateau_does_not_count() -> None:
    """Bounded losses stay low after the fall; here the plateau goes up, and falls again at the end."""
    plateau = np.interp(np.log10(RATES), [-6, -5, -4, -3, -1, 0], [3, 3, 2, 2.1, 2.3, 2])
    for seed in range(50):
        fall = find_fall(plateau + 0.15 * np.random.default_rng(seed).standard_normal(len(RATES)))
        assert fall is not None
        assert 1e-6 < RATES[fall.steepest] < 2e-4


@pytest.mark.parametrize("trend", [0.0, 2.0], ids=["flat", "rising"])
def test_losses_that_do_not_fall_give_no_suggestion(trend: float) -> None:
    random = np.random.default_rng(5)
    curves = 1 + random.standard_normal((300, 100)) + trend * np.linspace(0, 1, 100)
    assert sum(find_fall(values) is not None for values in curves) <= 6
    assert find_fall(np.ones(100)) is None


def test_divergence() -> None:
    random = np.random.default_rng(6)
    flat = 2 + 0.3 * random.standard_normal((30, 100))
    assert sum(has_diverged(values[:n]) for values in flat for n in range(1, 101)) <= 1
    assert has_diverged([1.0, math.nan])
    assert has_diverged([*[3.0 - 0.1 * n for n in range(20)], *[9.0] * 5])
    assert not has_diverged([*[3.0 - 0.1 * n for n in range(20)], *[3.0] * 5])


def test_steps_are_those_of_a_plain_loop_with_growing_rates(tmp_path: Path) -> None:
    """Over several epochs; what counts in whole epochs or after training changes nothing."""
    disturbing = {
        "schedule": {"name": "cosine", "warmup": 2.0},
        "epochs": 1,
        "ema": 0.9,
        "watch": {"split": "test", "every": 1},
        "checkpoints": {"at": [0, 3]},
        "optimizer": SETTINGS["optimizer"] | {"clip": 0.5},  # type: ignore[operator]
    }
    config = configuration(**disturbing)
    dataset = data_sets.load("digits")
    found = measure_rates(config, dataset, low=1e-3, high=0.1, steps=30)
    assert found.rates == pytest.approx([1e-3 * 100 ** (n / 29) for n in range(30)])

    loader = TrainingData(dataset, config, ProcessGroup(torch.device("cpu")), tmp_path).loader()
    sampler = TrainingData(dataset, config, ProcessGroup(torch.device("cpu")), tmp_path).sampler
    model, loss = initial_model(config).train(), losses.build({"name": "sct"})
    head = {id(weight) for weight in model.head_parameters()}
    groups = [[], []]  # type: list[list[torch.nn.Parameter]]
    for weight in model.parameters():
        groups[id(weight) in head].append(weight)
    optimizer = torch.optim.SGD([{"params": g} for g in groups], lr=1, momentum=0.5, weight_decay=1e-4)
    expected = []
    for loaded, rate in zip(loader.load(sampler.epoch, range(5)), found.rates, strict=False):
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate, 4 * rate
        value = loss(model(loaded.inputs), loaded.labels)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.5)
        optimizer.step()
        expected.append(value.item())
    assert found.losses == pytest.approx(expected, rel=1e-4)


def test_distillation_has_the_vectors_of_its_teacher(model_file: Path, tmp_path: Path) -> None:
    taught = {"distill": {"teacher": str(model_file)}, "loader": {"cache": str(tmp_path)}, "loss": {}}
    config = configuration(**taught)
    found = measure_rates(config, data_sets.load("digits"), steps=30)
    assert 0 < found.losses[0] < 2, "1 - a correlation"


def test_overflow_ends_the_test_and_confused_classes_meet() -> None:
    batch = SETTINGS["batch"] | {"hard_classes": 0.5}  # type: ignore[operator]
    optimizer = SETTINGS["optimizer"] | {"head_lr": None}  # type: ignore[operator]
    loss = {"name": "proxy-anchor"}
    config = configuration(batch=batch, optimizer=optimizer, loss=loss)
    found = measure_rates(config, data_sets.load("digits"), low=1e-3, high=1e30, steps=60)
    assert found.diverged
    assert 1 < len(found.losses) < 60
    assert np.isfinite(found.losses).all()


def test_unusable_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = data_sets.load("digits")
    for words, message in (
        ({"low": 1.0, "high": 0.1}, "1 to 0.1 is no range; expected 0 < low < high"),
        ({"low": 0.0}, "expected 0 < low < high"),
        ({"steps": 29}, "29 steps are too few for a curve; take 30 or more"),
    ):
        with pytest.raises(InputError, match=message):
            measure_rates(configuration(), dataset, **words)  # type: ignore[arg-type]

    def refuse(self: Objective, embeddings: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("no pairs")

    monkeypatch.setattr(Objective, "forward", refuse)
    with pytest.raises(InputError, match="the loss cannot be computed; no pairs"):
        measure_rates(configuration(), dataset)


def test_suggestion_keeps_the_ratios_of_the_rates() -> None:
    reference = OptimizerConfig(lr=1e-4, head_lr=1e-3, loss_lr=0.1)
    values = curve(1e-3, 0.0).tolist()[:70]
    found = RateRange(reference, RATES[:70].tolist(), values, find_fall(values), diverged=False)
    assert found.suggested == pytest.approx(1e-3, rel=0.1)
    factor = found.suggested / 1e-4
    assert found.settings() == pytest.approx(
        {
            "optimizer.lr": found.suggested,
            "optimizer.head_lr": 1e-3 * factor,
            "optimizer.loss_lr": 0.1 * factor,
        }
    )
    nothing = RateRange(reference, RATES[:70].tolist(), [1.0] * 70, None, diverged=False)
    assert nothing.suggested is None
    assert nothing.settings() == {}
    assert "no suggestion" in str(nothing)


def test_command(tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "rates.svg"
    recipe.write_text(configuration(patience=3).to_yaml())  # without effect, so no images need be held out
    words = ("analyze", "rates", "--recipe", str(recipe), "--low", "1e-4", "--steps", "40", "--out", str(out))
    done = lookalike_here(*words, "--json", "--png")
    facts = json.loads(done.stdout)
    assert facts["settings"]["optimizer.lr"] == facts["suggested"]
    assert 1e-4 < facts["suggested"] < 1
    assert facts["loss_lowest"] < facts["loss_before"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert f"{facts['suggested']:g}" in out.read_text()
    refused = lookalike_here(*words, "--high", "1e-5", code=2)
    assert "expected 0 < low < high" in refused.stderr


def test_images_need_no_labels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 3), np.uint8)
    for number, one in enumerate(pixels):
        Image.fromarray(one).resize((32, 32), Image.Resampling.NEAREST).save(tmp_path / f"{number}.png")
    words = [
        "--recipe=instances",
        "--set=model.backbone=conv4",
        "--set=model.weights=null",
        "--set=model.init=default",
        "--set=preprocess.size=16",
        "--set=batch.classes=8",
        "--steps=30",
    ]
    out = tmp_path / "rates.svg"
    done = lookalike_here(
        "analyze", "rates", "--data", f"images:{tmp_path}", *words, "--json", f"--out={out}"
    )
    facts = json.loads(done.stdout)
    assert out.exists()
    assert len(facts["losses"]) == 30
    assert np.isfinite(facts["losses"]).all()
