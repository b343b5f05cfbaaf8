"""Heads by size of the data: parts, training as by `lookalike train`, rules, verdicts, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.experiments import advice, divisions, sizes
from benchmarks.experiments.catalogue import Claim, Setup, Sizes, Table, load_tables
from benchmarks.experiments.page import expand
from benchmarks.experiments.results import complete, is_collected, load
from benchmarks.experiments.runs import Job
from retrieval import metrics
from retrieval.errors import InputError
from tests.benchmarks.test_divisions import write_blocks
from train import data
from train.data import LabelledImage
from train.data.splits import hold_out
from train.loop.frozen_backbone import FrozenBackbone
from train.loop.refit import train_run
from train.loop.run_folder import Run, initial_model
from train.settings import parse_config

SETS = {"Cars": ("cars", "cars-squeezenet"), "Birds": ("birds",)}
GROUPS = {"few": 12, "more": None}


def claim(better: str, than: str) -> Claim:
    return Claim("ours", f"{better} is better", better, than, "recall_at_1", False, ())


def table(*claims: Claim, sets: Mapping[str, tuple[str, ...]] = SETS, count: int = 3) -> Table:
    return replace(
        load_tables()["sizes"],
        name="t",
        setups={setup: {} for setups in sets.values() for setup in setups},
        variants={"a": {}, "b": {}},
        untrained=("features",),
        claims=claims,
        divisions=count,
        sets=sets,
        sizes=Sizes((2, None), (3,), GROUPS),
    )


def results(value: Any, count: int = 3) -> dict[str, Any]:
    """Return results; `value` gives MAP@R of the features, a and b by setup, division, stage and images."""

    def cell(setup: str, number: int, stage: str, images: int) -> dict[str, Any]:
        features, *trained = value(setup, number, stage, images)
        both = [{"recall_at_1": one / 2, "map_at_r": one} for one in (features, *trained)]
        variants = {
            name: {"best": one, "last": {key: number - 0.1 for key, number in one.items()}, "epoch": 1}
            for name, one in zip("ab", both[1:], strict=True)
        }
        return {"stage": stage, "images": images, "untrained": {"features": both[0]}, "variants": variants}

    setups = [setup for names in SETS.values() for setup in names]
    return {
        "setups": {
            f"{setup}-division-{number}": {
                "cells": [
                    cell(setup, number, stage, images)
                    for stage in (sizes.FOLDS, sizes.TEST)
                    for images in (6, 30, 60)
                ]
            }
            for setup in setups
            for number in range(count)
        }
    }


# ---- parts


def test_parts_grow_and_hold_each_other() -> None:
    images = [LabelledImage(Path(f"{c}/{n}.png"), f"{c}") for c in range(9) for n in range(2 + c % 3)]
    found = list(sizes.parts(Sizes((2, 4, None), (2, 3, 9), GROUPS), images, seed=1))
    assert len({frozenset(part) for part in found}) == len(found), "none comes twice"
    assert set(found[-1]) == set(images)
    for part in found:
        names = {image.label for image in part}
        assert len(names) in (2, 4, 9)
        assert all(sum(image.label == name for image in part) >= 2 for name in names)
    small, large = set(found[0]), set(found[-1])
    assert small < large
    other = next(sizes.parts(Sizes((2,), (2,), GROUPS), images, seed=2))
    assert {image.label for image in other} != {image.label for image in found[0]}


# ---- rules and verdicts


def test_rules_take_what_training_halves_find_and_are_measured_on_test_halves() -> None:
    """On the training halves a is best for few images, b for more; on the test halves all differs."""

    def value(setup: str, number: int, stage: str, images: int) -> tuple[float, float, float]:
        if stage == sizes.FOLDS:
            return (0.2, 0.5, 0.3) if images <= 12 else (0.2, 0.4, 0.6)
        return 0.1 * number, 0.3, 0.3 + images / 100

    asked = table(claim("by-size", "features"), claim("one", "a"), claim("other-sets", "a"))
    found = results(value)
    for rules in sizes.choices(asked, found).values():
        assert rules["by-size"] == rules["other-sets"] == {"few": "a", "more": "b"}
        assert set(rules["one"].values()) == {"b"}, "two of three sizes"
    seen = sizes.view(asked, found)["setups"]
    for name, one in seen.items():
        number = int(name[-1])
        assert one["untrained"]["features"]["map_at_r"] == pytest.approx(0.1 * number)
        values = {key: each["last"]["map_at_r"][0] for key, each in one["variants"].items()}
        assert values["by-size"] == pytest.approx(np.mean([0.3, 0.3 + 0.3, 0.3 + 0.6]))
        assert values["one"] == values["b"] == pytest.approx(np.mean([0.36, 0.6, 0.9]))
        assert values["a-last"] == pytest.approx(0.2)
    few = sizes.view(asked, found, "few")["setups"]["birds-division-1"]["variants"]
    assert few["by-size"]["last"]["map_at_r"] == [pytest.approx(0.3)]
    assert few["one"]["last"]["map_at_r"] == [pytest.approx(0.36)]


def test_a_rule_of_other_sets_has_not_seen_its_own() -> None:
    def value(setup: str, number: int, stage: str, images: int) -> tuple[float, float, float]:
        return (0.1, 0.9, 0.2) if setup == "birds" else (0.1, 0.2, 0.3)

    chosen = sizes.choices(table(claim("other-sets", "a")), results(value))
    assert set(chosen["Birds", 0]["other-sets"].values()) == {"b"}
    assert set(chosen["Cars", 0]["other-sets"].values()) == {"a"}
    assert set(chosen["Cars", 0]["by-size"].values()) == {"a"}


def test_all_tests_of_all_sizes_are_corrected_together() -> None:
    random = np.random.default_rng(0)

    def value(setup: str, number: int, stage: str, images: int) -> tuple[float, float, float]:
        return 0.2, 0.3 + 0.01 * random.normal(), 0.3 + 0.01 * random.normal()

    asked = table(claim("a", "features"), claim("b", "a"))
    found = results(value)
    judged = sizes.judge(asked, found)
    raw = [
        divisions.compare(asked, sizes.view(asked, found, group), one.better, one.than, metric)
        for one in asked.claims
        for metric in divisions.METRICS
        for group in (sizes.ALL, *GROUPS)
    ]
    smallest = min(one.p for one in raw if one is not None and one.p is not None)
    corrected = [each.found.p for one in judged for each in (one.every, *one.of_group.values())]
    assert len(corrected) == len(raw) == 12
    assert min(p for p in corrected if p is not None) == pytest.approx(12 * smallest)


# ---- advice


def test_advice_is_refused_where_its_verdict_has_changed() -> None:
    random = np.random.default_rng(0)
    noise = {key: random.normal() for key in range(1000)}

    def value(setup: str, number: int, stage: str, images: int) -> tuple[float, float, float]:
        some = 0.001 * noise[(100 * number + 7 * len(setup) + images) % 1000]
        return 0.2, 0.3 + some, 0.3 - (0.05 if setup == "birds" else -0.05) - some

    asked, found = table(claim("features", "a"), claim("b", "a")), results(value)
    text = "{{decided t a>features map_at_r}}"
    divided = {"t": asked}
    assert expand(text, {"t": found}, {}, divided).endswith("on 6 of 6 divisions")
    grouped = expand("{{decided t a>features map_at_r few}}", {"t": found}, {}, divided)
    assert grouped.startswith("MAP@R +10.0 [")
    assert "on 3 of 6 divisions" in expand("{{undecided t b>a map_at_r}}", {"t": found}, {}, divided)
    for wrong in (
        "{{decided t features>a map_at_r}}",  # the other way round
        "{{decided t b>a map_at_r}}",
        "{{undecided t features>a map_at_r}}",
        "{{decided t b>features map_at_r}}",  # not tested
    ):
        with pytest.raises(InputError, match="no such result"):
            expand(wrong, {"t": found}, {}, divided)
    listed = advice.disagreements(asked, found)
    assert "b is better (*b > a*, MAP@R): Cars +5.0" in listed
    assert listed.count("b is better") == listed.count("(0 of 3)") == 2, "by both metrics"
    assert "features" not in listed, "there the sets agree"


# ---- training


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_blocks(tmp_path / "data", 16)
    raw = {"name": "multi-similarity", "mining": {"name": "vthm", "margin": 0.1}}
    asked = replace(
        table(claim("by-size", "a"), claim("a", "features"), sets={"Blocks": ("blocks",)}, count=1),
        settings={
            "batch": {"classes": 4, "per_class": 3},
            "epochs": 4,
            "split": {"validation": 0.5, "choice": "always"},
            "optimizer": {"name": "adamw", "weight_decay": 0.01},
            "schedule": {"name": "cosine", "warmup": 1},
        },
        setups={"blocks": {"data": "csv:blocks-division-{division}.csv"}},
        variants={
            "a": {"loss": raw, "optimizer": {"lr": 0.01}, "model": {"init": "pca-half-whitened"}},
            "b": {"loss": raw, "optimizer": {"lr": 0.1}, "model": {"init": "pca"}},
        },
        untrained=("features", "pca-half-whitened", "pca-whitened", "lda"),
        baseline="a",
        sizes=Sizes((4, None), (3, 6), GROUPS),
    )
    settings = {
        "data": "csv:blocks.csv",
        "model": {"backbone": "conv4", "trainable": 0, "embedding_dim": 16},
        "preprocess": {"size": 16},
        "augment": {"flip": False, "rotate": 0, "scale": 0, "shift": 0},
        "loader": {"cache": str(tmp_path / "cache"), "workers": 0},
        "device": "cpu",
    }
    return Job(asked, Setup("blocks", "Blocks", settings), tmp_path / "out", 0)


def test_a_small_table_from_images_to_the_page(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert complete(job, tmp_path / "data", folder) == 0
    found = load("t", folder)
    assert found is not None
    cells = found["setups"]["blocks-division-0"]["cells"]
    assert [(cell["stage"], cell["classes"], cell["images"]) for cell in cells] == [
        ("folds", 4, 12),
        ("folds", 4, 24),
        ("test", 4, 12),
        ("test", 4, 24),
        ("test", 8, 24),
        ("test", 8, 48),
    ]
    for cell in cells:
        assert set(cell["untrained"]) == set(job.table.untrained)
        for one in cell["variants"].values():
            assert 0 <= one["epoch"] <= 4
            assert one["epoch"] != 4 or one["best"] == one["last"]
    text = expand("{{section t}}", {"t": found}, {}, {"t": job.table})
    assert "| by-size is better (ours) | by-size > a |" in text
    assert "*by-size*, few: " in text
    assert is_collected(job, folder)
    grown = replace(job, table=replace(job.table, sizes=Sizes((3, None), (3,), GROUPS)))
    assert not is_collected(grown, folder)


@pytest.mark.parametrize("method", ["a", "b"])
def test_heads_are_those_of_a_run_of_the_trainer(method: str, job: Job, tmp_path: Path) -> None:
    """The same start, batches, rates, held-out classes and choice of the epoch, so the same weights."""
    values = {**job.recipe(), **job.table.variants[method], "compile": "none", "precision": "fp32"}
    values["model"] = {**job.recipe()["model"], **job.table.variants[method]["model"]}
    values["optimizer"] = {**job.recipe()["optimizer"], **job.table.variants[method]["optimizer"]}
    config = parse_config(values)
    with chdir(tmp_path / "data"):
        dataset = data.load(config.data)
        run = Run.start(tmp_path / "run", config)
        train_run(run, dataset)
        files = sorted(image.path for image in dataset.train)
        model = initial_model(config)
        vectors = FrozenBackbone(model, config).features(files).vectors
        features = sizes.Features(vectors, {str(path): row for row, path in enumerate(files)})
        learned, held_out = hold_out(dataset.train, config.split, config.seed)
        head = sizes.build_head(vectors.shape[1], config.model.embedding_dim, None, "default")
        fitted = sizes.fit_projection(
            config.model.init,
            features.of(learned),
            sizes.class_numbers(learned),
            config.model.embedding_dim,
        )
        sizes.fit_head(head, *fitted)
        best, last, epoch = sizes._train(head, config, features, learned, held_out)
    for which, ours in (("best", best), ("last", last)):
        theirs = run.trained(which).head
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
    records = [one for one in run.metrics() if "map_at_r" in one]
    assert epoch == max(range(len(records)), key=lambda number: records[number]["map_at_r"])


def test_scores_are_those_of_the_metrics() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(30, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.arange(30) % 6
    found = sizes._score(vectors, labels)
    assert found["recall_at_1"] == pytest.approx(metrics.recall_at_k(vectors, labels, ks=(1,))[1])
    assert found["map_at_r"] == pytest.approx(metrics.map_at_r(vectors, labels))
