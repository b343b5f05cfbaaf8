"""`lookalike analyze weights`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from retrieval import text
from retrieval.cli import json_option, print_result
from retrieval.reports.figures import save
from train.commands.analyze.targets import loss_option, out_option, png_option, say_written


@click.command()
@loss_option(6)
@out_option
@png_option
@json_option
def weights(specs: tuple[str, ...], out: Path, png: bool, as_json: bool) -> None:
    """Draw how much weight losses give a pair.

    An anchor sees three positives, at cosines 0.7, 0.5 and 0.3, and six negatives, at 0.5, 0.4, 0.3, 0.2, 0.1
    and 0, two of each class. In turn the first positive and the first negative take every cosine up to 0.95,
    and the figure shows the derivative of the loss with respect to that cosine: above 0 a positive pair is
    pulled together and a negative pair pushed apart. Losses are scaled so that the largest weight of each is
    1; --json gives the weights as they are.

    \b
      lookalike analyze weights --loss contrastive --loss raw --loss binomial-deviance --out weights.svg
      lookalike analyze weights --loss triplet --loss "{name: triplet, negatives: optimal}" --out loop.svg
    """
    from train.analysis import weights as view
    from train.analysis.specs import read_losses

    found = [
        view.curves(loss) for loss in read_losses(specs, num_classes=view.CLASSES, embedding_dim=view.SIZE)
    ]
    files = save(partial(view.draw, found), 10, 4.7 + 0.25 * len(found), out, png=png)
    rows = [["loss", "largest weight", "of a positive", "of a negative"]]
    rows += [[f.name, *(f"{w:.4g}" for w in (f.largest, f.positive.max(), f.negative.max()))] for f in found]
    print_result([f.to_dict() for f in found], as_json, "\n".join(text.align_columns(rows, right={1, 2, 3})))
    say_written(files)
