"""Figures of losses and of training: gradients, rates, step, training, synthetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retrieval import text
from retrieval.commands.device_options import training_device_option
from retrieval.errors import InputError
from retrieval.machine.devices import Device
from train.commands import DATA_HELP
from train.papers.analyze.figure_options import Drawing, figure_command

if TYPE_CHECKING:
    from train.papers.analyze.sources import EmbeddingSource
    from train.papers.synthetic import SyntheticRecalls

_MOST_PANELS = 4


@figure_command("gradients")
@click.option(
    "--loss",
    "losses",
    type=click.Choice(["nca", "margin", "sct"]),
    multiple=True,
    default=["nca"],
    show_default=True,
    help="Triplet loss. Repeatable, one below the other.",
)
@click.option(
    "--entanglement",
    default="0,0.5,1",
    show_default=True,
    metavar="P[,P...]",
    help="How much similar images move together, 0 to 1; one column each, at most 4.",
)
@click.option("--step", type=float, default=0.1, show_default=True, help="Size of the gradient step.")
@click.option(
    "--gamma",
    default="0",
    show_default=True,
    metavar="G[,G...]",
    help="Side of the anchor that positive and negative are on: 1 the same, -1 opposite; at most 4.",
)
@click.option(
    "--margin",
    type=float,
    help="Margin of the loss margin. By default every triplet violates it, as in the paper.",
)
def gradients(
    losses: tuple[Any, ...], entanglement: str, step: float, gamma: str, margin: float | None
) -> Drawing:
    """Draw where one gradient step of a triplet loss moves triplets.

    SCT, figs. 2 and 9. Every point is a triplet. x: cosine of anchor and positive. y: cosine of anchor and
    negative. For each loss, the arrows of the upper row show how one gradient step on the three embeddings
    changes the cosine with the positive, and those of the lower row the cosine with the negative. The regions
    are shaded where the step pushes the positive away (upper row), or brings the negative closer (lower row).

    A network cannot move embeddings one by one: a change of one image also changes similar images. With an
    entanglement P, each cosine also takes on P times the product of both cosines of the other's change. This
    explains why training with hard negatives collapses with nca and margin, and not with sct.

    \b
      lookalike analyze gradients --out fig2.svg
      lookalike analyze gradients --loss nca --loss margin --out fig9.svg
      lookalike analyze gradients --loss nca --loss sct --gamma 0,0.7 --out sct.svg
    """
    from train.papers.gradients import TripletStep, field_size, gradient_field, gradient_field_figure

    entanglements = _parse_numbers("--entanglement", entanglement)
    steps = [
        TripletStep(loss, step, one, margin if loss == "margin" else None)
        for loss in dict.fromkeys(losses)
        for one in _parse_numbers("--gamma", gamma)
    ]
    if margin is not None and "margin" not in losses:
        raise InputError("--margin: no loss has one; add --loss margin")
    rows = [[gradient_field(each, p) for p in entanglements] for each in steps]
    table = [["loss", "entanglement", "positive moves away", "negative comes closer"]]
    table += [
        [f.step.title, f"{f.entanglement:g}", f"{f.positive_away:.1%}", f"{f.negative_closer:.1%}"]
        for fields in rows
        for f in fields
    ]
    return Drawing(
        plot=partial(gradient_field_figure, rows),
        size=field_size(len(rows), len(entanglements)),
        facts=[found.to_dict() for fields in rows for found in fields],
        text="\n".join(text.align_columns(table, right={1, 2, 3})),
    )


def _parse_numbers(option: str, given: str) -> list[float]:
    try:
        numbers = [float(number) for number in given.split(",")]
    except ValueError as error:
        raise InputError(f"{option} {given}: expected numbers with commas, as in 0,0.5,1") from error
    if len(numbers) > _MOST_PANELS:
        raise InputError(f"{option} {given}: too many panels; give at most {_MOST_PANELS} numbers")
    return numbers


@figure_command("step")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--data", help=f"Training images, by default those of the run: {DATA_HELP}")
@click.option(
    "--loss",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Loss: a name, or a mapping as in a recipe. Repeatable, up to 4; by default HN, SHN and SCT.",
)
@click.option(
    "--at",
    default="0,4,8,12",
    show_default=True,
    metavar="N[,N...]",
    help="Steps to draw, counted from 0; one column each, at most 4.",
)
@click.option(
    "--which",
    metavar="best|last|STEP",
    help="Checkpoint of the run to start from; by default its initial weights.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting. Repeatable."
)
@training_device_option
def step(
    run: Path,
    data: str | None,
    specs: tuple[str, ...],
    at: str,
    which: str | None,
    overrides: tuple[str, ...],
    device: Device | None,
) -> Drawing:
    """Draw how one training step of a loss moves images.

    SCT, fig. 5. For each loss, a network with the initial weights of the run takes the run's first steps,
    with its batches and its optimizer. A triplet is an image of the batch, its most similar image of the
    same class and its most similar image of another class. x: cosine with the positive. y: cosine with the
    negative. Orange is before the step, blue is the same triplet after it. Hard triplets are above the
    diagonal; their share after the step is that of the same triplets, and that of the triplets mined again.

    The default losses are NCA triplets with hard negatives (HN) and with semi-hard negatives (SHN), and
    selectively contrastive triplets (SCT). With hard negatives all images may move towards (1, 1): a network
    moves similar images together. `analyze gradients` shows the steps without a network. The released code
    of SCT has a temperature of 0.1, which makes the steps ten times larger.

    \b
      lookalike train --data folder:shop --set epochs=0 --out run
      lookalike analyze step run --out fig5.svg
      lookalike analyze step run --loss "{name: sct, temperature: 0.1}" --at 0,10,20 --out step.svg
    """
    from train import data as data_sets
    from train import settings
    from train.loop.run_folder import Run
    from train.papers import training_steps as analysis

    if len(specs) > _MOST_PANELS:
        raise InputError(f"{len(specs)} losses are too many for one figure; give at most {_MOST_PANELS}")
    numbers = sorted(set(_parse_numbers("--at", at)))
    if any(number != int(number) for number in numbers):
        raise InputError(f"--at {at}: expected whole numbers, as in 0,4,8,12")
    changes = settings.parse_changes(overrides)
    opened = Run.open(run)
    config = settings.configure(data, str(opened.folder / "config.yaml"), changes)
    config = settings.placed(config, device)
    if which is not None and config.model != opened.config.model:
        raise InputError("--which: the checkpoint is of the run's network; leave the settings of model as is")
    dataset = data_sets.load(config.data)
    losses = {spec: spec for spec in specs} or analysis.HN_SHN_SCT
    steps = analysis.training_steps(
        config,
        dataset,
        losses,
        list(map(int, numbers)),
        checkpoint=None if which is None else (opened, which),
        show_progress=True,
    )
    table = [["loss", "step", "hard", "→", "mined again", "cosine with positive", "→", "with negative", "→"]]
    table += [_step_row(one.to_dict()) for one in steps]
    return Drawing(
        plot=partial(analysis.training_steps_figure, steps),
        size=analysis.steps_size(steps),
        facts=[one.to_dict() for one in steps],
        text="\n".join(text.align_columns(table, right=range(1, 9))),
    )


def _step_row(facts: dict[str, Any]) -> list[str]:
    shares = [f"{facts[when]['hard_share']:.1%}" for when in ("before", "after", "mined_after")]
    means = [
        f"{facts[when][key]:.3f}"
        for key in ("mean_positive", "mean_negative")
        for when in ("before", "after")
    ]
    return [facts["loss"], str(facts["step"]), *shares, *means]


@figure_command("rates")
@click.option("--data", help=f"images:DIR (without labels), {DATA_HELP}")
@click.option("--recipe", help="Recipe: a name (`lookalike recipes list`), or a YAML file of settings.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting. Repeatable."
)
@click.option("--low", type=float, default=1e-6, show_default=True, help="optimizer.lr of the first step.")
@click.option("--high", type=float, default=1.0, show_default=True, help="optimizer.lr of the last step.")
@click.option("--steps", default=100, show_default=True, help="Number of training steps.")
@training_device_option
def rates(
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    low: float,
    high: float,
    steps: int,
    device: Device | None,
) -> Drawing:
    """Draw the loss while the learning rate grows, and suggest a rate.

    The learning rate range test (Smith 2017). It takes training steps with the options of `lookalike train`.
    From step to step, all learning rates grow by the same factor, so that the ratios of optimizer.lr,
    head_lr, loss_lr and layer_decay stay. It ends once the loss diverges, and the network is thrown away.
    The suggestion is the rate at which the loss falls fastest, after smoothing. There is none if the loss
    does not fall beyond its noise. Held-out and test images are not used. Schedule, epochs, patience and ema
    have no effect.

    \b
      lookalike analyze rates --data folder:shop --recipe catalogue --out rates.svg
      lookalike analyze rates --data folder:shop --set model.weights=lite0 \\
          --set model.backbone=timm:tf_efficientnet_lite0 --steps 200 --out rates.svg --png
    """
    from train import data as data_sets
    from train import settings
    from train.papers import rate_range as analysis

    config = settings.placed(settings.resolve(data, recipe, overrides), device)
    dataset = data_sets.load(config.data, unlabelled=True)
    found = analysis.measure_rates(config, dataset, low=low, high=high, steps=steps, show_progress=True)
    return Drawing(
        plot=partial(analysis.rate_range_figure, found),
        size=analysis.FIGURE_SIZE,
        facts=found.to_dict(),
        text=str(found),
    )


@figure_command("training")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
def training(runs: tuple[Path, ...]) -> Drawing:
    """Draw the metrics recorded during training.

    SCT, fig. 6, and Symm, figs. 4, 5 and 7. One panel for every metric in metrics.jsonl, against the step,
    and one line for every run. Metrics of a batch are those of every tenth batch:

    \b
      the loss, the learning rate, and Recall@1 of the held-out images
      hard triplets: anchors whose hardest negative in the batch is closer than their easiest positive
      hard and active among the triplets or pairs that the loss compares: negative closer, and loss above 0
      synthetic points among the hardest negatives, for losses that generate them
      mean similarity of the positive and of the negative pairs of a batch
      Recall@1 of the images that `watch` names; test images are not to be selected on

    Long runs are drawn as running means, except Recall@1 and the learning rate; the title gives the window.

    \b
      lookalike analyze training run --out training.svg
      lookalike analyze training sweep/*/seed-0 --out training.svg
    """
    from train.papers.analyze.sources import distinct_names
    from train.papers.training import figure_size, read_history, recorded_metrics, training_figure

    histories = [read_history(run, name) for run, name in zip(runs, distinct_names(runs), strict=True)]
    metrics = recorded_metrics(histories)
    rows = [["last recorded", *metrics]]
    for history in histories:
        last = {key: f"{values[-1]:.4g}" for key, (_, values) in history.series.items()}
        rows += [[history.name, *(last.get(key, "-") for key in metrics)]]
    return Drawing(
        plot=partial(training_figure, histories),
        size=figure_size(histories),
        facts=[history.to_dict() for history in histories],
        text="\n".join(text.align_columns(rows, right=range(1, len(metrics) + 1))),
    )


@figure_command("synthetic", sources="several", baseline=True)
@click.option(
    "--negatives",
    type=click.Choice(["symmetric", "optimal", "interpolated"]),
    default="symmetric",
    show_default=True,
    help="Kind of synthetic points, as in a loss.",
)
@click.option(
    "--points",
    type=click.Path(path_type=Path),
    help="Also write the embeddings of images and points to this .npz file; needs a single source.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the pairs.")
def synthetic(sources: list[EmbeddingSource], negatives: Any, points: Path | None, seed: int) -> Drawing:
    """Draw the Recall@K of synthetic points.

    The images of each class form pairs at random, and every pair generates points, as in the losses: both
    images mirrored in each other (symmetric), two points evenly between them (interpolated), or the point of
    their arc that is closest to the arc of a pair of another class (optimal). A point has the class of its
    pair. There are three curves, of queries that

    \b
      images:           retrieve all images
      synthetic points: retrieve all images. Are the points near their class?
      images:           retrieve all images and synthetic points. Do the points interfere?

    Queries never retrieve their own pair and its points. --split train uses the training classes.

    Of several checkpoints of a run, Recall@1 of images and of synthetic points is drawn over the steps (Symm
    figure 6): --every-checkpoint, or --which several times. `analyze tsne --synthetic` draws the points.

    \b
      lookalike analyze synthetic run --data folder:shop --baseline untrained --out synthetic.svg
      lookalike analyze synthetic run --data folder:shop --split both --every-checkpoint --out curves.svg
      lookalike analyze synthetic shop.npz --negatives optimal --points both.npz --out synthetic.svg
    """
    from train.papers.synthetic import synthesize_points, synthetic_recalls, with_points

    parts = [(source, split) for source in sources for split in source.splits]
    over_training = any(len(_steps(sources, source.target)) > 1 for source in sources)
    for source in sources if over_training else ():
        if source.step is None:
            raise InputError(
                f"{source.name}: not a checkpoint of a run, which curves over training need; leave it out"
            )
    panels = len({source.target for source in sources}) if over_training else len(parts)
    most = _MOST_PANELS if points is None else 1
    if panels > most or (points is not None and len(parts) > 1):
        where = "at once" if points is None else "with --points"
        raise InputError(f"{len(parts)} sets of embeddings are too many; give at most {most} {where}")
    found = []
    for source, split in parts:
        embeddings = source.embed(split)
        images = embeddings.take(~embeddings.synthetic)
        generated = synthesize_points(images, negatives, seed=seed)
        found.append(synthetic_recalls(images, generated, negatives, show_progress=True))
        if points is not None:
            with_points(images, generated).save(points)
    if over_training:
        return _synthetic_curves(parts, found)
    return _synthetic_panels(found, [points] if points is not None else [])


def _steps(sources: Sequence[EmbeddingSource], target: str) -> set[int]:
    return {s.step for s in sources if s.target == target and s.step is not None}


def _synthetic_panels(found: Sequence[SyntheticRecalls], files: Sequence[Path]) -> Drawing:
    from train.papers.synthetic import KS, synthetic_recall_figure

    rows = [["embeddings", "query", "count", *(f"R@{k}" for k in KS)]]
    rows += [
        [one.name, name, f"{one.counts[name]:,}", *(f"{100 * value:.1f}" for value in recall.values())]
        for one in found
        for name, recall in one.recall.items()
    ]
    return Drawing(
        plot=partial(synthetic_recall_figure, found),
        size=(max(6.5, 4.2 * len(found)), 4.8),
        facts=[one.to_dict() for one in found],
        text="\n".join(text.align_columns(rows, right=range(2, 7))),
        files=files,
    )


def _synthetic_curves(
    parts: Sequence[tuple[EmbeddingSource, str]], found: Sequence[SyntheticRecalls]
) -> Drawing:
    from train.papers.synthetic import ORIGINALS, POINTS, SyntheticCurves, synthetic_curve_figure

    curves: dict[tuple[str, str], SyntheticCurves] = {}
    ordered = sorted(zip(parts, found, strict=True), key=lambda each: each[0][0].step or 0)
    for (source, split), recalls in ordered:
        assert source.step is not None
        curve = curves.setdefault((source.target, split), SyntheticCurves(source.target, split, [], []))
        curve.steps.append(source.step)
        curve.found.append(recalls)
    rows = [["run", "split", "step", f"R@1 of {ORIGINALS}", f"of {POINTS}"]]
    rows += [
        [c.run, c.split, f"{step:,}", *(f"{100 * one.recall[name][1]:.1f}" for name in (ORIGINALS, POINTS))]
        for c in curves.values()
        for step, one in zip(c.steps, c.found, strict=True)
    ]
    drawn = list(curves.values())
    return Drawing(
        plot=partial(synthetic_curve_figure, drawn),
        size=(max(6.5, 5 * len({curve.run for curve in drawn})), 4.8),
        facts=[curve.to_dict() for curve in drawn],
        text="\n".join(text.align_columns(rows, right={2, 3, 4})),
    )
