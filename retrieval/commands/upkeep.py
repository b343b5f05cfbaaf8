"""`lookalike index info`, `remove`, `verify`, `compact`, `export` and `import`: a gallery over the years."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.gallery import Gallery
from retrieval.ingest.transfer import export, import_vectors
from retrieval.text import align_columns
from retrieval.upkeep.compact import compact as compact_gallery
from retrieval.upkeep.verify import Problem
from retrieval.upkeep.verify import verify as verify_gallery

_FILE = click.Path(path_type=Path)
_gallery_argument = click.argument("gallery", type=_FILE)


@click.command(short_help="Say what a gallery holds.")
@_gallery_argument
@json_option
def info(gallery: Path, as_json: bool) -> None:
    """Say what GALLERY holds: images, index, model, folders, columns, bytes, the last runs."""
    facts = Gallery(gallery).info()
    print_result(facts, as_json, "\n".join(align_columns(_info(facts), right={0})))


@click.command(short_help="Remove images, by id.")
@_gallery_argument
@click.argument("items", nargs=-1, required=True, metavar="ID...")
@json_option
def remove(gallery: Path, items: tuple[str, ...], as_json: bool) -> None:
    """Remove images from GALLERY, by their ids; their files stay where they are, except for those that a
    server was given for the gallery to keep.

    An ID is what `lookalike search` shows: the id you gave an image, or its path in the gallery, or its
    number. They are gone from all searches at once; `lookalike index compact` gives their space back.

    \b
      lookalike index remove shop.gallery red/7.jpg
    """
    target = Gallery(gallery)
    count = target.remove(items)
    facts = {"gallery": str(gallery), "removed": count, "images": len(target)}
    print_result(facts, as_json, f"{gallery}: {count} removed; it holds {len(target)}")


@click.command(short_help="Check a gallery byte by byte, and mend it.")
@_gallery_argument
@click.option("--repair", is_flag=True, help="Put right what can be.")
@json_option
@click.pass_context
def verify(ctx: click.Context, gallery: Path, repair: bool, as_json: bool) -> None:
    """Check GALLERY byte by byte: database, vectors, index and model, against the checksums they were
    written with. Leaves with code 1 if something is wrong.

    --repair builds a damaged index again, and sets damaged vectors aside in GALLERY/quarantine, which you may
    delete: the images they were of are not found until `lookalike index add` (or `build`) of the same ones
    has embedded them again. Their ids, labels and metadata are kept meanwhile, and the rest serves.

    \b
      lookalike index verify shop.gallery
      lookalike index verify shop.gallery --repair
    """
    found = verify_gallery(gallery, repair=repair, show_progress=True)
    facts = {
        "gallery": str(gallery),
        "images": found.items,
        "vectors": found.vectors,
        "waiting": found.waiting,
        "leftovers": found.leftovers,
        "problems": [_plain(problem) for problem in found.problems],
        "left": [_plain(problem) for problem in found.left],
    }
    lines = [f"{problem.what}; {_remedy(problem, repair)}" for problem in found.problems]
    lines += [f"still wrong: {problem.what}; {problem.remedy}" for problem in found.left if repair]
    counts = f"{found.items} images, {found.vectors} vectors"
    if not found.left:
        lines.append(f"{gallery}: {'put right' if found.problems else 'all is well'}: {counts}")
    else:
        hint = "" if repair or not any(p.repair for p in found.left) else "; --repair puts right what can be"
        lines.append(f"{gallery}: damaged{hint}")
    if found.waiting:
        lines.append(
            f"images to be embedded again: {found.waiting}; `lookalike index add {gallery} IMAGES` does it"
        )
    if found.leftovers:
        lines.append(f"files of a writer at work or cut off, cleared by the next: {found.leftovers}")
    print_result(facts, as_json, "\n".join(lines))
    if found.left:
        ctx.exit(1)


@click.command(short_help="Give the space of removed images back.")
@_gallery_argument
@json_option
def compact(gallery: Path, as_json: bool) -> None:
    """Give the space of removed images back, and make few large files of many small ones.

    Searches go on meanwhile, in other processes too. Ids stay. Until it is done it needs as much space again
    as the vectors it rewrites.

    \b
      lookalike index compact shop.gallery
    """
    done = compact_gallery(Gallery(gallery), show_progress=True)
    before, after = done.bytes
    print_result(
        {"gallery": str(gallery), **vars(done)},
        as_json,
        f"{gallery}: {done.dropped} removed images dropped; files of vectors: {done.segments[0]} before, "
        f"{done.segments[1]} now; on the disk: {_size(before)} before, {_size(after)} now"
        + ("; the index was built again" if done.reindexed else ""),
    )


@click.command("export", short_help="Write vectors, ids and metadata to a file.")
@_gallery_argument
@click.argument("file", type=_FILE)
@json_option
def export_vectors(gallery: Path, file: Path, as_json: bool) -> None:
    """Write the vectors of GALLERY, with ids, paths, labels and metadata, to FILE.

    FILE ends in .parquet (a row for each image, its vector in the column `vector`), or in .npy: the vectors
    alone, and beside it a .csv with the rest in the same order.

    
      lookalike index export shop.gallery shop.parquet
      lookalike index export shop.gallery shop.npy
    """
    count = export(Gallery(gallery), file, show_progress=True)
    print_result({"file": str(file), "images": count}, as_json, f"{file}: {count} images")


@click.command("import", short_help="Take vectors that were made elsewhere.")
@_gallery_argument
@click.argument("file", type=_FILE)
@click.option("--model", type=_FILE, help="The model file that made the vectors.")
@click.option("--embedding", metavar="NAME", help="What made the vectors, where it is not a model file.")
@click.option(
    "--root", type=_FILE, metavar="DIR", help="What paths are relative to; else the folder of FILE."
)
@json_option
def import_(
    gallery: Path, file: Path, model: Path | None, embedding: str | None, root: Path | None, as_json: bool
) -> None:
    """Take vectors that were made elsewhere into GALLERY, which is made if it is not there.

    FILE is a .parquet with a column `vector`, or a .npy [N, D] with a .csv of the same name beside it, or a
    .npz with an array `vectors`; other columns (arrays) are `id`, `path`, `label`, and metadata as you like.
    Images need no file. Vectors are normalised; one that is zero or not finite is refused, and nothing is
    changed then.

    With --model, pictures can be searched for and added; it must be what made the vectors. With --embedding
    the gallery is searched by its own images or by vectors from Python.

    
      lookalike index import shop.gallery shop.parquet --model model.onnx
      lookalike index import clip.gallery clip.npz --embedding clip-vit-b32
    """
    if model is not None and embedding is not None:
        raise click.UsageError("--model and --embedding are one or the other")
    count = import_vectors(gallery, file, model=model, name=embedding, root=root, show_progress=True)
    size = len(Gallery(gallery))
    facts = {"gallery": str(gallery), "imported": count, "images": size}
    print_result(facts, as_json, f"{gallery}: {count} vectors taken in; it holds {size}")


# ---- words


def _info(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What there is to say, as (what, value)."""
    index, counts = facts["index"], facts
    kind = index["kind"]
    if kind == "flat":
        described = "flat: every vector is compared, recall 1"
    else:
        described = f"{kind}: recall {index['recall']:.3f} measured, {index['ms']:.2f} ms a query"
        described += f", {index['vectors']} vectors in it, {facts['outside_index']} compared beside it"
    lines = [("gallery", facts["gallery"]), ("images", f"{facts['images']}")]
    for name, text in (
        ("removed", "whose space `lookalike index compact` gives back"),
        ("waiting", "to be embedded again: `lookalike index add` with the same images"),
        ("bad_files", "that could not be used; `lookalike index add --retry` tries them again"),
    ):
        if counts[name]:
            lines.append((name.replace("_", " "), f"{counts[name]} {text}"))
    lines += [("index", described), ("dimensions", f"{facts['dim']}"), ("model", facts["fingerprint"])]
    lines += [("images in", f"{root} ({count})") for root, count in facts["roots"].items()]
    if facts["columns"]:
        lines.append(("columns", ", ".join(facts["columns"])))
    parts = ", ".join(f"{name} {_size(size)}" for name, size in facts["bytes"].items() if name != "all")
    lines.append(("on the disk", f"{_size(facts['bytes']['all'])} ({parts})"))
    for run in facts["runs"]:
        done = ", ".join(f"{name} {count}" for name, count in run["counts"].items() if count)
        lines.append(("run", f"{run['started']}  {run['command']}  {done}".rstrip()))
    return lines


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _plain(problem: Problem) -> dict[str, str | bool]:
    return {"what": problem.what, "remedy": problem.remedy, "repairable": problem.repair is not None}


def _remedy(problem: Problem, repair: bool) -> str:
    return problem.remedy if repair or problem.repair is None else f"with --repair, {problem.remedy}"
