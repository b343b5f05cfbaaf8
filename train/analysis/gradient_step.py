"""One gradient step of a loss on the embeddings of a batch (SCT, fig. 7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from train.analysis.specs import NamedLoss
from train.losses.view import normalize


def sample_batch(embeddings: Embeddings, *, classes: int, per_class: int, seed: int = 0) -> Embeddings:
    """Sample a batch of P classes x K images, as in training.

    Args:
        embeddings: Embeddings to sample from; synthetic points are left out.
        classes: P; fewer if fewer classes have K images.
        per_class: K.
        seed: Seed of the sample.

    Raises:
        InputError: Fewer than two classes with K images, or K below 2.
    """
    if per_class < 2:
        raise InputError(f"{per_class} image per class leaves no positives; take at least 2")
    images = embeddings.take(~embeddings.synthetic)
    numbers = images.classes
    enough = np.flatnonzero(np.bincount(numbers) >= per_class)
    if min(len(enough), classes) < 2:
        raise InputError(
            f"{embeddings.name}: a batch needs at least 2 classes of {per_class} images; "
            f"{len(enough)} of its classes have as many"
        )
    random = np.random.default_rng(seed)
    drawn = random.choice(enough, min(classes, len(enough)), replace=False)
    rows = [random.choice(np.flatnonzero(numbers == one), per_class, replace=False) for one in drawn]
    return images.take(np.concatenate(rows))


def take_step(before: Embeddings, of: NamedLoss, *, size: float = 0.1) -> Embeddings:
    """Return the batch after one gradient step of a loss on the embeddings themselves.

    Every embedding moves along its own gradient and back to unit length. Losses differ in scale, so the step
    is scaled: `size` is the root mean square of the distances that the embeddings move before they are
    normalized. Random choices of a loss use seed 0.

    Raises:
        InputError: A size that is not above 0.
    """
    if not 0 < size < np.inf:
        raise InputError(f"the step is {size:g}; choose a number above 0")
    vectors = torch.from_numpy(before.vectors).double().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        value = of.loss.double()(vectors, torch.from_numpy(before.classes))
    (gradient,) = torch.autograd.grad(value, vectors)
    with torch.no_grad():
        length = gradient.square().sum(1).mean().sqrt()
        move = gradient * (size / length) if length > 0 else gradient
        after, _ = normalize(vectors - move)
    return replace(before, name="after one step", vectors=after.float().numpy())
