"""Learning rate range test: the loss while the learning rate grows from step to step.

Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from retrieval.errors import InputError, LookalikeError
from retrieval.progress import Progress
from retrieval.reports.figures import COLOURS, GREY
from train.config import CheckpointsConfig, Config, OptimizerConfig, WatchConfig
from train.data import DataSet
from train.loop.optimization import set_learning_rates
from train.loop.precision import chosen_kernels
from train.loop.run_folder import Run
from train.loop.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST_STEPS = 30
_WINDOW = 10  # a mean of the loss is over this part of the steps, 1 / 10
_SHORT = 5  # losses in a mean that tells whether training diverges
_CERTAIN = 3.0  # standard errors that the loss must fall by
_EQUAL = 1.0  # standard errors in which two levels of the loss count as equal
FIGURE_SIZE = (7.2, 4.2)  # inches


@dataclass(frozen=True)
class Fall:
    """Fall of the loss in a range test.

    Attributes:
        smooth: Local linear fit of the losses, up to the window with the lowest mean.
        steepest: Step at which this fit falls most, per factor of the learning rate.
        before: Mean loss of the first window.
        lowest: Mean loss of the lowest window.
    """

    smooth: list[float]
    steepest: int
    before: float
    lowest: float


@dataclass(frozen=True)
class RateRange:
    """Result of a range test.

    Attributes:
        reference: Optimizer settings that the test multiplied.
        rates: `optimizer.lr` of each step, growing by a constant factor.
        losses: Loss of each step.
        fall: Where the loss fell; `None` if it did not fall beyond its noise.
        diverged: Whether the test ended early, because the loss grew or was not finite.
    """

    reference: OptimizerConfig
    rates: list[float]
    losses: list[float]
    fall: Fall | None
    diverged: bool

    @property
    def suggested(self) -> float | None:
        """Learning rate of the steepest fall; `None` if the loss did not fall."""
        return None if self.fall is None else float(f"{self.rates[self.fall.steepest]:.2g}")

    def settings(self) -> dict[str, float]:
        """Return the suggested `optimizer.lr`, and the other rates that are set, times the same factor."""
        if self.suggested is None:
            return {}
        rates = {
            "lr": self.reference.lr,
            "head_lr": self.reference.head_lr,
            "loss_lr": self.reference.loss_lr,
        }
        factor = self.suggested / self.reference.lr
        return {f"optimizer.{name}": float(f"{rate * factor:.2g}") for name, rate in rates.items() if rate}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        fall = self.fall
        return {
            "suggested": self.suggested,
            "settings": self.settings(),
            "loss_before": None if fall is None else fall.before,
            "loss_lowest": None if fall is None else fall.lowest,
            "diverged": self.diverged,
            "rates": self.rates,
            "losses": self.losses,
            "smooth": [] if fall is None else fall.smooth,
        }

    def __str__(self) -> str:
        span = f"{len(self.losses)} steps, optimizer.lr from {self.rates[0]:.1e} to {self.rates[-1]:.1e}"
        if self.fall is None:
            return f"no suggestion: the loss did not fall beyond its noise in {span}; take more --steps"
        words = " ".join(f"--set {name}={rate:g}" for name, rate in self.settings().items())
        text = (
            f"suggested optimizer.lr: {self.suggested:g}, where the loss falls fastest: from "
            f"{self.fall.before:.4g} to {self.fall.lowest:.4g} in {span}\nlookalike train ... {words}"
        )
        if len(self.fall.smooth) == len(self.losses) and not self.diverged:
            text += "\nthe loss was lowest at the end: a greater --high may show a faster fall"
        return text


def measure_rates(
    config: Config,
    dataset: DataSet,
    *,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    show_progress: bool = False,
) -> RateRange:
    """Take training steps with growing learning rates, then discard the network.

    The rates of all parameter groups are multiplied by the same factor. Batches, augmentation, precision,
    clipping and gradient caching are those of training. Schedule, number of epochs, patience, moving average
    and watched images have no effect. Held-out images are left out, as in training. The test ends once the
    loss diverges.

    Args:
        config: Settings of the run.
        dataset: Its data set.
        low: `optimizer.lr` of the first step.
        high: `optimizer.lr` of the last step.
        steps: Number of steps.
        show_progress: Report progress on stderr.

    Raises:
        InputError: A range, settings or data that cannot be used.
        LookalikeError: Out of memory.
    """
    if not (0 < low < high < math.inf):
        raise InputError(f"learning rates: {low:g} to {high:g} is no range; expected 0 < low < high")
    if steps < FEWEST_STEPS:
        raise InputError(
            f"learning rates: {steps} steps are too few for a curve; take {FEWEST_STEPS} or more"
        )
    alone = {"watch": WatchConfig(), "checkpoints": CheckpointsConfig(), "ema": 0.0, "patience": None}
    rates = np.geomspace(low, high, steps).tolist()
    losses: list[float] = []
    with TemporaryDirectory() as folder:
        run = Run.start(Path(folder) / "run", config.model_copy(update=alone))
        trainer = Trainer(run, dataset, show_progress=show_progress)
        if trainer.group.size > 1:
            raise InputError("learning rates: several processes; start the command without torchrun")
        factors = [rate / config.optimizer.lr for rate in rates]
        with (
            closing(trainer.loader),
            Progress("learning rates", steps, "steps", show=show_progress) as progress,
        ):
            for value in _losses(trainer, factors):
                losses.append(value)
                progress.update(1, f"lr {rates[len(losses) - 1]:.1e}, loss {value:.4f}")
                if has_diverged(losses):
                    break
    diverged = has_diverged(losses)
    finite = [value for value in losses if math.isfinite(value)]  # only the last one may not be
    if not finite:
        raise InputError("learning rates: the loss of the first step is not finite; lower --low")
    return RateRange(config.optimizer, rates[: len(finite)], finite, find_fall(finite), diverged)


def _losses(trainer: Trainer, factors: Sequence[float]) -> Iterator[float]:
    """Yield the loss of a step with each factor on the learning rates, NaN if embeddings overflow."""
    trainer.mine()
    trainer.network.model.train()
    trainer.network.loss.measures_gradients = False
    with chosen_kernels(trainer.group.device, deterministic=False):
        for step, (factor, loaded) in enumerate(zip(factors, trainer.batches(count()), strict=False)):
            set_learning_rates(trainer.optimizer, factor)
            try:
                value, _ = trainer.take_step(loaded.inputs, loaded.labels, step, loaded.targets)
                # Waits for the device in every step: after divergence a further step could fail with an error
                # of its own.
                yield value.item()
            except torch.OutOfMemoryError as error:
                hint = "set batch.chunk to fewer images at once, or lower batch.classes"
                raise LookalikeError(f"learning rates: out of memory at step {step + 1}; {hint}") from error
            except ValueError as error:
                # On the CPU, losses refuse embeddings that overflow.
                if trainer.take_step.embed(loaded.inputs, step).square().sum().isfinite():
                    raise InputError(f"learning rates: the loss cannot be computed; {error}") from error
                yield math.nan


def has_diverged(losses: Sequence[float]) -> bool:
    """Return whether the last loss is not finite, or the last ones are far above the first ones.

    Far is twice the fall so far, or twice a bound of the noise if that is more.
    """
    if not math.isfinite(losses[-1]):
        return True
    if len(losses) <= 2 * _SHORT:
        return False
    values = np.array(losses)
    means = sliding_window_view(values, _SHORT).mean(1)
    noise = 3 * float(np.median(np.abs(np.diff(values))))
    return bool(means[-1] > means[0] + 2 * max(means[0] - means.min(), noise))


def find_fall(losses: Sequence[float]) -> Fall | None:
    """Find where the loss falls fastest before its lowest level.

    The fit is a regression line around each step with Gaussian weights, which does not lag behind the loss as
    a moving average does. Its slope per step is a slope over the logarithm of the learning rate.

    Bounded losses often stay on a noisy plateau after the fall, where some window is the lowest by chance. So
    the fall ends with the first window that is not certainly above the lowest one.

    Returns:
        The fall, or `None` if the lowest mean of a window is not certainly below that of the first window.
    """
    values = np.array(losses)
    width = max(_SHORT, len(values) // _WINDOW)
    if len(values) < 2 * width:
        return None
    means = sliding_window_view(values, width).mean(1)
    until = values[: int(means.argmin()) + width]  # without the divergence
    noise = math.sqrt(float(np.square(np.diff(until)).mean()) / 2)
    error = noise * math.sqrt(2 / width)  # of the difference of two means
    end = int((means <= means.min() + _EQUAL * error).argmax())
    if means[0] - means[end] <= _CERTAIN * error or end < width:
        return None
    values = values[: end + width]
    smooth, slopes = _local_lines(values, width / 2)
    edge = width // 2  # the slope at an end rests on one side
    steepest = edge + int(slopes[edge : len(slopes) - edge].argmin())
    return Fall(smooth.tolist(), steepest, float(means[0]), float(means[end]))


def _local_lines(values: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return value and slope at each step of a regression line with Gaussian weights of `spread` steps."""
    at = np.arange(len(values))
    apart = at[None, :] - at[:, None]  # [step, neighbour]
    weights = np.exp(-0.5 * np.square(apart / spread))
    weights /= weights.sum(1, keepdims=True)
    center = (weights * apart).sum(1)
    mean = weights @ values
    spreads = (weights * np.square(apart)).sum(1) - np.square(center)
    slopes = ((weights * apart) @ values - center * mean) / spreads
    return mean - slopes * center, slopes


def rate_range_figure(found: RateRange, figure: Figure) -> None:
    """Plot the losses over the learning rates, with the suggestion."""
    axes = figure.subplots()
    axes.semilogx(found.rates, found.losses, ".", color=COLOURS[0], alpha=0.4, label="loss of a step")
    shown = found.losses
    if found.fall is not None and found.suggested is not None:
        smooth, shown = found.fall.smooth, found.losses[: len(found.fall.smooth)]
        axes.semilogx(found.rates[: len(smooth)], smooth, color=COLOURS[0], label="local fit")
        label = f"steepest fall: {found.suggested:g}"
        axes.axvline(found.suggested, color=GREY, ls="--", label=label)
    margin = 0.1 * (max(shown) - min(shown)) or 1.0
    axes.set_ylim(min(shown) - margin, max(shown) + 3 * margin)  # losses after divergence would hide the fall
    axes.set_xlabel("learning rate, optimizer.lr")
    axes.set_ylabel("training loss")
    axes.legend(frameon=False)
