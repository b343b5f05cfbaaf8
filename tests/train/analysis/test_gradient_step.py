"""One gradient step of a loss on the embeddings of a batch."""

from pathlib import Path

import click.testing
import numpy as np
import pytest
import torch

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from train.analysis.gradient_step import sample_batch, take_step
from train.analysis.specs import NamedLoss, read_losses
from train.commands.analyze.losses import step as command


@pytest.fixture
def images() -> Embeddings:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(9), [6, 6, 6, 6, 6, 6, 6, 3, 1])
    vectors = random.normal(size=(9, 8))[labels] + random.normal(size=(len(labels), 8))
    return Embeddings("images", vectors, labels)


def read(spec: str) -> NamedLoss:
    (of,) = read_losses((spec,), num_classes=5, embedding_dim=8)
    return of


def test_batch_has_p_classes_of_k_images(images: Embeddings) -> None:
    drawn = sample_batch(images, classes=5, per_class=4, seed=1)
    labels, counts = np.unique(drawn.labels, return_counts=True)
    assert len(labels) == 5
    assert (counts == 4).all()
    assert len(np.unique(drawn.vectors, axis=0)) == 20
    assert (sample_batch(images, classes=5, per_class=4, seed=1).vectors == drawn.vectors).all()
    all_classes = sample_batch(images, classes=50, per_class=4)
    assert len(np.unique(all_classes.labels)) == 7  # the other classes are too small


@pytest.mark.parametrize(
    "spec", ["triplet-nca", "sct", "raw", "{name: n-pair, negatives: optimal}", "proxy-nca"]
)
def test_small_step_changes_the_loss_to_first_order_of_its_gradient(images: Embeddings, spec: str) -> None:
    """By -(size) x (squared tangent gradient) / (root mean square of the gradient)."""
    drawn, of = sample_batch(images, classes=5, per_class=4), read(spec)
    labels = torch.from_numpy(drawn.classes)
    after = take_step(drawn, of, size=1e-4)

    def value(embeddings: Embeddings) -> float:
        return of.loss(torch.from_numpy(embeddings.vectors).double(), labels).item()

    x = torch.from_numpy(drawn.vectors).double().requires_grad_()
    (gradient,) = torch.autograd.grad(of.loss(x, labels), x)
    tangent = gradient - (gradient * x).sum(1, keepdim=True).detach() * x.detach()
    length = gradient.square().sum(1).mean().sqrt()
    expected = -1e-4 * float(tangent.square().sum() / length)
    assert value(after) - value(drawn) == pytest.approx(expected, rel=0.02)


def test_size_is_the_root_mean_square_of_the_moves(images: Embeddings) -> None:
    drawn = sample_batch(images, classes=5, per_class=4)
    moved = take_step(drawn, read("triplet-nca"), size=0.01).vectors - drawn.vectors
    assert np.sqrt((moved**2).sum(1).mean()) == pytest.approx(0.01, rel=0.02)


def test_loss_without_gradient_moves_nothing(images: Embeddings) -> None:
    drawn = sample_batch(images, classes=5, per_class=4)
    after = take_step(drawn, read("{name: triplet, margin: -5.0}"))
    np.testing.assert_allclose(after.vectors, drawn.vectors, atol=1e-7)


def test_invalid_batches_and_sizes_are_refused(images: Embeddings) -> None:
    with pytest.raises(InputError, match="at least 2 classes of 7 images; 0 of its classes"):
        sample_batch(images, classes=5, per_class=7)
    with pytest.raises(InputError, match="no positives"):
        sample_batch(images, classes=5, per_class=1)
    with pytest.raises(InputError, match="above 0"):
        take_step(images, read("sct"), size=-1)


def test_step_command(images: Embeddings, tmp_path: Path) -> None:
    file, out = tmp_path / "images.npz", tmp_path / "step.svg"
    images.save(file)
    words = [str(file), "--loss", "sct", "--loss", "{name: triplet, negatives: optimal}", "--out", str(out)]
    done = click.testing.CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "triplet (negatives: optimal)" in done.stdout
    first = out.read_bytes()
    click.testing.CliRunner().invoke(command, words, catch_exceptions=False)
    assert out.read_bytes() == first
    with pytest.raises(InputError, match="at most 4"):
        click.testing.CliRunner().invoke(command, [*words, *["--loss", "raw"] * 3], catch_exceptions=False)
