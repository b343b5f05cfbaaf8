"""The `lookalike tune` command."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import training_device_option
from retrieval.errors import LookalikeError
from retrieval.machine.devices import Device
from retrieval.machine.extras import needs
from train.commands import DATA_HELP

METRICS = ("map_at_r", "recall_at_1")


@click.command()
@click.option("--data", help=DATA_HELP)
@click.option("--recipe", help="Recipe: a name (`lookalike recipes list`), or a YAML file of settings.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Setting of all methods. Repeatable."
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME[:KEY=VALUE;...]",
    help="Method and the settings that it changes, each a value or a space. Repeatable; the same name again "
    "adds settings.",
)
@click.option(
    "--methods",
    "methods_file",
    type=click.Path(path_type=Path),
    help="YAML file: names of methods, each with its settings as in a recipe, with spaces.",
)
@click.option(
    "--space",
    "spaces",
    multiple=True,
    metavar="KEY=SPACE",
    help="Space of all methods that do not set this value themselves. Repeatable. Default: "
    "optimizer.lr={low: 1e-4, high: 1e-2, log: true} (optimizer.head_lr if that is set).",
)
@click.option("--trials", type=click.IntRange(min=1), help="Trials of each method, by default 20.")
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    help=f"Metric on the held-out images to choose by, by default {METRICS[0]}.",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="Cross-validation over this many folds of the training classes; by default one set is held out.",
)
@click.option(
    "--seeds", help="Final runs of each method: a number, by default 10 (0: none), or a list: 0,1,2."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the search, by default 0.")
@click.option("--baseline", help="Method to compare the others with; by default the first.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the search.")
@training_device_option
@json_option
@click.pass_context
def tune(
    ctx: click.Context,
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    methods: tuple[str, ...],
    methods_file: Path | None,
    spaces: tuple[str, ...],
    trials: int | None,
    metric: str | None,
    seeds: str | None,
    seed: int | None,
    folds: int | None,
    baseline: str | None,
    out: Path,
    device: Device | None,
    as_json: bool,
) -> None:
    """Search the hyper-parameters of methods on held-out classes, then measure them on the test split.

    \b
      lookalike tune --data cars196:cars --set model.trainable=0 --set epochs=5 --out tuned \\
          --method "triplet:loss={name: triplet, margin: {low: 0.05, high: 0.5}}" \\
          --method "proxy:loss={name: proxy-anchor, margin: {low: 0.02, high: 0.5, log: true}}"

    Where a setting has its value, a method may have a space:

    \b
      {low: 0.05, high: 0.5, log: true}   numbers between two ends, on a logarithmic scale
      {low: 1, high: 8, step: 1}          integers, because both ends are integers
      {choices: [batch, optimal]}         one of several values

    Search: each method gets the same number of trials, or one for each of its settings if these are fewer.
    The first has the default values (of the recipe or the loss, if the space has them, else the middle), the
    next quarter of the trials random ones, then Optuna's tree-structured Parzen estimator proposes them. A
    trial is trained without the held-out classes (`split`; by default a quarter of them) and measured on
    these; test images are not loaded. A failed trial counts.

    Final runs: the chosen settings are trained with every seed and measured on the test split, as by
    `lookalike sweep`; they are in DIR/test. They use all training classes, with as many steps as in the
    search, and the last epoch is measured, in the search too. If --set split.validation=0.2 is given, the
    final runs hold out classes as well, and the best epoch on these is measured in both. --seeds 0 makes
    no final runs.

    --folds 4 is the protocol of "A Metric Learning Reality Check" (Musgrave et al. 2020): a trial is the
    mean over networks that are each trained without one fold of the classes, and measured on it; the final
    runs train one network per seed and fold. On the test split, NAME is the mean of the networks of a seed,
    NAME-concatenated one embedding of all their dimensions.

    DIR/tune.md and DIR/tune.json have the spaces, trials, seconds and chosen settings; DIR/search.log is
    a journal of Optuna, which optuna-dashboard shows. Repeat the command to resume: the choice is that of
    an uninterrupted search. Methods and seeds can be added, the rest is fixed. Needs Optuna: pip install
    'lookalike[tune]'.
    """
    if find_spec("optuna") is None:
        raise LookalikeError(f"`lookalike tune` {needs('optuna')}")
    from train import settings
    from train.experiments.experiment import Experiment
    from train.experiments.search_space import is_space
    from train.experiments.sweep_plan import parse_seeds, parse_variants
    from train.experiments.tuning_plan import make_tuning_plan
    from train.experiments.tuning_results import tuning_table
    from train.experiments.tuning_run import run_tuning

    plan = make_tuning_plan(
        out,
        Experiment(data, recipe, settings.parse_changes(overrides)),
        parse_variants(methods, methods_file, option="--method", is_value=is_space),
        common=settings.parse_changes(spaces, "--space") if spaces else None,
        trials=trials,
        metric=metric,
        seeds=parse_seeds(seeds, least=0) if seeds else None,
        seed=seed,
        folds=folds,
        baseline=baseline,
    )
    for note in plan.experiment.notes():
        print_status(note)
    result, comparison = run_tuning(out, plan, print_status, device=device, show_progress=True)
    test = None if comparison is None else comparison.to_dict()
    print_result({**result.to_dict(), "test": test}, as_json, tuning_table(result, comparison))
    print_status(f"results: {out / 'tune.md'}")
    unfinished = comparison.failed if comparison else plan.seeds
    if unfinished or any(method.best is None for method in result.methods):
        print_status(
            "some searches or final runs failed; see tune.md, and repeat the command to retry the runs"
        )
        ctx.exit(1)
    if comparison is not None and comparison.bad_files:
        print_status(f"{len(comparison.bad_files)} files could not be read; see the reports of the runs")
        ctx.exit(3)
