"""Trials: the layers that `improve` tries, and what they find for held-out queries.

A trial has one power and one way to learn; its variants, dimensions or shares of what was learned, cost a
search each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retrieval.model.layer import Layer
from train.defaults import HEADS
from train.layers.components import Start, mixed
from train.layers.learning import learn
from train.layers.settings import TeachingConfig
from train.layers.whitening import POWERS, candidates

WHITENING, TAUGHT, WITHIN = "whitening", "taught layer", "within-class whitening"
SHARES = TeachingConfig().blends[1:]  # the start alone is whitening
_HALF = 0.5  # power of the start that gained most elsewhere
_STEPS = 100  # a third of those of `teach`: so that more can be tried
_LEAST = 1e-3  # deviation within classes, relative to the mean one


@dataclass(frozen=True)
class Trial:
    """What is tried.

    Attributes:
        method: Row of the table.
        power: Power of the start.
        loss: Loss of `lookalike losses`; `None` for a closed form.
        lr: Learning rate.
    """

    method: str
    power: float
    loss: dict[str, Any] | None = None
    lr: float = 0.0

    @property
    def title(self) -> str:
        """Method and settings, for people."""
        rate = f", rate {self.lr:g}" if self.loss else ""
        return f"{self.method}{rate}, power {self.power:g}"

    @property
    def work(self) -> str:
        """Name of the work in the journal."""
        return json.dumps([self.method, self.power, self.loss, self.lr])

    @property
    def is_learned(self) -> bool:
        """Whether labels are learned from."""
        return self.method != WHITENING

    def config(self, seed: int) -> TeachingConfig:
        """Return the settings of the learning."""
        return TeachingConfig(loss=dict(self.loss or {}), lr=self.lr, steps=_STEPS, seed=seed)


def _head(loss: str, lr: float, power: float = _HALF) -> Trial:
    return Trial(f"{loss} head", power, {"name": loss}, lr)


def _default_head(lr: float) -> Trial:
    """Return a head with the loss that `train` takes; rates are those of this start and these few steps."""
    loss = dict(HEADS[-1].loss)
    return Trial(f"{loss['name']} head", _HALF, loss, lr)


# By what they gained for their time on other data, so that a short run tries the best.
TRIALS = (
    *(Trial(WHITENING, power) for power in POWERS),
    Trial(WITHIN, 0.0),
    Trial(TAUGHT, _HALF, {"name": "raw"}, 3e-3),
    _head("normalized-softmax", 3e-3),
    _head("proxy-anchor", 3e-3),
    Trial(TAUGHT, 0.0, {"name": "raw"}, 3e-3),
    _head("normalized-softmax", 1e-3),
    _default_head(1e-3),
    _head("fast-ap", 3e-3),
    _head("proxy-anchor", 1e-3),
)


@dataclass(eq=False)
class Workbench:
    """Starts and vectors that trials share.

    Args:
        everything: Unit vectors of all images, to which starts are fitted without labels, float32 [n, D].
        searched: Vectors that are searched, float32 [m, D].
        starts: Start of each power.
        seed: Random seed.
    """

    everything: np.ndarray
    searched: np.ndarray
    starts: Sequence[Start]
    seed: int
    _components: dict[float, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._whitenings = candidates(self.everything)

    def _whitening(self, power: float) -> list[tuple[int, Layer]]:
        return [(one.dim, layer) for one, layer in self._whitenings if one.power == power]

    def start(self, power: float) -> Start:
        """Return the start of a power."""
        return next(start for start in self.starts if start.power == power)

    def variants(self, trial: Trial) -> list[float]:
        """Return the variants of a trial: dimensions of whitening, shares of what is learned."""
        if trial.is_learned:
            return list(SHARES)
        return [dim for dim, _ in self._whitening(trial.power)]

    def matrix(
        self, trial: Trial, vectors: np.ndarray, classes: np.ndarray, *, show: bool = False
    ) -> np.ndarray:
        """Return what labelled vectors teach: a matrix on the leading components, float32 [k, k]."""
        start = self.start(trial.power)
        components = start.components(vectors)
        if trial.loss is None:
            return within_class_whitening(components[:, : start.learned], classes)
        return learn(
            components,
            classes,
            start.learned,
            trial.config(self.seed),
            what="learning from all",
            show_progress=show,
        )

    def moved(self, trial: Trial, matrix: np.ndarray | None) -> Iterator[np.ndarray]:
        """Yield the searched vectors, float32 [m, D'], by each variant."""
        if matrix is None:
            for _, layer in self._whitening(trial.power):
                yield layer(self.searched)
            return
        start = self.start(trial.power)
        if trial.power not in self._components:
            self._components[trial.power] = start.components(self.searched)
        components = self._components[trial.power]
        for share in SHARES:
            found = components.copy()
            found[:, : start.learned] = components[:, : start.learned] @ mixed(matrix, share).T
            yield found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(np.float32).tiny)

    def layer(self, trial: Trial, variant: float, matrix: np.ndarray | None) -> Layer:
        """Return the layer of a variant."""
        if matrix is None:
            return next(layer for dim, layer in self._whitening(trial.power) if dim == variant)
        return self.start(trial.power).blended(matrix, variant)


def within_class_whitening(components: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the matrix that makes the deviations within classes equal in all directions, float32 [k, k].

    It is the inverse square root of the covariance within classes, shrunk towards its mean variance (Ledoit
    and Wolf 2004), and scaled to keep the mean variance (Hatch, Kajarekar and Stolcke 2006).

    Args:
        components: Components of the vectors, float32 [n, k].
        classes: Class of each, int [n].
    """
    _, numbers, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), components.shape[1]))
    np.add.at(sums, numbers, components)
    rest = (components - (sums / sizes[:, None])[numbers])[sizes[numbers] > 1]
    n, width = rest.shape
    covariance = rest.T @ rest / n
    average = float(np.trace(covariance)) / width
    squares = float((covariance**2).sum())
    fourth = float((np.einsum("nd,nd->n", rest, rest) ** 2).mean())
    spread = squares - width * average**2
    shrinkage = min(max((fourth - squares) / n / spread, 0.0), 1.0) if spread > 0 else 1.0
    values, axes = np.linalg.eigh((1 - shrinkage) * covariance + shrinkage * average * np.eye(width))
    scale = np.maximum(values, _LEAST**2 * max(average, np.finfo(np.float64).tiny)) ** -0.5
    matrix: np.ndarray = ((axes * (scale / scale.mean())) @ axes.T).astype(np.float32)
    return matrix
