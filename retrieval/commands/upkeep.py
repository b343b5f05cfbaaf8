"""`lookalike index info`: what is in a gallery."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import emit, json_option
from retrieval.gallery import Gallery


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@json_option
def info(gallery: Path, as_json: bool) -> None:
    """Say what GALLERY holds."""
    facts = Gallery(gallery).info()
    emit(facts, as_json, "\n".join(f"{name:>14}  {value}" for name, value in facts.items()))
