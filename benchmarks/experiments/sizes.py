"""Heads on parts of the training classes: how much they gain depends on how much there is to learn from.

The features of the images are computed once, and every head of a division learns from them in one process,
by the sampler, the losses, the starts and the held-out classes of a run of `lookalike train`. A part of the
training half is drawn for each number of classes and of images a class, twice: from all of its classes, to
be measured on the test half, and from half of them, to be measured on the other half. The latter choose
rules, which are measured where they have not chosen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

from benchmarks.experiments import divisions
from benchmarks.experiments.catalogue import Claim, Sizes, Table, division_name, merge
from benchmarks.experiments.data import half
from benchmarks.experiments.divisions import METRICS, DivisionVerdict, Stratified
from benchmarks.experiments.runs import Job
from benchmarks.experiments.verdicts import word_of
from retrieval import metrics
from retrieval.metrics import per_query
from retrieval.metrics.statistics import holm
from train import data
from train.config import Config
from train.data import LabelledImage, class_numbers
from train.data.splits import draw_distractors, hold_out
from train.input.sampler import ClassBatchSampler
from train.loop.frozen_backbone import FrozenBackbone
from train.loop.optimization import rate_factor, set_learning_rates
from train.loop.run_folder import initial_loss, initial_model
from train.models.heads import build_head, fit_head, fit_projection
from train.settings import parse_config

FOLDS, TEST = "folds", "test"
ALL = "all sizes"
_MOST_TESTED = 20  # images of each class that is measured
_PROJECTED = 128  # dimensions of baselines that leave some out


@dataclass(frozen=True)
class Features:
    """Features of the images of a set.

    Attributes:
        vectors: float32 [N, C].
        row: Row of each image.
    """

    vectors: np.ndarray
    row: Mapping[str, int]

    def of(self, images: Sequence[LabelledImage]) -> np.ndarray:
        """Return the features of images, float32 [n, C]."""
        return self.vectors[[self.row[str(image.path)] for image in images]]


def measure(job: Job) -> dict[str, Any]:
    """Train and measure all heads of a division; return its results.

    Args:
        job: A table with sizes on a setup in a division; its data are in the current folder.
    """
    torch.set_num_threads(1)
    config = parse_config(job.recipe())
    dataset = data.load(config.data)
    files = sorted({image.path for image in (*dataset.train, *dataset.test)})
    found = FrozenBackbone(initial_model(config), config, show_progress=True).features(files)
    assert not found.bad, "an image cannot be read"
    features = Features(found.vectors, {str(path): row for row, path in enumerate(files)})
    assert job.division is not None
    assert job.table.sizes is not None
    trained = half({image.label for image in dataset.train}, job.division)
    inner = [image for image in dataset.train if image.label in trained]
    outer = [image for image in dataset.train if image.label not in trained]
    cells: list[dict[str, Any]] = []
    stages = [(FOLDS, inner, outer)] if job.table.has_rules else []
    for stage, learned, tested in (*stages, (TEST, dataset.train, dataset.test)):
        kept = draw(tested, None, _MOST_TESTED, job.division)
        cells += [
            {"stage": stage, **_cell(job, features, part, kept)}
            for part in parts(job.table.sizes, learned, job.division)
        ]
    return {"settings": job.digest, "cells": cells}


def parts(sizes: Sizes, images: Sequence[LabelledImage], seed: int) -> Iterator[list[LabelledImage]]:
    """Yield the parts of different sizes, the larger ones with the images of the smaller ones."""
    done = set()
    for classes in sizes.classes:
        for count in sizes.images:
            part = draw(images, classes, count, seed)
            names = frozenset(image.path for image in part)
            if names not in done:
                done.add(names)
                yield part


def draw(images: Sequence[LabelledImage], classes: int | None, count: int, seed: int) -> list[LabelledImage]:
    """Draw at most `count` images of each of at most `classes` classes; `None` for all classes."""
    random = np.random.default_rng([seed, 7])
    names = random.permutation(sorted({image.label for image in images})).tolist()
    of_class = {name: [image for image in images if image.label == name] for name in names}
    drawn = {name: random.permutation(len(of_class[name])) for name in names}
    return [of_class[name][place] for name in names[:classes] for place in sorted(drawn[name][:count])]


def _cell(
    job: Job, features: Features, part: Sequence[LabelledImage], tested: Sequence[LabelledImage]
) -> dict[str, Any]:
    """Return what all methods find after learning from a part."""
    table = job.table
    configs = {
        name: parse_config(merge(job.recipe(), variant, {"seed": job.division or 0}))
        for name, variant in table.variants.items()
    }
    some = next(iter(configs.values()))
    learned, held_out = hold_out(part, some.split, some.seed)
    given, labels = features.of(learned), class_numbers(learned)
    searched, truth = features.of(tested), class_numbers(tested)

    def score(head: nn.Module) -> dict[str, float]:
        return _score(_embed(head, searched), truth)

    starts = dict[tuple[str, int], nn.Module]()

    def start(kind: str, dim: int) -> nn.Module:
        width = given.shape[1]
        dim = min(dim, width if kind in ("pca", "pca-half-whitened") else min(width, len(given) - 1))
        if (kind, dim) not in starts:
            head = build_head(width, dim, None, "default")
            fit_head(head, *fit_projection(kind, given, labels, dim))
            starts[kind, dim] = head
        return copy.deepcopy(starts[kind, dim])

    dims = {"pca-half-whitened": job.recipe()["model"]["embedding_dim"]}
    untrained = {
        name: score(nn.Identity() if name == "features" else start(name, dims.get(name, _PROJECTED)))
        for name in table.untrained
    }
    variants = {}
    for name, config in configs.items():
        head = start(config.model.init, config.model.embedding_dim)
        best, last, epoch = _train(head, config, features, learned, held_out)
        values = score(best)
        variants[name] = {
            "best": values,
            "last": values if best is last else score(last),
            "epoch": epoch,
        }
    return {
        "classes": len({image.label for image in part}),
        "images": len(part),
        "untrained": untrained,
        "variants": variants,
    }


def _train(
    head: nn.Module,
    config: Config,
    features: Features,
    learned: Sequence[LabelledImage],
    held_out: Sequence[LabelledImage],
) -> tuple[nn.Module, nn.Module, int]:
    """Train a head; return it at the best and at the last epoch, and the number of the best epoch.

    The best epoch is that of a run with `split.choice: always`: by MAP@R of the held-out images among
    themselves and the training images, the start included.
    """
    given, numbers = torch.from_numpy(features.of(learned)), class_numbers(learned)
    labels = torch.from_numpy(numbers)
    dim = next(head.parameters()).shape[0]
    sized = config.model_copy(update={"model": config.model.model_copy(update={"embedding_dim": dim})})
    loss = initial_loss(sized, int(numbers.max()) + 1)
    sampler = ClassBatchSampler(numbers, config.batch, config.seed)
    rates = {"lr": config.optimizer.lr, "initial_lr": config.optimizer.lr}
    group = {"params": [*head.parameters()], "weight_decay": config.optimizer.weight_decay, **rates}
    optimizer = torch.optim.AdamW([group], fused=True)
    others = draw_distractors(learned, config.split, config.seed)
    beside, names = features.of([*held_out, *others]), class_numbers([*held_out, *others])

    def value() -> float:
        return _score(_embed(head, beside), names, len(held_out))["map_at_r"]

    best, best_value, best_epoch, step = copy.deepcopy(head), value(), 0, 0
    for epoch in range(config.epochs):
        for batch in sampler.epoch(epoch):
            set_learning_rates(
                optimizer, rate_factor(config.schedule, step, sampler.per_epoch, config.epochs)
            )
            found = loss(head(given[batch]), labels[batch])
            optimizer.zero_grad()
            found.backward()
            optimizer.step()
            step += 1
        if (now := value()) > best_value:
            best, best_value, best_epoch = copy.deepcopy(head), now, epoch + 1
    return (head if best_epoch == config.epochs else best), head, best_epoch


@torch.inference_mode()
def _embed(head: nn.Module, vectors: np.ndarray) -> np.ndarray:
    found: np.ndarray = normalize(head(torch.from_numpy(vectors))).numpy()
    return found


def _score(vectors: np.ndarray, labels: np.ndarray, queries: int | None = None) -> dict[str, float]:
    """Return the metrics of the first vectors, by default of all, each searched among all others."""
    count = len(vectors) if queries is None else queries
    most = int(np.bincount(labels[:count]).max()) - 1
    ranking = metrics.rank(
        vectors[:count], labels[:count], vectors, labels, k=max(1, most), own=np.arange(count)
    )
    values = {"recall_at_1": per_query.recall(ranking, (1,))[:, 0], "map_at_r": per_query.map_at_r(ranking)}
    return {key: float(metrics.mean(each)) for key, each in values.items()}


# ---- choices on training classes, and verdicts on new ones


@dataclass(frozen=True)
class SizeVerdict:
    """A claim tested with one metric, over all sizes and in each group.

    Attributes:
        every: Verdict over all sizes.
        of_group: Group -> verdict there, as far as it is measured.
    """

    every: DivisionVerdict
    of_group: Mapping[str, DivisionVerdict]


def choices(table: Table, results: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, dict[str, str]]]:
    """Return what each rule takes in each division of each set: set, division -> rule -> group -> method.

    A choice is by MAP@R on classes of the training half; sets, then their backbones and sizes count alike.
    """
    assert table.sizes is not None
    groups = list(table.sizes.groups)
    done = divisions.measured(table, results)
    found: dict[tuple[str, int], dict[str, dict[str, str]]] = {}
    for title, numbers in done.items():
        others = [(name, number) for name, held in done.items() if name != title for number in held]
        elsewhere = {group: _best(table, results, others, group) for group in groups} if others else {}
        for number in numbers:
            same = [(name, number) for name, held in done.items() if number in held]
            found[title, number] = {
                "by-size": {group: _best(table, results, same, group) for group in groups},
                "one": dict.fromkeys(groups, _best(table, results, same, None)),
                **({"other-sets": elsewhere} if elsewhere else {}),
            }
    return found


def shared_choice(table: Table, results: Mapping[str, Any]) -> dict[str, str]:
    """Return what all training halves choose together: group -> method, and that of all sizes."""
    assert table.sizes is not None
    done = divisions.measured(table, results)
    units = [(title, number) for title, numbers in done.items() for number in numbers]
    chosen = {group: _best(table, results, units, group) for group in table.sizes.groups}
    return {ALL: _best(table, results, units, None), **chosen}


def view(table: Table, results: Mapping[str, Any], group: str = ALL) -> dict[str, Any]:
    """Return results on the test halves in the form of other tables with divisions: means over some sizes.

    Beside the methods there are the rules, and NAME-last: a method after its last epoch.
    """
    chosen = choices(table, results) if table.has_rules else {}
    setups = {}
    for title, names in table.sets.items():
        for number in range(table.divisions):
            rules = chosen.get((title, number), {})
            for name in (division_name(setup, number) for setup in names):
                cells = _cells(table, results["setups"].get(name), TEST, group)
                if cells:
                    setups[name] = _seen(table, cells, rules)
    return {"setups": setups}


def judge(table: Table, results: Mapping[str, Any]) -> list[SizeVerdict]:
    """Return the verdicts on the claims of a table with sizes; all p-values are corrected together."""
    assert table.sizes is not None
    views = {group: view(table, results, group) for group in (ALL, *table.sizes.groups)}
    found = [
        (claim, metric, group, one)
        for claim in table.claims
        for metric in METRICS
        for group, seen in views.items()
        if (one := divisions.compare(table, seen, claim.better, claim.than, metric))
    ]
    corrected = holm([1.0 if one.p is None else one.p for *_, one in found])
    verdicts: dict[tuple[Claim, str], dict[str, DivisionVerdict]] = {}
    for (claim, metric, group, one), p in zip(found, corrected, strict=True):
        word = word_of(p, one.difference, lower=claim.lower)
        tested: Stratified = replace(one, p=None if one.p is None else p)
        verdicts.setdefault((claim, metric), {})[group] = DivisionVerdict(claim, metric, tested, word)
    return [SizeVerdict(of_group.pop(ALL), of_group) for of_group in verdicts.values()]


def _best(
    table: Table, results: Mapping[str, Any], units: Sequence[tuple[str, int]], group: str | None
) -> str:
    """Return the method that finds most on classes of the training halves."""
    names = [*table.untrained, *table.variants]
    of_set: dict[str, list[list[float]]] = {}
    for title, number in units:
        for setup in table.sets[title]:
            cells = _cells(table, results["setups"][division_name(setup, number)], FOLDS, group or ALL)
            if cells:
                of_set.setdefault(title, []).append(
                    [float(np.mean([_value(cell, name, METRICS[1]) for cell in cells])) for name in names]
                )
    means = np.mean([np.mean(values, axis=0) for values in of_set.values()], axis=0)
    return names[int(np.argmax(means))]


def _cells(table: Table, results: Mapping[str, Any] | None, stage: str, group: str) -> list[dict[str, Any]]:
    assert table.sizes is not None
    every = results["cells"] if results else []
    return [
        cell for cell in every if cell["stage"] == stage and group in (ALL, table.sizes.group(cell["images"]))
    ]


def _value(cell: Mapping[str, Any], name: str, metric: str) -> float:
    if name in cell["untrained"]:
        return float(cell["untrained"][name][metric])
    stem = name.removesuffix("-last")
    return float(cell["variants"][stem]["best" if name == stem else "last"][metric])


def _seen(
    table: Table, cells: Sequence[Mapping[str, Any]], rules: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the means over sizes of a setup in a division."""
    assert table.sizes is not None
    sizes = table.sizes

    def mean(name: str, metric: str) -> float:
        taken = [rules[name][sizes.group(cell["images"])] if name in rules else name for cell in cells]
        return float(np.mean([_value(cell, one, metric) for cell, one in zip(cells, taken, strict=True)]))

    trained = [*table.variants, *(f"{name}-last" for name in table.variants), *rules]
    return {
        "untrained": {name: {key: mean(name, key) for key in METRICS} for name in table.untrained},
        "variants": {
            name: {"seeds": [0], "last": {key: [mean(name, key)] for key in METRICS}, "diagnostics": {}}
            for name in trained
        },
    }
