"""Watched images: their curves, and that they change nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retrieval import InputError, LookalikeError, metrics
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from tests.conftest import draw_classes
from tests.train.loop.test_trainer import many, train_until_interrupted, trainer
from train import data
from train.data import DataSet, LabelledImage
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.loop.validation import _sample
from train.models.embedding_model import EmbeddingModel, pixel_embedder

__all__ = ["many"]


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine training and four test classes of five images."""
    folder = tmp_path_factory.mktemp("splits")
    draw_classes(folder / "train", 9, 5)
    draw_classes(folder / "test", (f"{hue:02d}" for hue in range(9, 13)), 5, hue=9)
    return folder


WATCHED = ["epochs=3", "batch.per_epoch=3", "split.validation=0.25", "watch={split: test, every: 2}"]


def recall(model: EmbeddingModel, images: list[LabelledImage], run: Run) -> float:
    paths = [image.path for image in images]
    quiet = Progress("", None, show=False)
    vectors = embed_files(paths, run.config.preprocess, pixel_embedder(model), quiet).vectors
    return metrics.recall_at_k(vectors, data.class_numbers(images), ks=(1,))[1]


def test_watched_recall_is_that_of_the_kept_checkpoints(tmp_path: Path, splits: Path) -> None:
    """Before the first step, at every second one, and at the end; against an evaluation afterwards."""
    ours = trainer(tmp_path / "run", f"folder:{splits}", *WATCHED, "checkpoints.every=1", "ema=0.5")
    facts = ours.train()
    records = ours.run.watched()
    assert [record["step"] for record in records] == [0, 2, 4, 6, 8, 9]
    images = data.load(ours.config.data).test
    expected = [recall(ours.run.trained(str(r["step"])), images, ours.run) for r in records]
    assert [record["recall_at_1"] for record in records] == expected
    assert len(set(expected)) > 1, "training changes nothing"
    assert {"step", "watched", "recall_at_1", "recall_at_2", "recall_at_4", "recall_at_8"} == set(records[0])
    assert facts["watched"] == {
        "images": "test images, not to be selected on",
        "recall_at_1_before": expected[0],
        "recall_at_1_last": expected[-1],
    }
    board = EventAccumulator(str(ours.run.folder))
    board.Reload()
    tag = "watched test images, not to be selected on/recall_at_1"
    assert [event.step for event in board.Scalars(tag)] == [0, 2, 4, 6, 8, 9]
    assert len(board.Scalars("recall_at_1")) == 4, "validation is a curve of its own"


def test_watching_changes_nothing_else(tmp_path: Path, splits: Path) -> None:
    """The same weights, the same losses and the same choice of the best epoch, up to the bit."""
    runs = {}
    for name, settings in (("plain", WATCHED[:-1]), ("watched", WATCHED)):
        ours = trainer(tmp_path / name, f"folder:{splits}", *settings, "model.dropout=0.2")
        facts = ours.train()
        kept = {key: value for key, value in facts.items() if key not in ("run", "seconds", "watched")}
        records = [
            {k: v for k, v in r.items() if k not in ("images_per_second", "seconds_per_step", "waiting")}
            for r in ours.run.metrics()
        ]
        runs[name] = (
            kept,
            records,
            load_file(tmp_path / name / "checkpoints" / "best" / "state.safetensors"),
        )
    (facts, records, best), (same_facts, same_records, same_best) = runs.values()
    assert (facts, records) == (same_facts, same_records)
    assert all(torch.equal(value, same_best[name]) for name, value in best.items())


@pytest.mark.parametrize("after", [3, 4, 6], ids=["between", "at an evaluation", "at both"])
def test_resumed_run_has_the_same_records(tmp_path: Path, splits: Path, after: int) -> None:
    whole = trainer(tmp_path / "whole", f"folder:{splits}", *WATCHED)
    whole.train()
    stopped = trainer(tmp_path / "parts", f"folder:{splits}", *WATCHED)
    train_until_interrupted(stopped, after)
    run = Run.open(tmp_path / "parts")
    Trainer(run, data.load(run.config.data)).train(resume=True)
    assert run.watched() == whole.run.watched()


