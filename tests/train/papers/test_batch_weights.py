"""Weights of the pairs of a batch: the closed forms of RAW, its theorem 3.1, and the miner's own rule."""

from __future__ import annotations

import json
from pathlib import Path

import click.testing
import numpy as np
import pytest
import torch

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from train.papers.analyze.weights import weights as command
from train.papers.batch_weights import BatchWeights, batch_weights, batch_weights_figure
from train.papers.specs import read_losses


def clusters(classes: int = 5, images: int = 4, dim: int = 6) -> Embeddings:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), images)
    vectors = 0.8 * random.normal(size=(classes, dim))[labels] + random.normal(size=(len(labels), dim))
    return Embeddings("clusters", vectors, labels)


def found_for(spec: str, *, seed: int = 0) -> BatchWeights:
    (of,) = read_losses((spec,), num_classes=5, embedding_dim=20)
    return batch_weights(clusters(), of, seed=seed)


def test_raw_weights_equal_equations_15_and_16() -> None:
    """In a loop over anchors, with the rule of section 5.1 for the pairs that count."""
    batch, found = clusters(), found_for("raw")
    s = batch.vectors.astype(np.float64) @ batch.vectors.T.astype(np.float64)
    expected = np.zeros_like(s)
    for i, label in enumerate(batch.labels):
        positives = [j for j in range(len(s)) if batch.labels[j] == label and j != i]
        negatives = [j for j in range(len(s)) if batch.labels[j] != label]
        kept = [j for j in positives if s[i, j] < max(s[i, negatives]) + 0.1]
        for j in kept:
            relative = sum(np.exp(2 * (s[i, j] - s[i, k])) for k in kept)
            expected[i, j] = 1 / (relative + np.exp(2 * (s[i, j] - 0.5)))
        kept = [j for j in negatives if s[i, j] > min(s[i, positives]) - 0.1]
        for j in kept:
            relative = sum(np.exp(-50 * (s[i, j] - s[i, k])) for k in kept)
            expected[i, j] = 1 / (relative + np.exp(-50 * (s[i, j] - 0.5)))
    np.testing.assert_allclose(found.weight, expected, atol=1e-6)
    selected = expected != 0
    assert found.selected(found.positive) == pytest.approx(selected[found.positive].mean())
    assert found.selected(found.negative) == pytest.approx(selected[found.negative].mean())
    assert 0 < found.selected(found.negative) < 1


@pytest.mark.parametrize(
    "spec", ["raw", "triplet-cosine", "lifted-generalized", "{name: triplet-cosine, negatives: optimal}"]
)
def test_weighted_cosines_have_the_gradient_of_the_loss(spec: str) -> None:
    """Theorem 3.1: sum of w s over negatives minus that over positives, by the embeddings."""
    batch, found = clusters(), found_for(spec)
    (of,) = read_losses((spec,))
    x = torch.from_numpy(batch.vectors).double().requires_grad_()
    (expected,) = torch.autograd.grad(of.loss.double()(x, torch.from_numpy(batch.classes)), x)
    unit = torch.nn.functional.normalize(x)
    sign = torch.from_numpy(found.negative * 1.0 - found.positive * 1.0)
    surrogate = (sign * torch.from_numpy(found.weight) * (unit @ unit.T)).sum() / len(x)
    (gradient,) = torch.autograd.grad(surrogate, x)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_random_miners_are_drawn_once_by_seed() -> None:
    spec = "{name: margin, mining: {negative: random}}"
    first, again, other = found_for(spec), found_for(spec), found_for(spec, seed=1)
    np.testing.assert_array_equal(first.weight, again.weight)
    assert (first.weight != other.weight).any()


def test_figure_is_reproducible() -> None:
    found = [found_for("raw"), found_for("contrastive")]
    first, second = (render_figure(lambda f: batch_weights_figure(found, f), 10, 5) for _ in range(2))
    assert first == second


def test_command_weighs_the_pairs_of_a_sampled_batch(tmp_path: Path) -> None:
    clusters(classes=8, images=6).save(tmp_path / "e.npz")
    source, out = str(tmp_path / "e.npz"), ["--out", str(tmp_path / "x.svg")]
    words = [source, "--loss", "contrastive", "--loss", "raw", "--classes", "5", "--per-class", "4", *out]
    done = click.testing.CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
    contrastive, raw = json.loads(done.stdout)
    assert len(raw["positive"]["weight"]) == 20 * 3
    assert len(raw["negative"]["cosine"]) == 20 * 16
    for cosine, weight in zip(*(contrastive["negative"][key] for key in ("cosine", "weight")), strict=True):
        assert weight == (cosine > 0.5)  # eq. 6
    assert contrastive["positive"]["total"] == 20 * 3
    with pytest.raises(InputError, match="the cosines are those of the batch"):
        click.testing.CliRunner().invoke(command, [*words, "--positives", "0.5"], catch_exceptions=False)
