"""`lookalike index decisions`: list and undo the decisions that people made about images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.ingest.editor import open_editor
from retrieval.storage.decisions import Decision, DecisionLog
from retrieval.stores.gallery import is_gallery, open_gallery
from retrieval.text import align_columns, pluralize

_NO_LABEL = "no label"


@click.command(short_help="List and undo decisions made by hand.")
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--undo", "numbers", type=int, multiple=True, metavar="N", help="Withdraw decision N; several times."
)
@click.option("--all", "show_all", is_flag=True, help="List those that were undone, too.")
@json_option
def decisions(gallery: Path, numbers: tuple[int, ...], show_all: bool, as_json: bool) -> None:
    """List the decisions that people made about the images of GALLERY: a label changed, an image removed, an
    image kept as it is. They are in GALLERY/decisions.jsonl.

    They come from `lookalike index remove`, `lookalike duplicates --remove`, and a server's changes.
    `index update`, `sync`, `watch`, `add` and `build` carry them out again where a run would undo them: files
    of removed images are left out, and a label that returns from elsewhere is corrected. A decision is about
    the bytes of a file: other bytes at its path are another image.

    --undo gives an image the label it had. An image that was removed comes back when its folder is indexed
    the next time.

    \b
      lookalike index decisions shop.gallery
      lookalike index decisions shop.gallery --undo 17 --undo 18
    """
    if not is_gallery(gallery):
        raise InputError(f"{gallery}: not a gallery; name the folder of one")
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


def _row(one: Decision) -> list[str]:
    what = {
        "label": f"label {one.old or _NO_LABEL} -> {one.new or _NO_LABEL}",
        "remove": "removed",
        "keep": f"kept as {one.new or _NO_LABEL}",
    }[one.action]
    return [str(one.n), one.time, what + " (undone)" * one.undone, one.key]
