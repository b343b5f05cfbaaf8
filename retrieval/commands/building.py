"""`lookalike index build` and `add`: images into a gallery."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import emit, json_option, say
from retrieval.embedder import Embedder
from retrieval.gallery import Gallery
from retrieval.index import KINDS
from retrieval.indexing import Outcome, add_images
from retrieval.store import BadFile

_SHOWN = 10
_retry_option = click.option("--retry", is_flag=True, help="Try files again that were unusable before.")


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--model", required=True, type=click.Path(path_type=Path), help="The model file to embed with.")
@click.option("--kind", type=click.Choice(KINDS), default="auto", show_default=True, help="Of FAISS index.")
@_retry_option
@json_option
@click.pass_context
def build(
    ctx: click.Context,
    gallery: Path,
    images: tuple[Path, ...],
    model: Path,
    kind: str,
    retry: bool,
    as_json: bool,
) -> None:
    """Make GALLERY out of IMAGES: files, and folders with all their sub-folders.

    The folder an image lies in becomes its label. Files that cannot be read are listed and skipped (exit
    code 3). A build that was cut off goes on where it stopped; a finished one has nothing left to do.

    \b
      lookalike index build shop.gallery photos --model model.onnx
    """
    embedder = Embedder(model)
    target = Gallery(gallery) if (gallery / "gallery.db").exists() else Gallery.create(gallery, embedder)
    target.check_model(embedder)
    outcome = add_images(
        target, images, kind=kind, reindex=True, retry=retry, command="build", show_progress=True
    )
    _finish(ctx, target, outcome, as_json)


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--model", type=click.Path(path_type=Path), help="Check that the gallery was built with it.")
@_retry_option
@json_option
@click.pass_context
def add(
    ctx: click.Context,
    gallery: Path,
    images: tuple[Path, ...],
    model: Path | None,
    retry: bool,
    as_json: bool,
) -> None:
    """Add IMAGES to GALLERY, with the model it was built with.

    Images that are there already and have not changed are left alone.

    \b
      lookalike index add shop.gallery photos/new
    """
    target = Gallery(gallery)
    if model is not None:
        target.check_model(Embedder(model))
    _finish(ctx, target, add_images(target, images, retry=retry, show_progress=True), as_json)


def _finish(ctx: click.Context, gallery: Gallery, outcome: Outcome, as_json: bool) -> None:
    facts = {
        **gallery.info(),
        "added": outcome.added,
        "unchanged": outcome.unchanged,
        "ignored": outcome.ignored,
        "bad": [{"path": str(b.stamp.full), "reason": b.reason, "detail": b.detail} for b in outcome.bad],
    }
    done = f"added {outcome.added} images" if outcome.added else "nothing new to add"
    text = f"{gallery.folder}: {done}, {outcome.unchanged} were there already; it holds {len(gallery)}"
    if outcome.ignored:
        text += f" ({outcome.ignored} files without an image suffix were passed over)"
    emit(facts, as_json, text)
    if outcome.bad:
        _list_bad(outcome.bad)
        ctx.exit(3)


def _list_bad(bad: list[BadFile]) -> None:
    say(f"{len(bad)} files were unusable and skipped:")
    for file in bad[:_SHOWN]:
        say(f"  {file.stamp.full}: {file.detail}")
    if len(bad) > _SHOWN:
        say(f"  and {len(bad) - _SHOWN} more; --json lists them all")
