"""Head: the layers from pooled features to the embedding, and their initialization."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from retrieval.errors import InputError

_MOST_FEATURES = 8192  # of a fitted projection: it needs a matrix of C x C
_HALF_WHITENING = 0.25  # power of the standard deviation, as in `lookalike adapt`


def build_head(features: int, dim: int, hidden: int | None, init: str) -> nn.Module:
    """Build the layers from pooled features [N, C] to embeddings [N, D].

    Initializations: default is torch's own; uniform: U(-1 / sqrt(C), 1 / sqrt(C)); xavier: uniform, Glorot &
    Bengio (2010); kaiming: normal by fan-out, He et al. (2015), as in Proxy Anchor. The last three have zero
    bias. Those fitted to features begin as default, see `fit_projection` and `fit_regression`.

    There is no U[0, 1] for all layers, which Roy et al. (2022, Learning Deep Optimal Embeddings with Sinkhorn
    Divergences, section 4) state: taken literally it cannot be trained. Positive weights of that size make
    the features of vgg9 reach 3e23, their squares overflow, and the unit embeddings and all gradients are 0.
    With batch norm (vgg9-bn, every parameter drawn from U[0, 1]) the embeddings begin with a mean cosine of
    0.9997 and a gradient 1e-5 times that of torch's default; after 120 steps of Adam at 5e-4 the triplet loss
    with margin 0.5 was 0.4997, that of the default 0.44 after 10 steps (CIFAR images of 16 pixels, 10 x 5).
    Only with batch norm left at scale 1 and shift 0 did the loss fall, while most pairs shared one embedding.

    Args:
        features: Number of features C.
        dim: Embedding dimension D.
        hidden: Width of a hidden layer with ReLU; `None` for a linear head.
        init: Initialization of the linear layers.
    """
    if hidden is None:
        head = nn.Linear(features, dim)
        _initialise(head, init)
        return head
    layers = nn.Linear(features, hidden), nn.Linear(hidden, dim)
    for layer in layers:
        _initialise(layer, init)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def _initialise(layer: nn.Linear, how: str) -> None:
    if how == "uniform":
        bound = layer.in_features**-0.5
        nn.init.uniform_(layer.weight, -bound, bound)
    elif how == "xavier":
        nn.init.xavier_uniform_(layer.weight)
    elif how == "kaiming":
        nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    else:
        return
    nn.init.zeros_(layer.bias)


def fit_head(head: nn.Module, weight: np.ndarray, bias: np.ndarray) -> None:
    """Set a linear head to a map fitted to features, from `fit_projection` or `fit_regression`."""
    assert isinstance(head, nn.Linear), "model.hidden is refused with such an initialization"
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        head.bias.copy_(torch.from_numpy(bias))


def fit_projection(
    init: str, features: np.ndarray, labels: np.ndarray, dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear map to features; the mean of the features maps to 0.

    pca: the leading principal components; with fewer than D + 1 images, any directions orthogonal to them
    follow. pca-whitened: each divided by its standard deviation. pca-half-whitened: by a power of it, after
    the variances were shrunk towards their mean (Ledoit & Wolf 2004), so that few images do no harm. lda:
    linear discriminant analysis: the leading directions between the class means after whitening with the
    within-class covariance, shrunk in the same way. If there are fewer than D + 1 classes, those of the
    largest total variance follow.

    The map is scaled so that its rows have norm 1 on average, as those of a random initialization: learning
    rates keep their effect.

    Args:
        init: "pca", "pca-half-whitened", "pca-whitened" or "lda".
        features: float [N, C].
        labels: Class of each row, int [N]; only "lda" uses them.
        dim: Dimension D of the result, at most C.

    Returns:
        Weight float32 [D, C] and bias float32 [D].

    Raises:
        InputError: Too few features or images for D dimensions, or too many features.
    """
    count, width = features.shape
    most = width if init in ("pca", "pca-half-whitened") and count > 1 else min(width, count - 1)
    if dim > most:
        raise InputError(
            f"model.init: {init} gives at most {most} dimensions here ({width} features of "
            f"{count} images), not {dim}; lower model.embedding_dim, or use init=default"
        )
    _check_width(init, width)
    centre = features.mean(0, dtype=np.float64)
    centred = features - centre.astype(np.float32)
    if init == "lda":
        weight = _discriminants(centred, labels, dim)
    else:
        values, weight = _leading(centred.T @ centred / count, dim)
        if init == "pca-half-whitened":
            values = _shrunk(np.maximum(values, 0), centred)
            weight = weight * (values[:, None] / values[0]) ** (-_HALF_WHITENING / 2)
        elif init == "pca-whitened":
            weight = weight / np.sqrt(np.maximum(values, 1e-6 * values[0]))[:, None]
    weight = weight / np.linalg.norm(weight, axis=1).mean()
    return weight.astype(np.float32), (-weight @ centre).astype(np.float32)


