"""`lookalike export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import emit, json_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The model file to write.")
@click.option(
    "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Which one."
)
@json_option
def export(run: Path, out: Path, checkpoint: str, as_json: bool) -> None:
    """Turn a training run into one ONNX file, which is all that the rest needs.

    The file is run against the checkpoint on real images, and kept only if it gives the same embeddings.

    \b
      lookalike export run --out model.onnx
    """
    from export.model_file import export_run  # torch takes seconds to import
    from train.run import Run

    proof = export_run(Run.open(run), out, checkpoint)
    size = out.stat().st_size
    facts = {"model": str(out), "bytes": size, **asdict(proof)}
    text = (
        f"{out}: {size / 1e6:.1f} MB; its embeddings of {proof.pictures} differ from the checkpoint's "
        f"by at most {proof.largest_difference:.1e} (lowest cosine {proof.lowest_cosine:.7f})"
    )
    emit(facts, as_json, text)
