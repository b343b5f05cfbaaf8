"""`lookalike index decisions`: list, undo and take the decisions that people made about images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.galleries.database import is_gallery, open_gallery
from retrieval.galleries.searchable import SearchableGallery
from retrieval.ingest.editor import open_editor
from retrieval.ingest.judgements import read_judgements
from retrieval.storage.decisions import Decision, DecisionLog
from retrieval.text import align_columns, pluralize

_NO_LABEL = "no label"
_SHOWN = 20  # changed labels


@click.command(short_help="List, undo and take decisions made by hand.")
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--undo", "numbers", type=int, multiple=True, metavar="N", help="Withdraw decision N; several times."
)
@click.option("--all", "show_all", is_flag=True, help="List those that were undone, too.")
@click.option(
    "--labels",
    "table",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take the labels of a CSV or Parquet table: label, and one of id, key and path.",
)
@click.option("--dry-run", is_flag=True, help="With --labels, show the changes and make none.")
@json_option
def decisions(
    gallery: Path,
    numbers: tuple[int, ...],
    show_all: bool,
    table: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """List the decisions that people made about the images of GALLERY: a label changed, an image removed, an
    image kept as it is. They are in GALLERY/decisions.jsonl.

    They come from --labels, `lookalike index remove`, `duplicates --remove`, and a server's changes.
    `index update`, `sync`, `watch`, `add` and `build` carry them out again where a run would undo them: files
    of removed images are left out, and a label that returns from elsewhere is corrected. A decision is about
    the bytes of a file: other bytes at its path are another image.

    --labels takes a table back that `lookalike suspects --list` wrote, and whose column `label` you have
    corrected. Rows with the present label or none change nothing, and further columns are ignored.

    --undo gives an image the label it had. An image that was removed comes back when its folder is indexed
    the next time.

    \b
      lookalike index decisions shop.gallery
      lookalike index decisions shop.gallery --labels suspects.csv
      lookalike index decisions shop.gallery --undo 17 --undo 18
    """
    if not is_gallery(gallery):
        raise InputError(f"{gallery}: not a gallery; name the folder of one")
    if table is not None and numbers:
        raise click.UsageError("--labels and --undo exclude each other")
    if dry_run and table is None:
        raise click.UsageError("--dry-run needs --labels")
    if table is not None:
        _take(open_gallery(gallery), table, dry_run, as_json)
        return
    if numbers:
        editor = open_editor(open_gallery(gallery))
        with editor.writing():
            changed = editor.undo(numbers)
        facts = {"gallery": str(gallery), "undone": list(numbers), "relabelled": changed}
        undone = pluralize(len(set(numbers)), "decision")
        text = f"{gallery}: {undone} undone; {pluralize(changed, 'label')} changed back"
        print_result(facts, as_json, text)
        return
    found = [one for one in DecisionLog(gallery).read() if show_all or not one.undone]
    rows = [["n", "time", "decision", "image"], *map(_row, found)]
    lines = align_columns(rows, right={0}) if found else [f"{gallery}: no decisions"]
    print_result({"gallery": str(gallery), "decisions": [asdict(one) for one in found]}, as_json, lines)


def _take(gallery: SearchableGallery, table: Path, dry_run: bool, as_json: bool) -> None:
    """Give items the labels of a table."""
    editor = open_editor(gallery)
    with editor.writing():
        gallery.refresh()
        judgements = read_judgements(table, gallery)
        if judgements.pairs:
            raise InputError(
                f"{table}: decides on pairs; it needs the column label, and one of id, key and path"
            )
        items = editor.stored_items([*judgements.labels])
        changed = [item for item in items if judgements.labels[item.id] != item.label]
        labels = [judgements.labels[item.id] for item in changed]
        if changed and not dry_run:
            editor.relabel(changed, labels)
    changes = [
        {"id": item.id, "key": item.key, "old": item.label, "new": label}
        for item, label in zip(changed, labels, strict=True)
    ]
    verb = "would change" if dry_run else "changed"
    text = (
        f"{gallery.folder}: {pluralize(len(changes), 'label')} {verb}, {len(items) - len(changes)} as before"
    )
    rows = [[f"  {one['old'] or _NO_LABEL} -> {one['new']}", str(one["key"])] for one in changes[:_SHOWN]]
    more = [f"  and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    facts = {"gallery": str(gallery.folder), "dry_run": dry_run, "unchanged": len(items) - len(changes)}
    print_result(facts | {"changes": changes}, as_json, [text, *align_columns(rows), *more])


def _row(one: Decision) -> list[str]:
    what = {
        "label": f"label {one.old or _NO_LABEL} -> {one.new or _NO_LABEL}",
        "remove": "removed",
        "keep": f"kept as {one.new or _NO_LABEL}",
    }[one.action]
    return [str(one.n), one.time, what + " (undone)" * one.undone, one.key]