def fit_regression(features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a linear map from features to the vectors of a teacher by ridge regression.

    The penalty is the best of a grid by generalized cross-validation (Golub, Heath and Wahba 1979). The map
    is scaled as that of `fit_projection`; the scale does not matter to embeddings, which have unit length.

    Args:
        features: float [N, C].
        targets: float [N, D].

    Returns:
        Weight float32 [D, C] and bias float32 [D].

    Raises:
        InputError: Too many features.
    """
    count, width = features.shape
    _check_width("teacher", width)
    features, targets = features.astype(np.float64), targets.astype(np.float64)
    centre, offset = features.mean(0), targets.mean(0)
    centred = features - centre
    values, axes = np.linalg.eigh(centred.T @ centred)
    kept = values > 1e-12 * values[-1]
    values, axes = values[kept], axes[:, kept]  # rank: K
    along = axes.T @ (centred.T @ (targets - offset))  # [K, D]
    explained = (along**2).sum(1) / values
    unexplained = max(float(((targets - offset) ** 2).sum() - explained.sum()), 0)

    def criterion(penalty: float) -> float:
        lost = penalty / (values + penalty)
        rest = unexplained + float((explained * lost**2).sum())
        free = float(count - 1 - len(values) + lost.sum())  # degrees of freedom
        return rest / (free * free)

    penalty = min(values[-1] * np.logspace(-6, 1, 29), key=criterion)
    weight = (along.T / (values + penalty)) @ axes.T
    bias = offset - weight @ centre
    scale = np.linalg.norm(weight, axis=1).mean()
    return (weight / scale).astype(np.float32), (bias / scale).astype(np.float32)


def _check_width(init: str, width: int) -> None:
    if width > _MOST_FEATURES:
        raise InputError(
            f"model.init: {init} is for up to {_MOST_FEATURES} features, and there are {width}; use another "
            "pooling, or init=default"
        )


def _shrunk(values: np.ndarray, centred: np.ndarray) -> np.ndarray:
    """Shrink variances of centred features [N, C] towards their mean over all directions."""
    from sklearn.covariance import ledoit_wolf_shrinkage  # slow to import

    share = ledoit_wolf_shrinkage(centred, assume_centered=True)
    shrunk = (1 - share) * values + share * float(np.square(centred).mean())
    floored: np.ndarray = np.maximum(shrunk, 1e-6 * shrunk[0])
    return floored


def _discriminants(centred: np.ndarray, labels: np.ndarray, dim: int) -> np.ndarray:
    """Return the leading linear discriminants of centred features, [D, C]."""
    from sklearn.covariance import ledoit_wolf  # slow to import

    _, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), centred.shape[1]), np.float32)
    np.add.at(sums, numbers, centred)
    means = sums / counts[:, None]
    within, _ = ledoit_wolf(centred - means[numbers], assume_centered=True)
    values, vectors = np.linalg.eigh(within)
    whiten = vectors / np.sqrt(np.maximum(values, 1e-6 * values[-1]))  # [C, C]
    between = (means * np.sqrt(counts / len(centred))[:, None]) @ whiten
    total = centred @ whiten
    # The second term orders the directions beyond the number of classes, and does not change the others.
    spread = between.T @ between + 1e-6 * (total.T @ total) / len(centred)
    directions: np.ndarray = _leading(spread, dim)[1] @ whiten.T
    return directions


def _leading(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues of a symmetric matrix, descending, and their vectors as rows."""
    from scipy.linalg import eigh  # slow to import

    size = len(matrix)
    values, vectors = eigh(matrix.astype(np.float64), subset_by_index=[size - count, size - 1])
    return values[::-1], vectors.T[::-1]
