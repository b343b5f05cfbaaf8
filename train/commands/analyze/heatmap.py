"""`lookalike analyze heatmap`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.reports.figures import caption, save
from train.commands.analyze.targets import out_option, png_option


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("query", type=click.Path(path_type=Path))
@click.argument("result", type=click.Path(path_type=Path))
@out_option
@png_option
@json_option
def heatmap(model: Path, query: Path, result: Path, out: Path, png: bool, as_json: bool) -> None:
    """Draw where two pictures look alike, in the eyes of a model.

    The embedding of a picture is the mean over its places, so the cosine of two pictures is a sum over the
    places of either of them. Orange places raise it, blue ones lower it; the scale is the same for both.

    \b
      lookalike analyze heatmap model.onnx query.jpg result.jpg --out heatmap.svg
    """
    from retrieval.analysis import heatmaps
    from retrieval.embedder import Embedder

    found = heatmaps.heatmaps(Embedder(model), query, result)
    named = ((what, path.absolute()) for what, path in (("query", query), ("result", result)))
    first, second = (f"{what}: {caption(p.name)}\n{caption(p.parent.name, 40)}" for what, p in named)
    files = save(partial(heatmaps.draw, found, (first, second)), 7, 8.2, out, png=png)
    facts = {
        "cosine": found.cosine,
        "query": {"path": str(query), "contributions": found.contributions_a.tolist()},
        "result": {"path": str(result), "contributions": found.contributions_b.tolist()},
    }
    print_result(facts, as_json, f"cosine similarity: {found.cosine:.4f}")
    print_status(f"written: {', '.join(map(str, files))}")
