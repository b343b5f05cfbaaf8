"""`lookalike index build`, `add`, `update`, `sync` and `rebuild`: images into a gallery."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.options import index_options, max_bad_option, retry_option
from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.ingest import sync as syncing
from retrieval.ingest.indexing import IngestResult, add_images
from retrieval.ingest.rebuild import rebuild as rebuild_gallery
from retrieval.text import pluralize

_SHOWN = 10
_FILE = click.Path(path_type=Path)


def _source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.argument("images", type=_FILE, nargs=-1),
        click.option(
            "--list", "list_file", metavar="FILE", help="A file with a path on each line; - is stdin."
        ),
        click.option(
            "--metadata", "table", type=_FILE, metavar="FILE", help="A CSV or Parquet table; see above."
        ),
        click.option(
            "--root", type=_FILE, metavar="DIR", help="What paths in the list or table are relative to."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="Make a gallery out of images.")
@click.argument("gallery", type=_FILE)
@_source_options
@click.option("--model", required=True, type=_FILE, help="The model file to embed with.")
@index_options
@retry_option
@max_bad_option
@json_option
@click.pass_context
def build(
    ctx: click.Context,
    gallery: Path,
    images: tuple[Path, ...],
    list_file: str | None,
    table: Path | None,
    root: Path | None,
    model: Path,
    kind: str | None,
    recall: float | None,
    memory: int | None,
    retry: bool,
    max_bad: float,
    as_json: bool,
) -> None:
    """Make GALLERY out of IMAGES: files, folders with all their sub-folders, 'quoted/**/*.jpg' patterns, and
    tar shards, which are read as they are.

    \b
      lookalike index build shop.gallery photos --model model.onnx
      lookalike index build shop.gallery shards/*.tar --model model.onnx
      lookalike index build shop.gallery photos --metadata shop.csv --model model.onnx
      lookalike index build shop.gallery --metadata shop.csv --model model.onnx

    The folder an image lies in becomes its label, and its path its id. Files that cannot be read are listed
    and skipped (exit code 3). A build that was cut off goes on where it stopped; a finished one has nothing
    left to do.

    --metadata names a table with a column `path`, and others as you like: `id` and `label` take the place of
    the path and the folder, the rest can be searched by (`lookalike search --where`). It is about the IMAGES,
    or, without IMAGES, says which they are. Its paths are relative to the folder in IMAGES, or else to its
    own folder. In a CSV file a column holds whole numbers, numbers or text, whichever fits all of it, and an
    empty field no value. In a tar shard, a/x.json, a/x.cls and a/x.txt hold the metadata, the label and
    a text of a/x.jpg.
    """
    embedder, new = Embedder(model), not (gallery / "gallery.db").exists()
    target = Gallery.create(gallery, embedder) if new else Gallery(gallery)
    target.check_model(embedder)
    try:
        outcome = add_images(
            target,
            images,
            list_file=list_file,
            metadata=table,
            root=root,
            kind=kind,
            recall=recall,
            memory=memory,
            reindex=True,
            retry=retry,
            max_bad=max_bad,
            command="build",
            show_progress=True,
        )
    except InputError:
        if new and not len(Gallery(gallery)):  # unusable sources leave nothing behind
            shutil.rmtree(gallery)
        raise
    _finish(ctx, target, outcome, as_json)


@click.command(short_help="Add images to a gallery.")
@click.argument("gallery", type=_FILE)
@_source_options
@click.option("--model", type=_FILE, help="Check that the gallery was built with it.")
@retry_option
@max_bad_option
@json_option
@click.pass_context
def add(
    ctx: click.Context,
    gallery: Path,
    images: tuple[Path, ...],
    list_file: str | None,
    table: Path | None,
    root: Path | None,
    model: Path | None,
    retry: bool,
    max_bad: float,
    as_json: bool,
) -> None:
    """Add IMAGES to GALLERY, with the model it was built with; sources are as for `lookalike index build`.

    Images that are there already and have not changed are left alone, but for what --metadata says about
    them. Images whose bytes are in the gallery are not embedded again.

    \b
      lookalike index add shop.gallery photos/new
      find photos -name '*.jpg' -newer stamp | lookalike index add shop.gallery --list -
      lookalike index add shop.gallery photos --metadata prices.csv
    """
    target = Gallery(gallery)
    if model is not None:
        target.check_model(Embedder(model))
    outcome = add_images(
        target,
        images,
        list_file=list_file,
        metadata=table,
        root=root,
        retry=retry,
        max_bad=max_bad,
        show_progress=True,
    )
    _finish(ctx, target, outcome, as_json)


@click.command(short_help="Embed again the files that have changed.")
@click.argument("gallery", type=_FILE)
@click.option("--prune", is_flag=True, help="Remove the images whose file is gone.")
@retry_option
@max_bad_option
@json_option
@click.pass_context
def update(
    ctx: click.Context, gallery: Path, prune: bool, retry: bool, max_bad: float, as_json: bool
) -> None:
    """Look at the files of GALLERY again, and embed those whose content changed.

    A file that was only touched, or that moved within the folders the gallery was built from, is not
    embedded again. Images whose file is gone are listed, and stay unless --prune is given. New files are not
    added: see `lookalike index sync`.

    \b
      lookalike index update shop.gallery
    """
    target = Gallery(gallery)
    done = syncing.update(target, prune=prune, retry=retry, max_bad=max_bad, show_progress=True)
    if done.gone:
        verb = "removed" if prune else "--prune removes them"
        _list(f"{pluralize(len(done.gone), 'image')} without their file ({verb}):", done.gone)
    _finish(ctx, target, done.outcome, as_json, gone=done.gone)


@click.command(short_help="Make a gallery hold what is in a folder.")
@click.argument("gallery", type=_FILE)
@click.argument("folder", type=_FILE)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@retry_option
@max_bad_option
@json_option
@click.pass_context
def sync(
    ctx: click.Context,
    gallery: Path,
    folder: Path,
    dry_run: bool,
    retry: bool,
    max_bad: float,
    as_json: bool,
) -> None:
    """Make GALLERY hold what is in FOLDER now: add what is new, replace what changed, remove what is gone.

    Images of other folders stay. A file that was moved or touched is not embedded again.

    \b
      lookalike index sync shop.gallery photos --dry-run
      lookalike index sync shop.gallery photos
    """
    target = Gallery(gallery)
    if dry_run:
        found = syncing.compare(target, folder)
        text = f"{gallery}: {found.new} new, {found.changed} changed, {found.unchanged} unchanged, "
        print_result(vars(found), as_json, f"{text}{len(found.gone)} gone or moved")
        return
    outcome = syncing.sync(target, folder, retry=retry, max_bad=max_bad, show_progress=True)
    _finish(ctx, target, outcome, as_json)


@click.command(short_help="Make a gallery again with another model.")
@click.argument("gallery", type=_FILE)
@click.option("--model", required=True, type=_FILE, help="The model file to embed with.")
@click.option(
    "--drop-old", is_flag=True, help="Delete the old gallery at the end, instead of keeping GALLERY.old."
)
@max_bad_option
@json_option
@click.pass_context
def rebuild(
    ctx: click.Context, gallery: Path, model: Path, drop_old: bool, max_bad: float, as_json: bool
) -> None:
    """Make GALLERY again with another model: the same images, ids, labels and metadata, other vectors.

    The new gallery takes the old one's place when it is complete; until then the old one serves, and stays
    as it is whatever happens. The same command goes on with a rebuild that was cut off. The old gallery is
    kept as GALLERY.old.

    \b
      lookalike index rebuild shop.gallery --model better.onnx
    """
    done = rebuild_gallery(
        Gallery(gallery), Embedder(model), keep_old=not drop_old, max_bad=max_bad, show_progress=True
    )
    if done.resumed:
        print_status(f"{done.resumed} images had been done by an earlier rebuild")
    if done.old is not None:
        print_status(f"the old gallery is {done.old} now")
    _finish(ctx, done.gallery, done.outcome, as_json, old=str(done.old) if done.old else None)


def _finish(ctx: click.Context, gallery: Gallery, outcome: IngestResult, as_json: bool, **more: Any) -> None:
    """Report on a run, and leave with code 3 where files were unusable."""
    facts = {
        **gallery.info(),
        **outcome.counts,
        **more,
        "bad": [{"path": str(b.stamp.full), "reason": b.reason, "detail": b.detail} for b in outcome.bad],
        "duplicates": outcome.duplicates,
    }
    print_result(facts, as_json, _summary(gallery, outcome))
    if outcome.duplicates:
        copies = sum(len(keys) - 1 for keys in outcome.duplicates)
        groups = [_group(keys) for keys in outcome.duplicates]
        _list(f"{pluralize(copies, 'image')} with the same bytes as another; all are kept:", groups)
    if outcome.bad:
        bad = [f"{file.stamp.full}: {file.detail}" for file in outcome.bad]
        _list(f"{pluralize(len(bad), 'file')} unusable and skipped:", bad)
        ctx.exit(3)


def _summary(gallery: Gallery, outcome: IngestResult) -> str:
    added = outcome.added - outcome.replaced
    parts = [
        f"{count} {what}"
        for count, what in (
            (added, "added"),
            (outcome.replaced, "replaced"),
            (outcome.moved, "moved"),
            (outcome.described, "described anew"),
            (outcome.removed, "removed"),
        )
        if count
    ]
    done = ", ".join(parts) or "nothing new to add"
    text = f"{gallery.folder}: {done}, {outcome.unchanged} there already"
    text += f"; it holds {pluralize(len(gallery), 'image')}"
    if outcome.copied:
        text += f" ({outcome.copied} not embedded, since their bytes are known)"
    if outcome.ignored:
        text += f" ({pluralize(outcome.ignored, 'file')} without an image suffix passed over)"
    if outcome.unmatched:
        text += f" ({pluralize(outcome.unmatched, 'row')} of the table about files that were not given)"
    return text


def _group(keys: list[str]) -> str:
    shown = " = ".join(keys[:3])
    return shown if len(keys) <= 3 else f"{shown} = {len(keys) - 3} more"


def _list(title: str, lines: list[str]) -> None:
    print_status(title)
    for line in lines[:_SHOWN]:
        print_status(f"  {line}")
    if len(lines) > _SHOWN:
        print_status(f"  and {len(lines) - _SHOWN} more; --json lists them all")
