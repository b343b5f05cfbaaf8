"""Hard negative triplets of training batches before and after a step through the network (SCT, fig. 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.nn.functional import normalize

from retrieval.analysis.selection import select_triplets
from retrieval.errors import InputError
from retrieval.progress import Progress
from retrieval.reports.figures import COLOURS, caption
from train.config import FITTED_INITS, Config
from train.data import DataSet
from train.loop.frozen_backbone import FrozenBackbone, fit_initial_head
from train.loop.optimization import build_optimizer, rate_factor, set_learning_rates
from train.loop.process_group import ProcessGroup, join_process_group
from train.loop.run_folder import Run, initial_model
from train.loop.step import Step
from train.loop.training_data import TrainingData
from train.losses import Objective
from train.papers.specs import read_losses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HN_SHN_SCT = {
    "HN": "{name: triplet-nca, mining: {negative: hard}}",
    "SHN": "{name: triplet-nca, mining: {negative: semi-hard}}",
    "SCT": "sct",
}
_LABEL = 40  # characters of a line beside a row
_BEFORE, _AFTER = COLOURS[1], COLOURS[0]


@dataclass(frozen=True, eq=False)
class BatchStep:
    """Triplets of a batch before and after one training step: each image with its hardest negative.

    Attributes:
        loss: Name of the loss.
        step: Number of the step, from 0.
        value: Loss of the batch.
        before: float [T, 2], the cosines of each anchor with its positive and its negative: the most similar
            image of its class in the batch, and of the other classes.
        after: float [T, 2], the same triplets after the step.
        mined_after: float [T', 2], the triplets that are mined in the same way after the step.
    """

    loss: str
    step: int
    value: float
    before: np.ndarray
    after: np.ndarray
    mined_after: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "loss": self.loss,
            "step": self.step,
            "value": self.value,
            "triplets": len(self.before),
            "before": _summary(self.before),
            "after": _summary(self.after),
            "mined_after": _summary(self.mined_after),
        }


def hard_share(cosines: np.ndarray) -> float:
    """Return the share of hard triplets, whose negative is closer than the positive; cosines are [T, 2]."""
    return float((cosines[:, 1] > cosines[:, 0]).mean())


def _summary(cosines: np.ndarray) -> dict[str, float]:
    positive, negative = cosines.mean(0).tolist()
    return {"hard_share": hard_share(cosines), "mean_positive": positive, "mean_negative": negative}


def training_steps(
    config: Config,
    dataset: DataSet,
    specs: Mapping[str, str],
    at: Sequence[int],
    *,
    checkpoint: tuple[Run, str] | None = None,
    show_progress: bool = False,
) -> list[BatchStep]:
    """Train one network per loss side by side and record the given steps.

    All networks start with the initial weights of a run with this configuration, or with those of a
    checkpoint, and take the batches of the run that follow. The optimizer is that of the run, with a new
    state. Only the loss differs. The embeddings are those of training mode: batch norms use the statistics of
    the batch.

    Args:
        config: Configuration of a run.
        dataset: Its data set.
        specs: Specifications of the losses, by name.
        at: Numbers of the steps to record, counted from the first one, 0.
        checkpoint: Run, and the name of its checkpoint to start from; `None` for the initial weights.
        show_progress: Report progress on stderr.

    Returns:
        The recorded steps of the first loss, then those of the second, and so on.

    Raises:
        InputError: A negative step, or data or a loss that cannot be trained on.
    """
    if min(at) < 0:
        raise InputError(f"step {min(at)}: steps are numbered from 0; give 0 or more")
    group = join_process_group(config.device)
    first = checkpoint[0].checkpoint_state(checkpoint[1])["step"] if checkpoint else 0
    wanted = {first + number for number in at}
    found: dict[str, list[BatchStep]] = {name: [] for name in specs}
    with TemporaryDirectory() as folder:
        data = TrainingData(dataset, config, group, Path(folder))
        data.require_known_batches()
        size = config.model.embedding_dim
        losses = read_losses(tuple(specs.values()), num_classes=data.classes, embedding_dim=size)
        steps = {
            name: _build_step(config, of.loss, group, data, checkpoint)
            for name, of in zip(specs, losses, strict=True)
        }
        last, per_epoch = first + max(at), data.sampler.per_epoch
        epochs = max(config.epochs, last // per_epoch + 1)  # a run may have fewer, even none
        with Progress("training", last + 1 - first, "steps", show=show_progress) as progress:
            for number, pixels, labels in _batches(data, first, last):
                factor = rate_factor(config.schedule, number, per_epoch, epochs)
                for name, step in steps.items():
                    set_learning_rates(step.optimizer, factor)
                    value, embeddings = step(pixels, labels, number)
                    if number in wanted:
                        after = step.embed(pixels, number)
                        found[name].append(_compare(name, number, value, labels, embeddings, after))
                progress.update(1)
    return [one for recorded in found.values() for one in recorded]


def _build_step(
    config: Config,
    loss: Objective,
    group: ProcessGroup,
    data: TrainingData,
    checkpoint: tuple[Run, str] | None,
) -> Step:
    model = initial_model(config) if checkpoint is None else checkpoint[0].trained(checkpoint[1]).train()
    model, loss = model.to(group.device), loss.to(group.device)
    if checkpoint is None and config.model.init in FITTED_INITS:
        fit_initial_head(model, FrozenBackbone(model, config), data)
    optimizer = build_optimizer(model, loss, config.optimizer)
    return Step(
        model,
        loss,
        optimizer,
        group,
        precision=config.precision,
        chunk=config.batch.chunk,
        clip=config.optimizer.clip,
        seed=config.seed,
    )


def _batches(data: TrainingData, first: int, last: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield number, pixels and labels of the batches of a run from the first to the last, on the device."""
    epoch, start = divmod(first, data.sampler.per_epoch)
    with closing(data.loader()) as loader:
        batches = loader.load(data.sampler.epoch, count(epoch), start)
        for number, loaded in zip(range(first, last + 1), batches, strict=False):
            yield number, loaded.inputs, loaded.labels


def _compare(
    name: str, number: int, value: Tensor, labels: Tensor, before: Tensor, after: Tensor
) -> BatchStep:
    start, end = (normalize(x).cpu().numpy() for x in (before, after))
    classes = labels.cpu().numpy()
    chosen = select_triplets(start, classes)
    mined = select_triplets(end, classes)
    cosines = (np.stack(one.cosines(x), 1) for one, x in ((chosen, start), (chosen, end), (mined, end)))
    return BatchStep(name, number, float(value), *cosines)


def steps_size(steps: Sequence[BatchStep]) -> tuple[float, float]:
    """Return width and height of `training_steps_figure` in inches."""
    rows, columns = len({s.loss for s in steps}), len({s.step for s in steps})
    return 0.6 + 3.0 * columns, 1.5 + 3.0 * rows


def training_steps_figure(steps: Sequence[BatchStep], figure: Figure) -> None:
    """Plot a row of triplet diagrams for each loss and a column for each step."""
    names, numbers = (list(dict.fromkeys(x)) for x in zip(*((s.loss, s.step) for s in steps), strict=True))
    figure.suptitle("Hard negative triplets before and after a training step", fontsize=13)
    low = min(float(np.quantile(cosines, 0.002)) for s in steps for cosines in (s.before, s.after))
    low = float(np.floor(10 * low - 0.2) / 10)
    panels = figure.subplots(len(names), len(numbers), sharex=True, sharey=True, squeeze=False)
    for one in steps:
        axes = panels[names.index(one.loss), numbers.index(one.step)]
        _plot_panel(one, axes, low)
    for axes, number in zip(panels[0], numbers, strict=True):
        axes.set_title(f"iteration {number}\n{axes.get_title()}", fontsize=10)
    for axes, name in zip(panels[:, 0], names, strict=True):
        label = "\n".join(wrap(caption(name, 2 * _LABEL), _LABEL))
        axes.set_ylabel(f"{label}\n\ncosine with the negative", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("cosine with the positive", fontsize=9)
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)


def _plot_panel(found: BatchStep, axes: Axes, low: float) -> None:
    high = 1.0 + 0.02 * (1 - low)
    axes.fill_between([low, high], [low, high], high, color="#000000", alpha=0.06, lw=0)
    axes.plot([low, high], [low, high], "k--", lw=0.8)
    moves = np.stack([found.before, found.after], 1)  # [T, 2 times, 2 cosines]
    axes.plot(*np.moveaxis(moves, 0, 2).transpose(1, 0, 2), color="#333333", lw=0.5, alpha=0.5)
    for cosines, colour, label in (
        (found.before, _BEFORE, "before"),
        (found.after, _AFTER, "after the step"),
    ):
        axes.scatter(
            cosines[:, 0], cosines[:, 1], s=9, color=colour, linewidths=0, zorder=3, label=label, alpha=0.8
        )
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_title(f"hard {hard_share(found.before):.0%} → {hard_share(found.after):.0%}", fontsize=10)
