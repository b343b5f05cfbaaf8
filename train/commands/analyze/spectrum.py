"""`lookalike analyze spectrum`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from retrieval import text
from retrieval.cli import json_option, print_result
from retrieval.reports.figures import save
from train.commands.analyze.targets import (
    TARGET,
    baseline_option,
    data_option,
    finish,
    open_sources,
    out_option,
    png_option,
    split_option,
)


@click.command()
@click.argument("targets", nargs=-1, required=True, type=click.Path(path_type=Path), metavar=f"{TARGET}...")
@data_option
@split_option("test")
@baseline_option
@out_option
@png_option
@json_option
@click.pass_context
def spectrum(
    ctx: click.Context,
    targets: tuple[Path, ...],
    data: str | None,
    split: str | None,
    baseline: str | None,
    out: Path,
    png: bool,
    as_json: bool,
) -> None:
    """Draw how far embeddings spread, inside classes and over all.

    On the left, the three eigenvalues of the covariance of each class, after all embeddings were projected
    on their first three principal directions: mean and deviation over the classes. On the right, the share
    of the variance that the first directions hold, and the effective rank, exp of the entropy of the shares.
    Where embeddings collapse, the variance (between 0 and 1, for they have unit length) or the effective rank
    is near its least.

    Several targets stand side by side, as do runs of different losses.

    \b
      lookalike analyze spectrum run --data folder:shop --baseline untrained --out spectrum.svg
      lookalike analyze spectrum triplet optimal --data folder:shop --out spectrum.svg
    """
    from retrieval.analysis import spectrum as spread

    sources = open_sources(targets, data, untrained=baseline is not None)
    spectra = [spread.spectrum(s.embed(part)) for s in sources for part in s.choose(split, "test")]
    files = save(partial(spread.draw, spectra), 11, 5.2, out, png=png)
    rows = [
        ("embeddings", "variance", "effective rank", "of", "eigenvalues inside classes, mean ± deviation")
    ]
    for found in spectra:
        pairs = zip(found.mean, found.deviation, strict=True)
        inside = "  ".join(f"{mean:.4f} ± {deviation:.4f}" for mean, deviation in pairs)
        variance, rank = f"{found.variance.sum():.3g}", f"{found.effective_rank:.1f}"
        rows.append((found.name, variance, rank, str(len(found.variance)), inside))
    print_result(
        [found.to_dict() for found in spectra], as_json, "\n".join(text.align_columns(rows, right={1, 2, 3}))
    )
    finish(ctx, sources, files)
