"""`lookalike analyze tsne`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.reports.figures import save, write
from train.commands.analyze.targets import (
    TARGET,
    data_option,
    finish,
    open_sources,
    out_option,
    png_option,
    split_option,
)


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar=TARGET)
@data_option
@split_option("test")
@click.option(
    "--class", "shown", multiple=True, help="Colour this class, instead of the 8 largest. Repeatable."
)
@click.option(
    "--limit",
    type=click.IntRange(min=4),
    default=2000,
    show_default=True,
    help="Draw a random sample of so many, where there are more.",
)
@click.option("--perplexity", type=float, help="Neighbours that count; 30 by default, fewer for few images.")
@click.option("--seed", default=0, show_default=True, help="Of the sample and of the map.")
@out_option
@png_option
@json_option
@click.pass_context
def tsne(
    ctx: click.Context,
    target: Path,
    data: str | None,
    split: str | None,
    shown: tuple[str, ...],
    limit: int,
    perplexity: float | None,
    seed: int,
    out: Path,
    png: bool,
    as_json: bool,
) -> None:
    """Draw a map of the images, and a page with their thumbnails.

    t-SNE puts images near each other whose embeddings are. Beside the figure comes a page of the same name,
    .html: it shows the thumbnail of the point under the pointer or the arrow keys, and highlights its class.
    It is one file and needs no network. Synthetic points of an .npz file are drawn hollow.

    \b
      lookalike analyze tsne run --data folder:shop --out map.svg
      lookalike analyze tsne shop.gallery --class red --class blue --out map.svg
    """
    from retrieval.analysis import tsne as mapping
    from retrieval.analysis.tsne_page import page

    (source,) = open_sources([target], data)
    (part,) = source.choose(split, "test")
    embeddings = source.embed(part)
    found = mapping.tsne_map(embeddings, limit=limit, seed=seed, perplexity=perplexity, shown=shown)
    files = save(partial(mapping.draw, found), 10, 7, out, png=png)
    files.append(out.with_suffix(".html"))
    write(files[-1], page(found).encode())
    print_result(found.to_dict(), as_json, f"{found.title}; perplexity {found.perplexity:g}")
    finish(ctx, [source], files)
