"""`lookalike index info`, `remove`, `verify` and `snapshot`: see, shrink, verify and copy a gallery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.commands.options import size_text
from retrieval.commands.search_options import where_option
from retrieval.galleries.items import Item
from retrieval.gallery import Gallery
from retrieval.model.precision import Precision
from retrieval.model.runtime import Runtime
from retrieval.text import align_columns, pluralize
from retrieval.upkeep.salvage import Salvage
from retrieval.upkeep.verify import Problem

_FILE = click.Path(path_type=Path)
_EXAMPLES = 5  # images that a dry run shows
_gallery_argument = click.argument("gallery", type=_FILE)


@click.command()
@_gallery_argument
@json_option
def info(gallery: Path, as_json: bool) -> None:
    """Show the contents of GALLERY: images, index, model, folders, metadata columns, disk space, last runs.

    \b
      lookalike index info shop.gallery
      lookalike index info shop.gallery --json
    """
    facts = Gallery.open(gallery).info()
    rows = _store_info(facts) if "store" in facts else _info(facts)
    print_result(facts, as_json, align_columns(rows, right={0}))


@click.command()
@_gallery_argument
@click.argument("items", nargs=-1, metavar="[ID]...")
@where_option("Remove all images that fulfil a condition")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and change nothing.")
@json_option
def remove(gallery: Path, items: tuple[str, ...], where: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove images from GALLERY: those with an ID, and all that fulfil CONDITION. Image files are not
    deleted, except those that were uploaded to a server and are stored in the gallery.

    An ID is what `lookalike search` shows: the number of an image, or its key, which is the id in your
    metadata or else the path. CONDITION is written as for `lookalike search`. Searches no longer find the
    images; `lookalike index optimize --compact` frees their space. The decision is logged: later runs leave
    the files of the images out, see `lookalike check decisions`.

    \b
      lookalike index remove shop.gallery red/7.jpg
      lookalike index remove shop.gallery 17 18
      lookalike index remove shop.gallery --where "label = 'returns'" --dry-run
      lookalike index remove shop.gallery --where "added < date '2020-01-01'"
    """
    if not items and where is None:
        raise click.UsageError("Missing argument '[ID]...' or option '--where'.")
    target = Gallery.open(gallery)
    if dry_run:
        ids = target.select(items, where=where)
        examples = list(target.items(ids[:_EXAMPLES]).values())
        left = len(target) - int(target.present(ids).sum())
        facts = {"gallery": str(gallery), "dry_run": True, "removed": len(ids), "images": left}
        print_result(
            facts | {"examples": [asdict(item) for item in examples]},
            as_json,
            [
                f"{gallery}: {pluralize(len(ids), 'image')} would be removed; {left} would stay",
                *_example_lines(examples, len(ids)),
            ],
        )
        return
    editor = target.editor()
    with editor.writing():
        target.refresh()
        ids = target.select(items, where=where)
        editor.remove(ids)
    target.refresh()
    count = len(ids)
    facts = {"gallery": str(gallery), "dry_run": False, "removed": count, "images": len(target)}
    print_result(
        facts, as_json, [f"{gallery}: {count} removed; {pluralize(len(target), 'image')} in the gallery"]
    )


def _example_lines(examples: Sequence[Item], count: int) -> list[str]:
    rows = [[str(item.id), item.label or "-", item.path or item.key] for item in examples]
    lines = [f"  {line}" for line in align_columns(rows, right={0})] if rows else []
    return [*lines, f"  and {count - len(rows)} more"] if count > len(rows) else lines


@click.command()
@_gallery_argument
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@runtime_options
@json_option
@click.pass_context
def verify(ctx: click.Context, gallery: Path, repair: bool, runtime: Runtime, as_json: bool) -> None:
    """Verify database, vectors, index and model of GALLERY against their checksums. The exit code is 1 if
    something is damaged.

    --repair builds a damaged or missing index and moves damaged vectors to GALLERY/quarantine, which you may
    delete. Images without a vector keep their ids, labels and metadata, but searches do not find them until
    `lookalike index add` (or `build`) with the same images has embedded them again.

    If gallery.db is lost, older than the other files, or of another gallery, --repair builds a new one from
    the vector files and the facts beside them, with all ids, keys, paths, vectors, labels and metadata; those
    that changed later are kept only as far as the old file has them.

    \b
      lookalike index verify shop.gallery
      lookalike index verify shop.gallery --repair
    """
    found = Gallery.kind(gallery).verify_at(gallery, repair=repair, runtime=runtime, show_progress=True)
    facts = {
        "gallery": str(gallery),
        "images": found.items,
        "vectors": found.vectors,
        "waiting": found.waiting,
        "leftovers": found.leftovers,
        "outdated_copy": found.outdated_copy,
        "problems": [_plain(problem) for problem in found.problems],
        "left": [_plain(problem) for problem in found.left],
        "salvage": None if found.salvage is None else vars(found.salvage),
    }
    lines = [f"{problem.what}; {_remedy(problem, repair)}" for problem in found.problems]
    lines += [f"not repaired: {problem.what}; {problem.remedy}" for problem in found.left if repair]
    lines += _salvaged(gallery, found.salvage) if found.salvage else []
    counts = f"{found.items} images, {found.vectors} vectors"
    if not found.left:
        lines.append(f"{gallery}: {'repaired' if found.problems else 'no problems'}: {counts}")
    else:
        hint = (
            ""
            if repair or not any(p.repair for p in found.left)
            else "; --repair repairs what can be repaired"
        )
        lines.append(f"{gallery}: damaged{hint}")
    if found.waiting:
        lines.append(
            f"images without a vector: {found.waiting}; embed them by `lookalike index add {gallery} IMAGES`"
        )
    if found.outdated_copy:
        what = "gallery.json: older than gallery.db, as after a killed process"
        lines.append(f"{what}; nothing is lost, and the next writer renews it")
    if found.leftovers:
        lines.append(
            f"files of a running or interrupted writer: {found.leftovers}; the next writer deletes them"
        )
    print_result(facts, as_json, lines)
    if found.left:
        ctx.exit(1)


