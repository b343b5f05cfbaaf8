"""Refit on all images for the number of epochs that a first run chose on held-out images."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from export.model_file import export_run
from retrieval import Embedder, InputError
from tests.train.loop.test_trainer import SMALL, assert_same_run, many, trainer
from train import data, settings
from train.config import Config
from train.experiments.evaluation import evaluate_target
from train.loop.interruption import Interrupted
from train.loop.refit import train_run
from train.loop.run_folder import Run
from train.loop.step import Step

__all__ = ["many"]

# With a high rate the choice is not the last epoch.
CHOSEN = [
    "epochs=4",
    "split.validation=0.25",
    "split.choice=always",
    "batch.per_epoch=3",
    "optimizer.lr=0.05",
    "loss={name: triplet, negatives: optimal, margin: 0.2}",
]


def config(many: Path, *more: str) -> Config:
    return settings.resolve(f"folder:{many}", None, [*SMALL, *CHOSEN, "split.refit=true", *more])


def fit(folder: Path, many: Path, *, resume: bool = False) -> Mapping[str, Any]:
    wanted = config(many)
    run = Run.open(folder) if resume else Run.start(folder, wanted)
    return train_run(run, data.load(wanted.data), resume=resume)[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, many: Path) -> tuple[Path, Mapping[str, Any]]:
    """A run that was not interrupted, and its facts."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, fit(folder, many)


def test_refit_is_a_run_on_all_images_that_ends_with_the_chosen_epoch(
    tmp_path: Path, many: Path, whole: tuple[Path, Mapping[str, Any]]
) -> None:
    """The first run is a usual one; the second network is that of a run without held-out images, so far."""
    folder, facts = whole
    trainer(tmp_path / "held-out", f"folder:{many}", *CHOSEN).train()
    assert_same_run(folder / "choice", tmp_path / "held-out")
    best = Run.open(tmp_path / "held-out").checkpoint_state("best")
    assert facts["epochs"] == facts["chosen"]["epoch"] == best["epoch"]
    assert 0 < best["epoch"] < 4, "otherwise this shows nothing"
    assert (facts["training_images"], facts["validation_images"]) == (72, 0)
    step = 3 * best["epoch"]
    trainer(
        tmp_path / "all", f"folder:{many}", *CHOSEN, "split.validation=0", f"checkpoints.at=[{step}]"
    ).train()
    expected = Run.open(tmp_path / "all").trained(str(step)).state_dict()
    for which in ("best", "last"):
        found = Run.open(folder).trained(which).state_dict()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())

    dataset = data.load(f"folder:{many}")
    names = [result.name for result in evaluate_target(folder, dataset).results]
    assert names == ["after training"]
    export_run(Run.open(folder), tmp_path / "model.onnx")
    assert Embedder(tmp_path / "model.onnx").provenance["config"]["split"]["refit"]


@pytest.mark.parametrize("after", [4, 15], ids=["while choosing", "while training on all images"])
def test_interrupted_refit_is_resumed(
    tmp_path: Path,
    many: Path,
    whole: tuple[Path, Mapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    """The first run has 12 steps."""
    steps, take = 0, Step.__call__

    def counted(self: Step, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == after:
            signal.raise_signal(signal.SIGINT)
        return take(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Step, "__call__", counted)
        with pytest.raises(Interrupted, match=f"{tmp_path / 'parts'}: interrupted .*--resume"):
            fit(tmp_path / "parts", many)
    assert Run(tmp_path / "parts").has_checkpoint("last") == (after > 12)
    with pytest.raises(InputError, match="holds a run already; --resume continues it"):
        Run.start(tmp_path / "parts", config(many))
    fit(tmp_path / "parts", many, resume=True)
    for part in ("", "choice"):
        assert_same_run(whole[0] / part, tmp_path / "parts" / part)


def test_refit_without_held_out_images_is_refused(tmp_path: Path, many: Path) -> None:
    with pytest.raises(InputError, match=r"split.refit: no images are held out .*; set split.validation"):
        config(many, "split.validation=0")
    wanted = config(many, "split.validation=0.05")
    with pytest.raises(InputError, match=r"split.refit: no images are held out .*; raise split.validation"):
        train_run(Run.start(tmp_path / "run", wanted), data.load(wanted.data))
