"""Blend of the start and the end of a run (WiSE-FT)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import export.model_file
from export.blend import blend_with_start
from export.model_file import export_run
from retrieval import InputError
from tests.conftest import draw_classes
from train import data, settings
from train.loop.run_folder import Run
from train.loop.trainer import Trainer


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "start.safetensors"
    save_file(timm.create_model("test_efficientnet").state_dict(), file)
    return file


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("images"), 8, 4)


def trained(folder: Path, images: Path, *words: str) -> Run:
    common = ["model={backbone: 'timm:test_efficientnet', embedding_dim: 8}", "preprocess.size=32"]
    common += ["epochs=1", "batch={classes: 4, per_class: 2}", "split.validation=0.4", "optimizer.lr=0.02"]
    run = Run.start(folder, settings.resolve(f"folder:{images}", None, [*common, *words]))
    Trainer(run, data.load(run.config.data)).train()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, weights: Path, images: Path) -> Run:
    return trained(tmp_path_factory.mktemp("run") / "run", images, f"model.weights={weights}")


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_weights_and_statistics_are_between_start_and_end(run: Run, weights: Path, alpha: float) -> None:
    end, model = run.trained(), run.trained()
    found = blend_with_start(run, model, alpha)
    assert (found.alpha, found.checked, found.scores) == (alpha, True, {})
    before, after = load_file(weights), end.state_dict()
    moved = 0.0
    for name, value in model.state_dict().items():
        if not name.startswith("backbone."):
            assert torch.equal(value, after[name]), "the head is that of the run"
        elif value.is_floating_point():
            start = before[name.removeprefix("backbone.network.")]
            torch.testing.assert_close(value, (1 - alpha) * start + alpha * after[name])
            moved = max(moved, float((after[name] - start).abs().max()))
    assert moved > 0.01, "the run has changed the backbone"


def test_share_is_chosen_on_the_held_out_classes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model file gets the network of the best share, and the curve in its provenance."""
    exported: dict[str, Any] = {}

    def keep(model: Any, preprocess: Any, out: Any, provenance: Any, *others: Any, **more: Any) -> Any:
        exported.update(model=model, provenance=provenance)
        return export.model_file.Exported("fp32", export.model_file.Proof("", 0, 1))

    monkeypatch.setattr(export.model_file, "export_model", keep)
    result = export_run(run, Path("model.onnx"), blend="auto")
    curve = exported["provenance"]["blend"]["curve"]
    assert [point["alpha"] for point in curve] == [step / 10 for step in range(11)]
    best = max(curve, key=lambda point: (point["map_at_r"], point["alpha"]))
    assert result.blend is not None
    assert result.blend.alpha == best["alpha"]
    last = [record for record in run.metrics() if "map_at_r" in record and record["epoch"] == 1]
    assert curve[-1]["map_at_r"] == pytest.approx(last[0]["map_at_r"]), "the end of the run itself"
    assert f"blended with alpha {best['alpha']:g}" in result.blend.to_text()
    other = run.trained()
    blend_with_start(run, other, best["alpha"])
    for ours, theirs in zip(exported["model"].parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_other_weights_than_those_of_the_start_are_refused(run: Run, weights: Path) -> None:
    kept = weights.read_bytes()
    changed = load_file(weights)
    changed["conv_stem.weight"] = changed["conv_stem.weight"] + 1e-6
    save_file(changed, weights)
    try:
        with pytest.raises(InputError, match=r"are not the weights that .* began with"):
            blend_with_start(run, run.trained(), 0.5)
    finally:
        weights.write_bytes(kept)


def test_runs_without_a_start_or_held_out_images_are_refused(
    tmp_path: Path, images: Path, weights: Path
) -> None:
    random = trained(tmp_path / "random", images, "epochs=0")
    with pytest.raises(InputError, match="began with random weights"):
        blend_with_start(random, random.trained(), 0.5)
    frozen = trained(
        tmp_path / "frozen",
        images,
        f"model.weights={weights}",
        "model.trainable=0",
        "epochs=0",
        f"loader.cache={tmp_path / 'cache'}",
    )
    with pytest.raises(InputError, match=r"only the head of .* learned"):
        blend_with_start(frozen, frozen.trained(), 0.5)
    whole = trained(tmp_path / "whole", images, f"model.weights={weights}", "split.validation=0")
    with pytest.raises(InputError, match="no held-out images to choose on"):
        blend_with_start(whole, whole.trained(), None)
    with pytest.raises(InputError, match="still the pretrained one"):
        blend_with_start(whole, whole.untrained(), None)