@click.command()
@_gallery_argument
@click.argument("target", type=_FILE)
@json_option
def snapshot(gallery: Path, target: Path, as_json: bool) -> None:
    """Copy GALLERY to the new folder TARGET: one committed state, also while other processes write to it.

    TARGET appears when it is complete. On the same file system, vectors, index and model are hard links, so
    that the copy takes no time and little space; copy it to another disk as a backup. Image files are not
    copied, except those that were uploaded to a server.

    \b
      lookalike index snapshot shop.gallery shop.monday
    """
    done = Gallery.open(gallery).snapshot(target, show_progress=True)
    facts = {**vars(done), "folder": str(target)}
    how = f"{pluralize(done.copied, 'file')} copied" if done.copied else "all but the database linked"
    print_result(facts, as_json, f"{target}: {pluralize(done.files, 'file')}, {size_text(done.bytes)}; {how}")


# ---- text output


def _info(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows to print, (title, text)."""
    index = facts["index"]
    kind = index["kind"]
    if kind == "flat":
        described = "flat: exact, recall 1"
    else:
        described = f"{kind}: recall {index['recall']:.3f} measured, {index['ms']:.2f} ms a query"
        described += f", {index['vectors']} vectors indexed, {facts['outside_index']} not yet"
    lines = [("gallery", facts["gallery"]), ("images", f"{facts['images']}")]
    for name, hint in (
        ("removed", "`lookalike index optimize --compact` frees their space"),
        ("waiting", "no vector; `lookalike index add` with the same images embeds them again"),
        ("bridged", "from another model's vectors; `lookalike index rebuild --bridge` goes on"),
        ("bad_files", "`lookalike index add --retry` with the same images tries them again"),
    ):
        if facts[name]:
            lines.append((name.replace("_", " "), f"{facts[name]} ({hint})"))
    lines += [
        ("index", described),
        ("dimensions", f"{facts['dim']}, stored as {facts['storage']}"),
        ("model", facts["fingerprint"]),
        ("text search", "yes" if facts["texts"] else "no: there is no text encoder"),
    ]
    lines += _computed(facts)
    lines += [("images in", f"{root} ({count})") for root, count in facts["roots"].items()]
    lines += _columns(facts)
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in facts["bytes"].items() if name != "all")
    lines.append(("disk space", f"{size_text(facts['bytes']['all'])} ({parts})"))
    for run in facts["runs"]:
        done = ", ".join(f"{name} {count}" for name, count in run["counts"].items() if count)
        lines.append(("run", f"{run['started']}  {run['command']}  {done}".rstrip()))
    return lines


def _computed(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows that say where and how precisely the model has run."""
    lines = [("created by", facts["provider"])] if facts["provider"] else []
    if facts["precision"]:
        lines.append(("precision", str(Precision.from_dict(facts["precision"]))))
    return lines


def _store_info(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows to print for a gallery in a database, (title, text)."""
    engine = dict(facts["engine"])
    lines = [
        ("gallery", facts["gallery"]),
        ("store", facts["store"]),
        ("images", f"{facts['images']}"),
        ("dimensions", f"{facts['dim']}, stored as {facts['storage']}"),
        ("model", facts["fingerprint"]),
        ("text search", "yes" if facts["texts"] else "no: there is no text encoder"),
    ]
    lines += [*_computed(facts), *_columns(facts)]
    if (size := engine.pop("bytes", None)) is not None:
        lines.append(("disk space", size_text(size)))
    return lines + [(name, str(value)) for name, value in engine.items() if value is not None]


def _columns(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about columns, products and parts; none for what a gallery does not have."""
    product = ", variants by ".join(filter(None, (facts["product"], facts["variant"])))
    rows = (
        ("columns", ", ".join(facts["columns"])),
        ("product", product),
        ("parts of pictures", facts["parts"]),
    )
    return [(title, text) for title, text in rows if text]


def _plain(problem: Problem) -> dict[str, str | bool]:
    return {"what": problem.what, "remedy": problem.remedy, "repairable": problem.repair is not None}


def _salvaged(gallery: Path, found: Salvage) -> list[str]:
    """Return what was saved of a lost database, and what was not."""
    lost = (
        "the kind of index that was asked for is lost",
        "the columns of products and variants are lost, if there were any; "
        f"set them again by `lookalike index add {gallery} --product COLUMN`",
    )
    facts_only = found.items - found.complete
    return [
        f"gallery.db: built again with {pluralize(found.items, 'image')}"
        + ("; the old file is in quarantine" if found.quarantined else ""),
        *(
            f"{count} {what}"
            for count, what in (
                (facts_only, "with label and metadata as they were when the vector was stored"),
                (found.lost, "vectors lost; adding their images embeds them again"),
                (found.renamed, "with another key, because two had the same"),
                (found.nameless, "with a key made of their id, because their key, path and label are lost"),
            )
            if count
        ),
        *(() if found.kept_manifest else lost),
    ]


def _remedy(problem: Problem, repair: bool) -> str:
    return problem.remedy if repair or problem.repair is None else f"with --repair, {problem.remedy}"
