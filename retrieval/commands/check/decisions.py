"""`lookalike check decisions`, `decide` and `undo`: what people decided about images by hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.galleries.database_folder import is_gallery
from retrieval.gallery import Gallery
from retrieval.ingest.judgements import read_judgements
from retrieval.storage.decisions import Decision, DecisionLog
from retrieval.text import align_columns, pluralize

_NO_LABEL = "no label"
_SHOWN = 20  # changed labels


_gallery_argument = click.argument("gallery", type=click.Path(path_type=Path))


@click.command()
@_gallery_argument
@click.option("--all", "show_all", is_flag=True, help="List those that were undone, too.")
@json_option
def decisions(gallery: Path, show_all: bool, as_json: bool) -> None:
    """List the decisions that people made about the images of GALLERY: a label changed, an image removed, an
    image kept as it is. They are in GALLERY/decisions.jsonl.

    They come from `lookalike check decide`, `lookalike index remove`, `check duplicates --remove`, and a
    server's changes. `index sync`, `add` and `build` carry them out again where a run would undo them: files
    of removed images are left out, and a label that returns from elsewhere is corrected. A decision is about
    the bytes of a file: other bytes at its path are another image.

    \b
      lookalike check decisions shop.gallery
    """
    _check_gallery(gallery)
    found = [one for one in DecisionLog(gallery).read() if show_all or not one.undone]
    rows = [["n", "time", "decision", "image"], *map(_row, found)]
    lines = align_columns(rows, right={0}) if found else [f"{gallery}: no decisions"]
    print_result({"gallery": str(gallery), "decisions": [asdict(one) for one in found]}, as_json, lines)


@click.command()
@_gallery_argument
@click.argument("numbers", type=int, nargs=-1, required=True, metavar="N...")
@json_option
def undo(gallery: Path, numbers: tuple[int, ...], as_json: bool) -> None:
    """Take back the decisions N of GALLERY, as `lookalike check decisions` numbers them.

    An image gets the label that it had. One that was removed comes back when its folder is indexed the next
    time. One that was kept may be suspected again.

    \b
      lookalike check undo shop.gallery 17 18
    """
    _check_gallery(gallery)
    editor = Gallery.open(gallery).editor()
    with editor.writing():
        before = {one.n for one in DecisionLog(gallery).read() if one.undone}
        changed = len(editor.undo(numbers))
    undone = [number for number in dict.fromkeys(numbers) if number not in before]
    facts = {"gallery": str(gallery), "undone": undone, "relabelled": changed}
    already = len({*numbers} & before)
    text = f"{gallery}: {pluralize(len(undone), 'decision')} undone"
    text += f", {already} undone before" if already else ""
    print_result(facts, as_json, f"{text}; {pluralize(changed, 'label')} changed back")


@click.command()
@_gallery_argument
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show the changes and make none.")
@json_option
def decide(gallery: Path, table: Path, dry_run: bool, as_json: bool) -> None:
    """Do with the images of GALLERY what a TABLE says, such as one that a check wrote with --list.

    TABLE is a CSV or Parquet file with one of the columns id, key and path, and with one or both of label and
    decision. In `decision`, remove takes an image out of the gallery, and keep says that it is right as it
    is: its label is not suspected any more. Another label in `label` becomes that of the image. Rows with the
    present label, or none, and no decision change nothing; further columns are ignored.

    \b
      lookalike check decide shop.gallery suspects.csv --dry-run
      lookalike check decide shop.gallery suspects.csv
    """
    _check_gallery(gallery)
    target = Gallery.open(gallery)
    editor = target.editor()
    with editor.writing():
        target.refresh()
        judgements = read_judgements(table, target)
        if judgements.pairs:
            raise InputError(
                f"{table}: decides on pairs; it needs one of id, key and path, and label or decision"
            )
        items = {item.id: item for item in editor.stored_items([*judgements.labels, *judgements.kept])}
        changed = [items[n] for n, label in judgements.labels.items() if label != items[n].label]
        relabelled = {item.id for item in changed}
        kept = [items[n] for n in judgements.kept if n not in relabelled]
        labels = [judgements.labels[item.id] for item in changed]
        if not dry_run:
            if changed:
                editor.relabel(changed, labels)
            for item in kept:
                editor.keep(item)
            if judgements.removed:
                editor.remove(judgements.removed)
    changes = [
        {"id": item.id, "key": item.key, "old": item.label, "new": label}
        for item, label in zip(changed, labels, strict=True)
    ]
    same = len(judgements.labels) - len(changed)
    facts = {"gallery": str(gallery), "dry_run": dry_run, "unchanged": same, "changes": changes}
    facts |= {"kept": len(kept), "removed": len(judgements.removed)}
    would = "would be " if dry_run else ""
    verb = "would change" if dry_run else "changed"
    text = f"{gallery}: {pluralize(len(changes), 'label')} {verb}, {same} as before"
    for count, what in ((len(kept), "kept"), (len(judgements.removed), "removed")):
        text += f"; {pluralize(count, 'image')} {would}{what}" if count else ""
    rows = [[f"  {one['old'] or _NO_LABEL} -> {one['new']}", str(one["key"])] for one in changes[:_SHOWN]]
    more = [f"  and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    print_result(facts, as_json, [text, *align_columns(rows), *more])


def _check_gallery(folder: Path) -> None:
    if not is_gallery(folder):
        raise InputError(f"{folder}: not a gallery; name the folder of one")


def _row(one: Decision) -> list[str]:
    what = {
        "label": f"label {one.old or _NO_LABEL} -> {one.new or _NO_LABEL}",
        "remove": "removed",
        "keep": f"kept as {one.new or _NO_LABEL}",
    }[one.action]
    return [str(one.n), one.time, what + " (undone)" * one.undone, one.key]
