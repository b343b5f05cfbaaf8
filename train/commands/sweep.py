"""`lookalike sweep`."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from train.commands import DATA_HELP


@click.command()
@click.option("--data", help=DATA_HELP)
@click.option("--recipe", help="A recipe by name, or a YAML file of settings.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of all variants; repeatable."
)
@click.option(
    "--variant",
    "words",
    multiple=True,
    metavar="NAME[:KEY=VALUE;...]",
    help="A variant and the settings that it changes; repeatable, with the same name for more settings.",
)
@click.option(
    "--variants",
    "file",
    type=click.Path(path_type=Path),
    help="YAML: the name of each variant and, below it, its settings as in a recipe.",
)
@click.option("--baseline", help="The variant to compare with; the first one if not given.")
@click.option("--seeds", help="How many (3 if not given), or which: 0,1,2.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The sweep's folder.")
@json_option
@click.pass_context
def sweep(
    ctx: click.Context,
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    words: tuple[str, ...],
    file: Path | None,
    baseline: str | None,
    seeds: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Train variants over several seeds and compare them.

    Each is trained on the training split and measured on the test split.

    \b
      lookalike sweep --data cars196:cars --recipe loop/cars196-triplet --out sweep \\
          --variant loop --variant batch:loss.negatives=batch \\
          --variant "sct:loss={name: sct}" --variant "sct-slow:loss={name: sct}; optimizer.lr=1e-5"
      lookalike sweep --out sweep --seeds 5 --variant wide:loss.margin=0.4

    `loss.margin=0.4` changes one key of the loss, `loss={...}` replaces it. A seed changes the batches, the
    new layer of the network, the classes held out and wrong labels.

    The same command again goes on where it was interrupted, and tries again what failed. Variants and seeds
    can be added to a sweep, as in the second line; the rest of it stays.

    DIR/results.md has mean and standard deviation over the seeds, Welch's t-test against the baseline and a
    figure; DIR/results.json has every number; DIR/NAME/seed-0 is a run like any other.
    """
    from train import settings
    from train.experiments.comparison import sweep_table
    from train.experiments.plan import Experiment, make_plan, parse_seeds, parse_variants
    from train.experiments.sweep import run_sweep

    plan = make_plan(
        out,
        Experiment(data, recipe, settings.parse_changes(overrides)),
        parse_variants(words, file),
        parse_seeds(seeds) if seeds else None,
        baseline,
    )
    found = run_sweep(out, plan, print_status, show_progress=True)
    print_result(found.to_dict(), as_json, sweep_table(found))
    print_status(f"results: {out / 'results.md'}")
    if found.failed:
        count = f"{len(found.failed)} of {len(found.outcomes)} runs failed"
        print_status(
            f"{count}; failure.txt in the folder of each says why, and the same command tries them again"
        )
        ctx.exit(1)
    if found.bad_files:
        print_status(
            f"{len(found.bad_files)} files could not be read and were left out; each report lists its own"
        )
        ctx.exit(3)