def test_run_that_stops_early_is_watched_at_its_end_once(tmp_path: Path, splits: Path) -> None:
    settings = ["epochs=50", "patience=1", "optimizer.lr=1e-12", "watch.every=1000", *WATCHED[1:3]]
    choice = ["split.choice=always", "split.distractors=0"]
    ours = trainer(tmp_path / "run", f"folder:{splits}", "watch.split=held-out", *settings, *choice)
    facts = ours.train()
    assert [record["step"] for record in ours.run.watched()] == [0, facts["steps"]]
    assert ours.run.watched()[-1]["recall_at_1"] == facts["recall_at_1_last"]
    Trainer(ours.run, data.load(ours.config.data)).train(resume=True)
    assert [record["step"] for record in ours.run.watched()] == [0, facts["steps"]]


def test_diverged_network_is_not_watched(tmp_path: Path, splits: Path) -> None:
    """The curve ends before the step after which the weights are not finite, with the usual message."""
    ours = trainer(tmp_path / "run", f"folder:{splits}", *WATCHED[:-1], "watch={split: test, every: 1}")
    ours.network.model.head.weight.register_hook(lambda g: g * (float("nan") if ours.step == 1 else 1.0))
    with pytest.raises(LookalikeError, match="weights are no longer finite at step 2"):
        ours.train()
    assert [record["step"] for record in ours.run.watched()] == [0, 1]


def test_training_images_are_watched_with_true_labels(tmp_path: Path, splits: Path) -> None:
    settings = ["epochs=1", "watch.split=train", "noise.rate=0.4", "checkpoints.at=[0]"]
    ours = trainer(tmp_path / "run", f"folder:{splits}", *settings)
    ours.train()
    expected = recall(ours.run.trained("0"), data.load(ours.config.data).train, ours.run)
    assert ours.run.watched()[0]["recall_at_1"] == expected
    assert len(ours.run.watched()) == 2, "once an epoch"


def test_queries_are_searched_in_the_gallery_of_the_data_set(tmp_path: Path, splits: Path) -> None:
    plain = data.load(f"folder:{splits}")
    first, rest = plain.test[::5], [image for i, image in enumerate(plain.test) if i % 5]
    dataset = DataSet(plain.name, plain.train, first, rest)
    ours = trainer(tmp_path / "run", f"folder:{splits}", "watch.split=test", "epochs=1", "checkpoints.at=[0]")
    Trainer(ours.run, dataset).train()
    embed = pixel_embedder(ours.run.trained("0"))
    sides = [
        embed_files(
            [i.path for i in side], ours.config.preprocess, embed, Progress("", None, show=False)
        ).vectors
        for side in (first, rest)
    ]
    best = (sides[0] @ sides[1].T).argmax(1)
    right = np.mean([first[i].label == rest[j].label for i, j in enumerate(best)])
    assert ours.run.watched()[0]["recall_at_1"] == pytest.approx(right)


def test_sample_has_equally_many_of_each_class_or_whole_small_classes() -> None:
    images = [LabelledImage(Path(f"{c}/{i}"), str(c)) for c in range(10) for i in range(30)]
    fifty = _sample(images, 50, seed=0)
    assert np.unique([image.label for image in fifty], return_counts=True)[1].tolist() == [5] * 10
    few = _sample(images, 20, seed=0)
    assert np.unique([image.label for image in few], return_counts=True)[1].tolist() == [4] * 5
    assert few == _sample(images, 20, seed=0) != _sample(images, 20, seed=1)
    assert _sample(images, 1000, seed=0) == images


def test_images_that_do_not_exist_are_refused(tmp_path: Path, splits: Path, shop: Path) -> None:
    with pytest.raises(InputError, match=r"watch.split=test: the data set has no test split; watch train"):
        trainer(tmp_path / "a", f"folder:{shop}", "watch.split=test")
    with pytest.raises(InputError, match=r"watch.split=held-out: no images are held out"):
        trainer(tmp_path / "b", f"folder:{splits}", "watch.split=held-out")
    with pytest.raises(InputError, match=r"watch.split: expected train, held-out or test"):
        trainer(tmp_path / "c", f"folder:{splits}", "watch.split=best")
