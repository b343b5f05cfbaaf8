"""Training: it learns, it resumes to the bit, and it stops when there is nothing to be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from retrieval import InputError, LookalikeError
from tests.conftest import draw
from train import data, settings
from train.loop import Trainer, split_validation
from train.run import Run, initial_model

SMALL = [
    "preprocess.size=24",
    "model.embedding_dim=8",
    "batch.classes=3",
    "batch.per_class=4",
    "split.validation=0.0",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> object:
    """Small networks are quicker so, and it is the same machine for every run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve classes of six pictures."""
    folder = tmp_path_factory.mktemp("many")
    for hue in range(12):
        (folder / f"{hue:02d}").mkdir()
        for seed in range(6):
            draw(seed, hue=hue).save(folder / f"{hue:02d}" / f"{seed}.png")
    return folder


def trainer(folder: Path, spec: str, *overrides: str) -> Trainer:
    run = Run.start(folder, settings.resolve(spec, None, [*SMALL, *overrides]))
    return Trainer(run, data.load(run.config.data))


def test_it_learns(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=12", "loss={name: triplet, margin: 1.0}")
    ours.train()
    records = [record for record in Run.open(tmp_path / "run").metrics() if "loss" in record]
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]
    assert {"step", "epoch", "lr", "images_per_second"} <= set(records[0])
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    "loss",
    ["{name: triplet, negatives: optimal}", "{name: triplet, mining: {positive: random, negative: random}}"],
)
def test_two_epochs_and_two_more_are_four(tmp_path: Path, shop: Path, loss: str) -> None:
    settings = ["epochs=4", f"loss={loss}"]
    trainer(tmp_path / "whole", f"folder:{shop}", *settings).train()
    broken_off = trainer(tmp_path / "parts", f"folder:{shop}", *settings)
    original, calls = broken_off._train_epoch, []

    def interrupted(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(*arguments)

    broken_off._train_epoch = interrupted
    with pytest.raises(KeyboardInterrupt):
        broken_off.train()
    run = Run.open(tmp_path / "parts")
    Trainer(run, data.load(run.config.data)).train(resume=True)
    whole, parts = (Run.open(tmp_path / name) for name in ("whole", "parts"))
    for name, value in whole.trained("last").state_dict().items():
        assert torch.equal(value, parts.trained("last").state_dict()[name]), name
    losses = [[r["loss"] for r in run.metrics() if "loss" in r] for run in (whole, parts)]
    assert losses[0] == losses[1]


def test_best_is_chosen_on_held_out_classes(tmp_path: Path, many: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{many}", "epochs=3", "split.validation=0.25")
    facts = ours.train()
    assert facts["validation_classes"] == 3
    assert len(set(ours.labels)) == 9
    recalls = [r["recall_at_1"] for r in ours.run.metrics() if "recall_at_1" in r]
    assert len(recalls) == 4, "before the first epoch and after each"
    assert facts["recall_at_1_best"] == max(recalls)
    kept = ours.run.load("best", model=ours.run.untrained())
    assert kept["recall_at_1"] == max(recalls)


def test_validation_holds_out_whole_classes_or_none() -> None:
    images = [data.LabelledImage(Path(f"{c}{i}"), str(c)) for c in range(10) for i in range(3)]
    training, held_out = split_validation(images, 0.3, 0)
    assert len({i.label for i in held_out}) == 3
    assert not {i.label for i in held_out} & {i.label for i in training}
    assert split_validation(images, 0.3, 0) == (training, held_out)
    assert split_validation(images, 0.1, 0) == (images, []), "one class alone cannot be searched"


def test_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=3")
    real = ours.loss.forward
    ours.loss.forward = lambda *a, **k: real(*a, **k) * (float("nan") if ours.step >= 3 else 1.0)
    with pytest.raises(LookalikeError, match=r"nan at step 4 \(learning rate"):
        ours.train()
    assert ours.run.load("last", model=ours.run.untrained())["epoch"] == 1


def test_unreadable_training_image_is_left_out_and_named(tmp_path: Path) -> None:
    for hue in range(3):
        (tmp_path / "d" / str(hue)).mkdir(parents=True)
        for seed in range(4):
            draw(seed, hue=hue).save(tmp_path / "d" / str(hue) / f"{seed}.png")
    (tmp_path / "d" / "0" / "bad.png").write_bytes(b"bad")
    ours = trainer(tmp_path / "run", f"folder:{tmp_path / 'd'}", "epochs=1")
    ours.train()
    assert [Path(error.source).name for error in ours.bad_files] == ["bad.png"]
    assert len(ours.labels) == 12


def test_run_folder_keeps_what_it_was_made_of(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=0", "seed=5")
    ours.train()
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["seed"] == 5
    assert settings.parse(kept) == ours.config
    untrained = initial_model(ours.config).state_dict()
    assert all(torch.equal(untrained[name], value) for name, value in ours.run.trained().state_dict().items())
    with pytest.raises(InputError, match="--resume"):
        Run.start(tmp_path / "run", ours.config)


def test_checkpoint_of_another_network_is_refused(tmp_path: Path, shop: Path) -> None:
    trainer(tmp_path / "run", f"folder:{shop}", "epochs=0").train()
    other = settings.resolve(f"folder:{shop}", None, [*SMALL, "model.embedding_dim=9"])
    (tmp_path / "run" / "config.yaml").write_text(other.to_yaml())
    with pytest.raises(InputError, match="does not belong"):
        Run.open(tmp_path / "run").trained()
    (tmp_path / "run" / "checkpoints" / "best" / "state.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(InputError, match="does not belong"):
        Run.open(tmp_path / "run").trained()


def test_metrics_are_one_object_a_line(tmp_path: Path, shop: Path) -> None:
    ours = trainer(tmp_path / "run", f"folder:{shop}", "epochs=2")
    ours.train()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)
