"""`lookalike analyze training`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from retrieval import text
from retrieval.cli import json_option, print_result
from retrieval.reports.figures import save
from train.commands.analyze.targets import names_of, out_option, png_option, say_written


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@out_option
@png_option
@json_option
def training(runs: tuple[Path, ...], out: Path, png: bool, as_json: bool) -> None:
    """Draw what happened during training.

    A panel for every number that the runs recorded in metrics.jsonl, against the step, and a line for every
    run:

    \b
      the loss, the learning rate, and Recall@1 of the classes held out of training
      hard triplets: anchors whose hardest negative in the batch is closer than their easiest positive
      hard and active among the triplets or pairs that the loss compares: negative closer, and loss above 0
      synthetic points among the hardest negatives, for losses that make some
      mean similarity of the positive and of the negative pairs of a batch

    Long runs are drawn as running means, all but Recall@1 and the learning rate; the title says over how many
    records.

    \b
      lookalike analyze training run --out training.svg
      lookalike analyze training sweep/*/seed-0 --out training.svg
    """
    from train.analysis import training as records

    histories = [records.history(run, name) for run, name in zip(runs, names_of(runs), strict=True)]
    files = save(partial(records.draw, histories), *records.size(histories), out, png=png)
    keys = records.panels(histories)
    rows = [["last recorded", *keys]]
    for found in histories:
        last = {key: f"{values[-1]:.4g}" for key, (_, values) in found.series.items()}
        rows += [[found.name, *(last.get(key, "-") for key in keys)]]
    right = range(1, len(keys) + 1)
    print_result(
        [found.to_dict() for found in histories], as_json, "\n".join(text.align_columns(rows, right=right))
    )
    say_written(files)
