"""The `lookalike sweep` command."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import training_device_option
from retrieval.machine.devices import Device
from train.commands import DATA_HELP


@click.command()
@click.option("--data", help=DATA_HELP)
@click.option("--recipe", help="Recipe: a name (`lookalike recipes list`), or a YAML file of settings.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of all variants. Repeatable.",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME[:KEY=VALUE;...]",
    help="Variant and the settings that it changes. Repeatable; the same name again adds settings.",
)
@click.option(
    "--variants",
    "variants_file",
    type=click.Path(path_type=Path),
    help="YAML file: names of variants, each with its settings as in a recipe.",
)
@click.option("--baseline", help="Variant to compare the others with; by default the first.")
@click.option(
    "--no-baselines",
    is_flag=True,
    help="Do not add baselines: batch-all and semi-hard triplet, normalised softmax, proxy anchor.",
)
@click.option("--seeds", help="Number of seeds, by default 3, or a list of seeds: 0,1,2.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the sweep.")
@training_device_option
@json_option
@click.pass_context
def sweep(
    ctx: click.Context,
    data: str | None,
    recipe: str | None,
    overrides: tuple[str, ...],
    variants: tuple[str, ...],
    variants_file: Path | None,
    baseline: str | None,
    no_baselines: bool,
    seeds: str | None,
    out: Path,
    device: Device | None,
    as_json: bool,
) -> None:
    """Train variants over several seeds and compare them.

    Every variant is trained on the training split and measured on the test split.

    \b
      lookalike sweep --data cars196:cars --recipe loop/table2/loop-triplet-cars196 --out sweep \\
          --variant loop --variant batch:loss.negatives=batch \\
          --variant "sct:loss={name: sct}" --variant "sct-slow:loss={name: sct}; optimizer.lr=1e-5"
      lookalike sweep --out sweep --seeds 5 --variant wide:loss.margin=0.4

    `loss.margin=0.4` changes one key of the loss, `loss={...}` replaces it. The seed determines the batches,
    the initial embedding layer, the held-out images and the label noise.

    A new sweep also trains the usual losses with the same settings, as variants baseline-triplet (all
    triplets of a batch), baseline-semi-hard, baseline-softmax (normalised) and baseline-proxy-anchor, unless
    a variant equals one of them. --no-baselines leaves them out. For a pretrained backbone the table also has
    its features without training (off-the-shelf), and their principal components (pca, pca-whitened).

    Repeat the command to resume an interrupted sweep and to retry failed runs. Variants and seeds can be
    added to a sweep, as in the second example; the other settings are fixed.

    DIR/results.md has mean and standard deviation over the seeds, the paired difference of every variant to
    the baseline with its 95% interval, p corrected for the number of variants (Holm), the number of seeds
    that would show half of the difference, the time of a step and the peak memory. DIR/results.json has all
    numbers; DIR/NAME/seed-0 is an ordinary run with its report.json. If at least three variants differ in one
    number only, such as a margin, results.svg also has a curve of Recall@1 over this number. DIR/curves.svg
    has the loss and Recall@1 of held-out and of watched images over training; docs/figures has the variants
    of two figures of a paper. `--set watch.split=test` adds the best epoch on the test images as an oracle.
    """
    from train import settings
    from train.experiments.experiment import Experiment
    from train.experiments.sweep import run_sweep
    from train.experiments.sweep_plan import make_sweep_plan, parse_seeds, parse_variants

    plan = make_sweep_plan(
        out,
        Experiment(data, recipe, settings.parse_changes(overrides)),
        parse_variants(variants, variants_file),
        parse_seeds(seeds) if seeds else None,
        baseline,
        with_baselines=not no_baselines,
    )
    for note in plan.experiment.notes():
        print_status(note)
    found = run_sweep(out, plan, print_status, device=device, show_progress=True)
    print_result(found.to_dict(), as_json, found.to_text())
    print_status(f"results: {out / 'results.md'}")
    if found.failed:
        count = f"{len(found.failed)} of {len(found.outcomes)} runs failed"
        print_status(f"{count}; see failure.txt in their folders, and repeat the command to retry them")
        ctx.exit(1)
    if found.bad_files:
        print_status(
            f"{len(found.bad_files)} files could not be read and were left out; see the reports of the runs"
        )
        ctx.exit(3)
