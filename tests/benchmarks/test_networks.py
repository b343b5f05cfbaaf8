"""Networks that are trained from scratch, many at a time: batches, steps, measures, and resuming."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.experiments import divisions
from benchmarks.experiments.arrays import HELD_OUT, TEST, TRAIN, Packed, load_packed, pack
from benchmarks.experiments.catalogue import Table, load_tables
from benchmarks.experiments.data import DIVISIONS, prepare
from benchmarks.experiments.network_training import Engine, Images, Run, crossing_share, retrieval_scores
from benchmarks.experiments.networks import best_rate, read_records, train_table, work
from benchmarks.experiments.results import collect_networks
from retrieval import metrics
from tests.train.pretend_device import Watch, place, pretend_device
from train import losses
from train.config import Config, ModelConfig
from train.settings import parse_config

NETWORKS = load_tables()["networks"]
MODEL = {"backbone": "conv4", "embedding_dim": 8, "pooling": "spatial"}
LOSS = {"name": "raw", "mining": None}
CLASSES, COUNT, SIDE = 12, 6, 32
CPU = torch.device("cpu")


def packed(side: int = SIDE, channels: int = 3) -> Packed:
    """Return images of a class that differ by noise, and divisions in test, train and held-out classes."""
    random = np.random.default_rng(0)
    centres = random.integers(0, 256, (CLASSES, 1, side, side, channels))
    noise = random.integers(-40, 41, (CLASSES, COUNT, side, side, channels))
    images = (centres + noise).clip(0, 255).astype(np.uint8).reshape(-1, side, side, channels)
    parts = np.stack([random.permutation(np.arange(CLASSES) % 3) for _ in range(DIVISIONS)]).astype(np.uint8)
    return Packed(images, np.repeat(np.arange(CLASSES), COUNT), parts)


def images(shift: int = 3, *, flip: bool = True, side: int = SIDE, channels: int = 3) -> Images:
    return Images(packed(side, channels), CPU, classes=3, per_class=2, shift=shift, flip=flip)


def small_table() -> Table:
    """Return the table with two methods on one data set, two divisions and two rates."""
    names = ("semi-hard", "raw")
    return replace(
        NETWORKS,
        settings={**NETWORKS.settings, "batch": {"classes": 3, "per_class": 2}},
        setups={"cifar-conv4": NETWORKS.setups["cifar-conv4"]},
        sets={"CIFAR-100": ("cifar-conv4",)},
        variants={name: NETWORKS.variants[name] for name in names},
        spaces={"optimizer.lr": {"choices": [1e-3, 3e-3]}},
        claims=tuple(one for one in NETWORKS.claims if {one.better, one.than} == set(names)),
        divisions=2,
    )


def save(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    found = packed()
    np.savez(folder / "cifar100.npz", images=found.images, classes=found.classes, parts=found.parts)
    return folder


# ---- the images


def test_arrays_hold_the_images_and_divisions_of_the_lists(tmp_path: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    made: dict[tuple[str, int], np.ndarray] = {}
    for alphabet in range(6):
        for character in range(2):
            for n in range(3):
                name = f"a{alphabet}__c{character}"
                made[name, n] = random.integers(0, 256, (28, 28), dtype=np.uint8)
                file = (
                    tmp_path
                    / "omniglot"
                    / f"images_{('background', 'evaluation')[alphabet % 2]}"
                    / name
                    / f"{n}.png"
                )
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(made[name, n]).save(file)
    prepare(tmp_path, {"omniglot": []}, {})
    pack("omniglot", tmp_path, tmp_path)
    found = load_packed("omniglot", tmp_path)
    assert found.images.shape == (36, 28, 28, 1)
    names = sorted({name for name, _ in made})
    for number, (name, n) in enumerate(sorted(made)):
        assert names[found.classes[number]] == name
        assert (found.images[number, :, :, 0] == made[name, n]).all()
    for part in found.parts:
        by_alphabet = part.reshape(6, 2)
        assert (by_alphabet[:, 0] == by_alphabet[:, 1]).all(), "an alphabet is in one part"
        assert sorted(np.bincount(by_alphabet[:, 0], minlength=3)) == [1, 2, 3]
        assert (by_alphabet[:, 0] == TEST).sum() == 3
    assert len({part.tobytes() for part in found.parts}) > 1


@pytest.mark.parametrize("choosing", [False, True])
def test_batches_have_the_classes_of_their_part(choosing: bool) -> None:
    own, source = images(), packed()
    for division in range(DIVISIONS):
        run = Run(division, 1, 1e-3, 50, choosing)
        drawn, shifts, mirrored = own.draw(run)
        part = source.parts[division]
        trained = {TRAIN} if choosing else {TRAIN, HELD_OUT}
        classes = source.classes[drawn.numpy()].reshape(50, 3, 2)
        assert set(part[np.unique(classes)]) == trained
        assert (classes[:, :, 0] == classes[:, :, 1]).all()
        assert all(len(set(batch)) == 3 for batch in classes[:, :, 0])
        assert all(len(set(batch)) == 6 for batch in drawn.tolist()), "no image twice"
        assert len(np.unique(drawn)) == COUNT * np.isin(part, list(trained)).sum(), "every image in time"
        assert set(shifts.unique().tolist()) == set(range(7))
        assert 0.3 < mirrored.float().mean() < 0.7
        again = own.draw(run)[0]
        assert (drawn == again).all()
        assert (drawn != own.draw(replace(run, seed=0))[0]).any()
        tested = source.classes[own.tested(run).numpy()]
        assert set(part[tested]) == ({HELD_OUT} if choosing else {TEST})
        assert (np.diff(tested) >= 0).all()


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (28, 1)])
def test_augmentation_shifts_and_mirrors(side: int, channels: int) -> None:
    own, source = images(side=side, channels=channels), packed(side, channels)
    drawn, shifts, mirrored = own.draw(Run(0, 0, 1e-3, 5, False))
    for step in range(5):
        found = own.augmented(drawn[step], shifts[step], mirrored[step]).numpy()
        for index, number in enumerate(drawn[step].tolist()):
            pixels = np.pad(source.images[number], ((3, 3), (3, 3), (0, 0)), mode="edge")
            down, right = shifts[step, index].tolist()
            pixels = pixels[down : down + side, right : right + side]
            if mirrored[step, index]:
                pixels = pixels[:, ::-1]
            assert (found[index] == np.broadcast_to(pixels, (side, side, 3))).all()


# ---- the steps


def plain_training(run: Run, own: Images) -> tuple[nn.Module, list[float]]:
    """Train as one would by hand: torch's Adam with its cosine schedule."""
    from retrieval.images.preprocess import Preprocess
    from train.models.embedding_model import EmbeddingModel

    torch.manual_seed(run.seed)
    network = EmbeddingModel(ModelConfig(**MODEL), Preprocess(size=SIDE))
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.steps)
    loss = losses.build(LOSS)
    values = []
    for drawn, shifts, mirrored in zip(*own.draw(run), strict=True):
        value = loss(network(own.augmented(drawn, shifts, mirrored)), torch.tensor([0, 0, 1, 1, 2, 2]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        values.append(value.item())
    return network, values


def test_a_run_is_ordinary_training_whatever_ran_before() -> None:
    own = images()
    engine = Engine(LOSS, MODEL, own, 40, graph=False)
    first, second = Run(0, 0, 1e-3, 12, False), Run(1, 1, 3e-3, 8, True)
    for run in (first, second, first):
        engine.begin(run)
        engine.advance(run.steps)
        network, values = plain_training(run, own)
        expected, found = network.state_dict(), engine.network.state_dict()
        for name, value in found.items():
            assert torch.allclose(value.float(), expected[name].float(), atol=1e-5), name
        scores = engine.measure(run)()
        network.eval()
        tested = own.tested(run)
        with torch.no_grad():
            vectors = torch.nn.functional.normalize(network(own.plain[tested]))
        labels = packed().classes[tested.numpy()]
        assert scores["recall_at_1"] == pytest.approx(
            metrics.recall_at_k(vectors.numpy(), labels, ks=(1,))[1]
        )
        assert scores["map_at_r"] == pytest.approx(metrics.map_at_r(vectors.numpy(), labels))
        last = values[int(0.9 * run.steps) :]
        assert scores["loss"] == pytest.approx(np.mean(last), rel=1e-4)
        assert math.isnan(scores["synthetic_share"])


@pytest.mark.parametrize("variant", NETWORKS.variants)
def test_every_loss_of_the_table_trains(variant: str) -> None:
    engine = Engine(NETWORKS.variants[variant]["loss"], MODEL, images(), 10, graph=False)
    run = Run(0, 0, 1e-3, 2, False)
    engine.begin(run)
    before = [weight.clone() for weight in engine.network.parameters()]
    engine.advance(2)
    assert any((old != new).any() for old, new in zip(before, engine.network.parameters(), strict=True))
    scores = engine.measure(run)()
    assert math.isfinite(scores["loss"])
    assert math.isfinite(scores["mean_similarity"])
    assert math.isfinite(scores["synthetic_share"]) == (variant.endswith(("-symm", "-optimal")))


@pytest.mark.parametrize("variant", ["raw", "triplet-rand-disjoint", "semi-hard-w", "lifted-symm"])
def test_a_step_reads_and_copies_nothing_from_the_host(variant: str) -> None:
    """Each read or copy would break the recording of a CUDA graph."""
    own = images()
    engine = Engine(NETWORKS.variants[variant]["loss"], MODEL, own, 10, graph=False)
    with pretend_device() as device:
        place(engine.network, device)
        for part in (own, engine):
            for name, value in vars(part).items():
                if isinstance(value, torch.Tensor):
                    setattr(part, name, torch.zeros(value.shape, dtype=value.dtype, device=device))
        engine.optimizer = torch.optim.Adam(engine.network.parameters(), foreach=False, capturable=True)
        engine.optimizer.param_groups[0]["lr"] = engine._lr
        engine._take_step()  # makes the state of the optimizer
        with Watch() as watch:
            engine._take_step()
    assert watch.found == []


# ---- the measures


@pytest.mark.parametrize("seed", range(3))
def test_scores_agree_with_those_of_the_product(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(300), 5)  # more than one part
    vectors = random.normal(size=(300, 1, 8)) + random.normal(size=(300, 5, 8))
    vectors = (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).reshape(-1, 8)
    recall, precision = retrieval_scores(torch.from_numpy(vectors), 5)
    assert recall.item() == pytest.approx(metrics.recall_at_k(vectors, labels, ks=(1,))[1])
    assert precision.item() == pytest.approx(metrics.map_at_r(vectors, labels))


def test_crossing_points_are_those_nearest_to_another_class() -> None:
    random = np.random.default_rng(0)
    points = random.normal(size=(4, 3, 2, 2, 3))  # batches, classes, pairs, members
    points += 1.5 * random.normal(size=(4, 3, 1, 1, 3))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    crossed = []
    for batch in points:
        for label, pairs in enumerate(batch):
            for pair in pairs:
                for own, other in (pair, pair[::-1]):
                    mirrored = 2 * (own @ other) * other - own
                    crossed.append((batch @ mirrored).max((1, 2)).argmax() != label)
    assert 0 < sum(crossed) < len(crossed)
    pairs = torch.from_numpy(points.reshape(4, 6, 2, 3))
    assert crossing_share(pairs, 2).item() == pytest.approx(np.mean(crossed))


def test_the_rate_is_the_best_on_held_out_classes() -> None:
    runs = [
        {"choosing": True, "lr": 1e-3, "map_at_r": 0.2},
        {"choosing": True, "lr": 3e-3, "map_at_r": 0.3},
        {"choosing": False, "lr": 1e-2, "map_at_r": 0.9},
    ]
    assert best_rate(runs) == 3e-3


# ---- all runs of a table


def run_small(folder: Path, seconds: float = 100) -> list[dict[str, Any]]:
    data = save(folder / "data")
    work(small_table(), data, folder, device="cpu", seconds=seconds, steps=5, graph=False)
    return read_records(folder / "networks.jsonl")


def test_all_runs_are_done_once_in_the_order_of_the_divisions(tmp_path: Path) -> None:
    records = run_small(tmp_path)
    assert records[0]["kind"] == "plan"
    assert records[0]["steps"] == 5
    runs = [line for line in records if line["kind"] == "run"]
    keys = [tuple(line[key] for key in ("variant", "division", "choosing", "lr", "seed")) for line in runs]
    assert len(keys) == len(set(keys)) == 2 * (2 * (2 + 2) + 2)
    assert {line["steps"] for line in runs} == {0, 2, 5}
    for variant in ("semi-hard", "raw"):
        own = [line for line in runs if line["variant"] == variant]
        assert [line["division"] for line in own] == [0] * 4 + [1] * 4
        for division in range(2):
            of_division = [line for line in own if line["division"] == division]
            tried = {line["map_at_r"]: line["lr"] for line in of_division if line["choosing"]}
            assert {line["lr"] for line in of_division if not line["choosing"]} <= {
                rate for value, rate in tried.items() if value == max(tried)
            } | {of_division[0]["lr"]}
    assert run_small(tmp_path) == records, "nothing is left to do"


def test_results_go_into_the_tables_of_divisions(tmp_path: Path) -> None:
    records, table = run_small(tmp_path), small_table()
    results = collect_networks(table, records)
    assert results["plan"]["steps"] == 5
    assert divisions.measured(table, results) == {"CIFAR-100": [0, 1]}
    (verdict, other) = divisions.judge(table, results)
    assert (verdict.claim.better, verdict.claim.than) == ("raw", "semi-hard")
    runs = [line for line in records if line["kind"] == "run" and not line["choosing"]]
    for found in (verdict, other):
        expected = [
            np.mean(
                [line[found.metric] for line in runs if (line["variant"], line["division"]) == ("raw", n)]
            )
            - np.mean(
                [
                    line[found.metric]
                    for line in runs
                    if (line["variant"], line["division"]) == ("semi-hard", n)
                ]
            )
            for n in range(2)
        ]
        assert found.found.units == pytest.approx(expected)
    before = divisions.level(table, results, "network", "recall_at_1")["CIFAR-100"]
    assert len(before) == 2
    half = [line for line in records if line.get("seed") != 1 or line.get("variant") != "raw"]
    assert divisions.compare(table, collect_networks(table, half), "raw", "semi-hard", "map_at_r") is None


def test_a_killed_process_loses_the_runs_under_way_alone(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from tests.benchmarks import test_networks as t; "
        f"t.run_small(Path({str(tmp_path)!r}))"
    )
    file = tmp_path / "networks.jsonl"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        while process.poll() is None and (not file.is_file() or len(file.read_text().splitlines()) < 4):
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = read_records(file)
    assert 4 <= len(kept) < 21, "killed in the middle"
    with file.open("a") as out:
        out.write('{"kind": "run", "setup"')  # cut off by the kill
    records = run_small(tmp_path)
    assert records[: len(kept)] == kept
    whole = read_records_of_a_whole_run(tmp_path / "whole")
    assert {stable(line) for line in records} == {stable(line) for line in whole}


def read_records_of_a_whole_run(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    return run_small(folder)


def stable(line: dict[str, Any]) -> str:
    """Return a line without the time that it took, and with few digits."""
    kept = {key: value for key, value in line.items() if key != "seconds"}
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in kept.items()}
    return json.dumps(rounded, sort_keys=True)


def test_no_run_is_begun_without_time_for_it(tmp_path: Path) -> None:
    assert [line["kind"] for line in run_small(tmp_path, seconds=0.0)] == ["plan"]


def test_processes_share_a_table_and_end_in_time(tmp_path: Path) -> None:
    """The real table on made-up images: every process has networks of its own, and all end at the limit."""
    data = tmp_path / "data"
    data.mkdir()
    random = np.random.default_rng(0)
    for name, side, channels in (("cifar100", 32, 3), ("omniglot", 28, 1)):
        pixels = random.integers(0, 256, (60 * 5, side, side, channels), dtype=np.uint8)
        parts = np.stack([random.permutation(np.arange(60) % 3) for _ in range(DIVISIONS)]).astype(np.uint8)
        np.savez(data / f"{name}.npz", images=pixels, classes=np.repeat(np.arange(60), 5), parts=parts)
    began = time.monotonic()
    count = train_table(NETWORKS, data, tmp_path, device="cpu", seconds=40, steps=2, processes=2)
    assert time.monotonic() - began < 50
    records = read_records(tmp_path / "networks.jsonl")
    assert len(records) == count
    assert sum(line["kind"] == "plan" for line in records) == 1
    runs = [
        json.dumps([line[key] for key in ("setup", "variant", "division", "choosing", "lr", "seed")])
        for line in records
        if line["kind"] == "run"
    ]
    assert len(runs) == len(set(runs)) > 2


def test_settings_of_the_setups_are_those_of_the_product() -> None:
    for setup in NETWORKS.setups:
        from benchmarks.experiments.catalogue import load_setups
        from benchmarks.experiments.runs import Job

        config: Config = parse_config(Job(NETWORKS, load_setups()[setup], Path(), 0).recipe())
        assert config.model.backbone == "conv4"
        assert config.model.embedding_dim == 64
