"""Figures of the weights that losses give to pairs: weights, selection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from retrieval import text
from retrieval.errors import InputError
from train.papers.analyze.figure_options import Drawing, batch_options, figure_command

if TYPE_CHECKING:
    from train.papers.analyze.sources import EmbeddingSource
    from train.papers.specs import NamedLoss


@figure_command("weights", sources="optional")
@click.option(
    "--loss",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Loss: a name, or a mapping as in a recipe. Repeatable, up to 6; by default those of RAW, fig. 1.",
)
@click.option(
    "--positives",
    metavar="C[,C...]",
    help="Cosines of the anchor with its positives, without RUN; by default 0.7,0.5,0.3.",
)
@click.option(
    "--negatives",
    metavar="C[,C...]",
    help="Cosines of the anchor with its negatives, without RUN; by default 0.5,0.4,0.3,0.2,0.1,0.",
)
@batch_options
def weights(
    source: EmbeddingSource | None,
    specs: tuple[str, ...],
    positives: str | None,
    negatives: str | None,
    classes: int,
    per_class: int,
    seed: int,
) -> Drawing:
    """Draw the weights that losses give to pairs.

    Every loss on pairs is equivalent to a sum of their cosines with weights (RAW, theorem 3.1): the
    derivatives of the loss with respect to the cosines. Above 0, a positive pair is pulled together and a
    negative pair pushed apart. There is one panel for each loss, scaled to a largest weight of 1; --json has
    the unscaled weights.

    Without RUN (RAW, figure 1) the batch is an anchor with its --positives and --negatives, the latter two of
    each class. The first positive, and then the first negative, is swept over all cosines up to 0.95. A
    triplet's weight counts its violated triplets; with one positive and one negative it is a single step, as
    in the paper.

    With RUN, a model, a gallery or an .npz file, a batch is sampled, and every pair of it is a point. Pairs
    that the loss or its miner leaves out have weight 0 and are grey. A miner that chooses at random is drawn
    once, with --seed.

    \b
      lookalike analyze weights --out weights.svg
      lookalike analyze weights --loss triplet-cosine --positives 0.5 --negatives 0.5 --out triplet.svg
      lookalike analyze weights --loss triplet --loss "{name: triplet, negatives: optimal}" --out loop.svg
      lookalike analyze weights run --data folder:shop --loss raw --loss binomial-deviance --out batch.svg
    """
    from train.papers.weight_curves import LOSSES

    chosen = specs or LOSSES
    if source is None:
        _refuse_batch_options()
        return _curves(chosen, positives, negatives)
    if positives is not None or negatives is not None:
        raise InputError(
            f"{source.name}: the cosines are those of the batch; leave out --positives, --negatives"
        )
    batch = source.embed(source.splits[0]).sample_batch(classes=classes, per_class=per_class, seed=seed)
    from train.papers.batch_weights import batch_weights, batch_weights_figure
    from train.papers.weight_curves import panels_size

    losses = _read(chosen, len(set(batch.labels)), len(batch))
    found = [batch_weights(batch, loss, seed=seed) for loss in losses]
    rows = [["loss", "largest weight", "positives selected", "total", "negatives selected", "total"]]
    for one in found:
        cells = (
            f"{value:{form}}"
            for pairs in (one.positive, one.negative)
            for value, form in ((one.selected(pairs), ".1%"), (one.total(pairs), ".4g"))
        )
        rows.append([one.name, f"{one.largest:.4g}", *cells])
    count = f"{batch.name}: {len(batch)} images of {len(set(batch.labels))} classes"
    return Drawing(
        plot=partial(batch_weights_figure, found),
        size=panels_size(len(found)),
        facts=[one.to_dict() for one in found],
        text="\n".join([count, *text.align_columns(rows, right=range(1, 6))]),
    )


def _refuse_batch_options() -> None:
    context = click.get_current_context()
    for name in ("classes", "per_class", "seed"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} belongs to the batch of a run or a model; name it first")


def _curves(specs: tuple[str, ...], positives: str | None, negatives: str | None) -> Drawing:
    from train.papers.weight_curves import (
        NEGATIVES,
        POSITIVES,
        panels_size,
        weight_curves,
        weight_curves_figure,
    )

    near = POSITIVES if positives is None else _cosines("--positives", positives)
    far = NEGATIVES if negatives is None else _cosines("--negatives", negatives)
    size = 1 + len(near) + len(far)
    curves = [weight_curves(loss, near, far) for loss in _read(specs, 1 + (len(far) + 1) // 2, size)]
    rows = [["loss", "largest weight", "of a positive", "of a negative"]]
    rows += [
        [c.name, *(f"{weight:.4g}" for weight in (c.largest, c.positive.max(), c.negative.max()))]
        for c in curves
    ]
    return Drawing(
        plot=partial(weight_curves_figure, curves),
        size=panels_size(len(curves)),
        facts=[found.to_dict() for found in curves],
        text="\n".join(text.align_columns(rows, right={1, 2, 3})),
    )


def _read(specs: tuple[str, ...], classes: int, size: int) -> list[NamedLoss]:
    from train.papers.specs import read_losses
    from train.papers.weight_curves import MOST

    if len(specs) > MOST:
        raise InputError(f"{len(specs)} losses are too many for one figure; give at most {MOST}")
    return read_losses(specs, num_classes=classes, embedding_dim=size)


def _cosines(option: str, given: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in given.split(","))
    except ValueError as error:
        raise InputError(f"{option} {given}: expected cosines with commas, as in 0.7,0.5") from error


@figure_command("selection", sources="one")
@click.option(
    "--loss",
    "spec",
    default="raw",
    show_default=True,
    metavar="SPEC",
    help="Loss: a name, or a mapping as in a recipe.",
)
@click.option(
    "--anchors", type=click.IntRange(1, 40), default=8, show_default=True, help="Number of anchors to draw."
)
@batch_options
def selection(
    source: EmbeddingSource, spec: str, anchors: int, classes: int, per_class: int, seed: int
) -> Drawing:
    """Draw which pairs of a batch a loss selects.

    A batch is sampled. Each row is one of its images as the anchor: its positive pairs above the line and its
    negative pairs below it, by cosine. Pairs with a weight are filled, pairs that the loss or its miner
    leaves out are hollow.

    Variable-threshold hard mining (RAW, section 5.1 and figure 2) compares every positive pair with the
    hardest negative of the anchor, and every negative pair with its hardest positive. Both limits are drawn.
    `analyze weights` draws the weights of the same pairs.

    \b
      lookalike analyze selection run --data folder:shop --out selection.svg
      lookalike analyze selection shop.npz --loss "{name: equal-weight, mining: {margin: 0.2}}" --out s.svg
    """
    from train.papers.batch_weights import batch_weights
    from train.papers.pair_selection import anchor_pairs, draw_selection

    batch = source.embed(source.splits[0]).sample_batch(classes=classes, per_class=per_class, seed=seed)
    (of,) = _read((spec,), len(set(batch.labels)), len(batch))
    found = batch_weights(batch, of, seed=seed)
    drawn = anchor_pairs(batch, found, of, count=anchors, seed=seed)
    rows = [["class of the anchor", "positives selected", "of", "negatives selected", "of"]]
    for one in drawn:
        kinds = (one.positive_selected, one.negative_selected)
        rows.append([one.label, *(cell for kept in kinds for cell in (str(kept.sum()), str(len(kept))))])
    shares = (
        f"{found.selected(found.positive):.1%} of the positives, {found.selected(found.negative):.1%} of the"
    )
    return Drawing(
        plot=partial(draw_selection, of.name, drawn),
        size=(10, 1.8 + 0.6 * len(drawn)),
        facts={"loss": of.name, "anchors": [one.to_dict() for one in drawn]},
        text="\n".join(
            [*text.align_columns(rows, right=range(1, 5)), f"in the batch: {shares} negatives selected"]
        ),
    )
