"""Figure of label noise: noise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import click

from retrieval.cli import print_status
from retrieval.errors import InputError
from train import data as data_sets
from train.commands import DATA_HELP
from train.papers.analyze.figure_options import Drawing, figure_command


@figure_command("noise")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--data", help=f"{DATA_HELP} For a run: where its data are now.")
@click.option("--rate", type=float, help="Draw noise of this rate, in place of that of a run.")
@click.option(
    "--kind",
    type=click.Choice(["symmetric", "asymmetric"]),
    default="symmetric",
    show_default=True,
    help="With --rate: kind of the noise, as noise.kind.",
)
@click.option("--include-true", is_flag=True, help="With --rate: as noise.include_true.")
@click.option("--seed", default=0, show_default=True, help="With --rate: seed of the noise.")
def noise(
    run: Path | None,
    data: str | None,
    rate: float | None,
    kind: Literal["symmetric", "asymmetric"],
    include_true: bool,
    seed: int,
) -> Drawing:
    """Draw how often each true label is given as another.

    The transition matrix of label noise (DCDL, figure 2): of the training images of each class (rows), the
    share that is given each label (columns). From the noise.csv of RUN, or for noise that is drawn as a run
    with these settings would. Asymmetric noise follows the transitions that cifar10, cifar100 and stl10
    define (`lookalike datasets info` prints them), on other data the next class in sorted order.

    \b
      lookalike analyze noise run --out noise.svg
      lookalike analyze noise --data cifar10:ROOT --kind asymmetric --rate 0.2 --out noise.svg
    """
    from train.config import NoiseConfig
    from train.data.label_noise import noise_note
    from train.loop.run_folder import Run
    from train.papers import label_transitions as analysis

    if run is not None and rate is None:
        opened = Run.open(run)
        config, dataset = opened.config.noise, data_sets.load(data or opened.config.data)
        found = analysis.run_transitions(opened, dataset)
    elif run is None and rate is not None and data is not None:
        if not 0 < rate < 1:
            raise InputError(f"--rate {rate:g}: expected more than 0 and below 1")
        config, dataset = NoiseConfig(kind=kind, rate=rate, include_true=include_true), data_sets.load(data)
        found = analysis.drawn_transitions(dataset, config, seed)
    else:
        raise click.UsageError("give a run with label noise, or --data and --rate to draw some")
    note = noise_note(dataset, config)
    if note is not None:
        print_status(note)
    return Drawing(
        plot=partial(analysis.transitions_figure, found),
        size=analysis.transitions_size(found),
        facts=found.to_dict(),
        text=analysis.transitions_text(found),
    )
