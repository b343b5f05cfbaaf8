"""Score of held-out images by brute force, the choice of the best epoch by it, and its refusal."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from retrieval.images.decode import embed_files
from retrieval.metrics.statistics import bootstrap_intervals
from retrieval.progress import Progress
from tests.conftest import draw_classes
from tests.train.loop.test_trainer import BY_RECALL, many, trainer
from train import data, settings
from train.commands.train import _change
from train.config import Config
from train.data import LabelledImage
from train.loop.choice import EpochChoice, Score
from train.loop.run_folder import Run
from train.loop.trainer import Trainer
from train.models.embedding_model import pixel_embedder

__all__ = ["many"]


def brute_force(ours: Trainer, searched: list[LabelledImage]) -> tuple[np.ndarray, np.ndarray]:
    """Recall@1 and MAP@R of each held-out image, which searches all images but itself; loops and sorting."""
    held_out = ours.data.validation
    paths = [image.path for image in (*held_out, *searched)]
    quiet = Progress("", None, show=False)
    vectors = embed_files(paths, ours.config.preprocess, pixel_embedder(ours.network.model), quiet).vectors
    labels = [image.label for image in (*held_out, *searched)]
    recalls, maps = [], []
    for query in range(len(held_out)):
        others = [i for i in range(len(paths)) if i != query]
        others.sort(key=lambda i: -float(vectors[i] @ vectors[query]))
        hits = [labels[i] == labels[query] for i in others]
        r = sum(hits)
        recalls.append(float(hits[0]))
        maps.append(sum(sum(hits[: i + 1]) / (i + 1) for i in range(r) if hits[i]) / r)
    return np.array(recalls), np.array(maps)


@pytest.mark.parametrize("metric", ["recall_at_1", "map_at_r"])
def test_score_is_that_of_a_brute_force_search_among_the_distractors(
    tmp_path: Path, many: Path, metric: str
) -> None:
    chosen = ["split.validation=0.25", "split.distractors=30", f"split.metric={metric}", "epochs=1"]
    ours = trainer(tmp_path / "run", f"folder:{many}", *chosen, "noise.rate=0.3")
    distractors = ours.data.distractors
    assert len({image.path for image in distractors} & {image.path for image in ours.data.images}) == 30
    assert not {image.label for image in distractors} & {image.label for image in ours.data.validation}
    score = ours.validator.score(ours.network.model)
    assert score is not None
    recalls, maps = brute_force(ours, distractors)
    value = {"recall_at_1": recalls, "map_at_r": maps}[metric]
    assert score.value == pytest.approx(value.mean())
    assert score.values["recall_at_1"] == pytest.approx(recalls.mean())
    assert 0 < score.value < 1, "the test tells search results apart"
    assert score.value < brute_force(ours, [])[metric == "map_at_r"].mean(), "distractors make it harder"
    assert score.standard_error == pytest.approx(value.std() / math.sqrt(len(value)))
    assert (score.queries, score.classes, score.distractors) == (18, 3, 30)


def test_distractors_are_drawn_with_the_seed_and_bounded(tmp_path: Path, many: Path) -> None:
    def drawn(seed: int, *more: str) -> list[LabelledImage]:
        chosen = ["split.validation=0.25", f"seed={seed}", "split.distractors=10", *more]
        return trainer(tmp_path / f"{seed}{len(more)}", f"folder:{many}", *chosen).data.distractors

    assert len(drawn(0)) == 10
    assert len(drawn(1, "split.distractors=5000")) == 54, "all training images"
    assert drawn(2, "split.by=images") == [], "the held-out images have the classes of the others"
    assert trainer(tmp_path / "again", f"folder:{many}", "split.validation=0.25").data.distractors != []
    assert trainer(tmp_path / "none", f"folder:{many}").data.distractors == [], "nothing is held out"


def test_test_images_are_never_read(tmp_path: Path) -> None:
    draw_classes(tmp_path / "d" / "train", 7, 4)
    draw_classes(tmp_path / "d" / "test", ("7", "8"), 4, hue=7)
    chosen = ["split.validation=0.3", "epochs=1"]
    config = trainer(tmp_path / "run", f"folder:{tmp_path / 'd'}", *chosen).config
    dataset = data.load(config.data)
    shutil.rmtree(tmp_path / "d" / "test")
    ours = Trainer(Run.start(tmp_path / "other", config), dataset)
    facts = ours.train()
    assert ours.bad_files == []
    assert facts["distractors"] == 20


CONFIG = settings.resolve("digits", None, ["patience=2", "split.metric=recall_at_1"])


def score(value: float, queries: int = 400, classes: int = 25, metric: str = "recall_at_1") -> Score:
    values = {"recall_at_1": value, metric: value}
    return Score(metric, values, math.sqrt(value * (1 - value) / queries), queries, classes, 1000)


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (score(0.7, queries=299), None, "rests on 299 held-out images of 25 classes, and needs 300 of 20"),
        (score(0.7, classes=19), None, "rests on 400 held-out images of 19 classes, and needs 300 of 20"),
        (score(0.951), None, "is saturated: 0.951 before training"),
        (score(0.951, metric="map_at_r"), None, "MAP@R of the held-out images is saturated"),
        (score(0.7), score(1.0), "at its ceiling: 1.000 after epoch 1"),
        (score(0.7), score(1 - 3 / 400), "at its ceiling: 0.993 after epoch 1"),
    ],
    ids=["queries", "classes", "start", "map", "ceiling", "three errors"],
)
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_choice_is_refused(first: Score, then: Score | None, reason: str, ema: float) -> None:
    """From then on every epoch counts as the best, and nothing stops early."""
    choice = EpochChoice(CONFIG.model_copy(update={"ema": ema}))
    for epoch, one in enumerate([first] if then is None else [first, then]):
        assert choice.refusal is None
        assert choice.add(one, epoch)
    assert choice.refusal is not None
    assert reason in choice.refusal
    average = "the moving average after the last epoch counts as the best, without early stopping"
    assert (average in choice.refusal) == bool(ema)
    assert all(choice.add(score(0.5), epoch) for epoch in range(2, 9))
    assert not choice.stops


def test_fit_score_chooses_and_stops() -> None:
    """Above 0.95 after training is no reason to refuse, if it is further from 1 than chance."""
    values = [0.70, 0.80, 0.99, 0.99, 0.95]
    choice = EpochChoice(CONFIG)
    assert [choice.add(score(value), epoch) for epoch, value in enumerate(values)] == [1, 1, 1, 0, 0]
    assert choice.refusal is None
    assert choice.stops
    records = [{"epoch": i, "recall_at_1": value} for i, value in enumerate(values)]
    best = choice.best_record(records)
    assert best is not None
    assert best["epoch"] == 2
    again = EpochChoice(CONFIG)
    again.restore(choice.state())
    assert (again.best, again.stops, again.refusal) == (0.99, True, None)
    trusting = EpochChoice(
        CONFIG.model_copy(update={"split": CONFIG.split.model_copy(update={"choice": "always"})})
    )
    assert [trusting.add(score(v, queries=5, classes=2), e) for e, v in enumerate((1.0, 0.9))] == [1, 0]
    assert trusting.refusal is None


def of_classes(sums: np.ndarray, sizes: np.ndarray) -> Score:
    return dataclasses.replace(score(float(sums.sum() / sizes.sum())), of_classes=(sums, sizes))


def test_gain_by_epochs_that_the_other_half_chose() -> None:
    """Against loops over halves and epochs, also after a checkpoint; the last epoch, where none is chosen."""
    random = np.random.default_rng(1)
    sizes = random.integers(2, 9, 21)
    epochs = random.uniform(0.3, 0.6, (8, 21)) * sizes
    choice = EpochChoice(CONFIG)
    for epoch, sums in enumerate(epochs):
        choice.add(of_classes(sums, sizes), epoch)
        again = EpochChoice(CONFIG)
        again.restore(json.loads(json.dumps(choice.state())))
        choice = again
    second = np.random.default_rng(0).permutation(21) % 2 == 1
    after = np.empty(21)
    for half in (second, ~second):
        means = [float(sums[half].sum() / sizes[half].sum()) for sums in epochs]
        after[~half] = epochs[means.index(max(means))][~half]
    gain = choice.gain
    assert gain is not None
    assert gain.before == pytest.approx(epochs[0].sum() / sizes.sum())
    assert gain.after == pytest.approx(after.sum() / sizes.sum())
    classes = np.repeat(np.arange(21), sizes)
    difference = np.repeat((after - epochs[0]) / sizes, sizes)
    assert [gain.low, gain.high] == pytest.approx(bootstrap_intervals(difference[:, None], classes)[0])
    choice.refusal = "too few"
    assert choice.gain is not None
    assert choice.gain.after == pytest.approx(epochs[-1].sum() / sizes.sum())
    older = EpochChoice(CONFIG)
    older.restore({"best": 0.5, "since_best": 0})
    older.add(of_classes(epochs[0], sizes), 4)
    assert older.gain is None, "the start is unknown"


def test_gain_in_words() -> None:
    gain = {"before": 0.072, "after": 0.082, "low": 0.001, "high": 0.024}
    facts = {"metric_before": 0.072, "metric_best": 0.085, "metric_interval": None, "best_epoch": 3}
    facts |= {"best_refused": None, "metric_gain": gain}
    text = "0.072 -> 0.082, +1.0 points (+0.1 to +2.4; 95%, for other classes)"
    by_halves = "by epochs that half of them chose for the others; epoch 3 is kept"
    assert _change(facts) == f"{text}, {by_halves}"
    assert _change(facts | {"best_refused": "too few"}) == f"{text} (epoch 3)"
    few = gain | {"low": None, "high": None}
    assert _change(facts | {"metric_gain": few}) == f"0.072 -> 0.082, +1.0 points, {by_halves}"
    pairs = {"metric_gain": None, "metric_interval": [0.08, 0.09]}
    assert _change(facts | pairs) == "0.072 -> 0.085 [0.080, 0.090] (epoch 3, the best on them)"
    assert "the start is kept" in _change(facts | {"best_epoch": 0, "metric_best": 0.072})


def test_the_best_of_useless_epochs_gains_nothing() -> None:
    """On the classes that chose it, the best of 30 equally good epochs seems far better than the first."""
    random, sizes = np.random.default_rng(2), np.full(40, 5)
    apparent, found, covered = [], [], []
    for _ in range(60):
        classes = random.uniform(0.2, 0.8, 40)  # how hard they are
        choice = EpochChoice(CONFIG)
        means = []
        for epoch in range(30):
            sums = (classes + 0.1 * random.standard_normal(40)) * sizes
            choice.add(of_classes(sums, sizes), epoch)
            means.append(sums.sum() / sizes.sum())
        gain = choice.gain
        assert gain is not None
        assert gain.low is not None
        assert gain.high is not None
        apparent.append(max(means) - means[0])
        found.append(gain.after - gain.before)
        covered.append(gain.low <= 0 <= gain.high)
    error = np.std(found) / math.sqrt(len(found))
    assert np.mean(apparent) > 6 * error
    assert abs(np.mean(found)) < 3 * error
    assert np.mean(covered) >= 0.85


def test_refused_run_keeps_the_last_epoch_and_says_so_once(
    tmp_path: Path, many: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it is resumed."""
    config = trainer(
        tmp_path / "x", f"folder:{many}", "split.validation=0.25", "epochs=2", "patience=1"
    ).config
    facts = Trainer(Run.start(tmp_path / "run", config), data.load(config.data), show_progress=True).train()
    assert facts["epochs"] == 2
    assert not facts["stopped_early"]
    shown = capsys.readouterr().err
    assert shown.count("split: MAP@R rests on 18 held-out images of 3 classes") == 1
    assert shown.count(" of 18 held-out images among 54 distractors") == 3, "a line for each epoch"
    run = Run.open(tmp_path / "run")
    last, best = (run.trained(which).state_dict() for which in ("last", "best"))
    assert all(torch.equal(value, best[name]) for name, value in last.items())
    assert facts["recall_at_1_best"] == facts["recall_at_1_last"]
    assert facts["best_epoch"] == 2
    assert facts["best_refused"] in shown
    again = Trainer(run, data.load(config.data), show_progress=True).train(resume=True)
    assert again["best_refused"] == facts["best_refused"]
    assert "split:" not in capsys.readouterr().err


def test_run_of_an_older_version_keeps_its_choice(tmp_path: Path, many: Path) -> None:
    """Its config.yaml has neither distractors nor a refusal, and its checkpoint no reason."""
    held_out = ["split.validation=0.25", "epochs=2", "optimizer.lr=1e-12"]
    old = trainer(tmp_path / "run", f"folder:{many}", *held_out, *BY_RECALL, "split.distractors=0")
    values = old.config.to_dict()
    for name in ("metric", "distractors", "choice"):
        del values["split"][name]
    (old.run.folder / "config.yaml").write_text(yaml.safe_dump(values))
    assert Run.open(old.run.folder).config == old.config
    state = {"best": 0.5, "since_best": 1}
    choice = EpochChoice(old.config)
    choice.restore(state)
    assert choice.refusal is None
    assert not choice.add(score(0.4, 10, 2), 2)
    values["split"]["validation"] = 0.0
    (old.run.folder / "config.yaml").write_text(yaml.safe_dump(values))
    plain = Config(data=values["data"]).split
    assert Run.open(old.run.folder).config.split == plain.model_copy(update={"validation": 0.0})
