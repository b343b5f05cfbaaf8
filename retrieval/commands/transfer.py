"""`lookalike index export` and `import`: exchange vectors with other programs."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.commands.options import index_options, storage_option
from retrieval.gallery import Gallery
from retrieval.inference.runtime import Runtime
from retrieval.ingest.transfer import ImportResult, export_vectors, import_vectors
from retrieval.storage.records import IndexSpec
from retrieval.text import pluralize

_FILE = click.Path(path_type=Path)
_gallery_argument = click.argument("gallery", type=_FILE)


@click.command("export", short_help="Export vectors, ids and metadata.")
@_gallery_argument
@click.argument("file", type=_FILE)
@json_option
def export_(gallery: Path, file: Path, as_json: bool) -> None:
    """Export the vectors of GALLERY, with ids, paths, labels and metadata, to FILE.

    FILE ends in .parquet, with one row per image and the column `vector`; or in .npy, with a .csv beside it
    that has the other columns in the same order. `lookalike index import` reads both.

    \b
      lookalike index export shop.gallery shop.parquet
      lookalike index export shop.gallery shop.npy
    """
    count = export_vectors(Gallery(gallery), file, show_progress=True)
    print_result({"file": str(file), "images": count}, as_json, f"{file}: {count} images")


@click.command("import", short_help="Import vectors from another program.")
@_gallery_argument
@click.argument("file", type=_FILE)
@click.option("--model", type=_FILE, help="Model file that computed the vectors.")
@click.option("--embedding", metavar="NAME", help="Name of the embedding, if there is no model file.")
@click.option(
    "--root", type=_FILE, metavar="DIR", help="Base folder of relative paths; by default the folder of FILE."
)
@click.option(
    "--prefix",
    metavar="NAME",
    help="Start of the ids of vectors without ids; by default the name of FILE without its suffix.",
)
@index_options
@storage_option
@runtime_options
@json_option
def import_(
    gallery: Path,
    file: Path,
    model: Path | None,
    embedding: str | None,
    root: Path | None,
    prefix: str | None,
    kind: str | None,
    recall: float | None,
    memory: int | None,
    storage: str | None,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Import vectors from another program into GALLERY, which is created if necessary, and index them.

    FILE is a .parquet with a column `vector`, a .npy [N, D] with an optional .csv of the same name beside it,
    or a .npz with an array `vectors`. Other columns (arrays) are `id`, `path`, `label` and any metadata. An
    image needs no file. Vectors are normalized. All rows are checked first: if one of them is invalid,
    nothing is imported.

    With --model, which must have computed the vectors, you can search by new images and add images. With
    --embedding, queries are the gallery's own images, or vectors from Python.

    \b
      lookalike index import shop.gallery shop.parquet --model model.onnx
      lookalike index import clip.gallery clip.npz --embedding clip-vit-b32
      lookalike index import clip.gallery more.npy --embedding clip-vit-b32 --kind hnsw

    The id of an image is its `id`, or else its `path`; an image with the same id is replaced. Without these
    columns, row 17 of clip.npy gets the id clip-000000017. Such images are never replaced: rows that an
    earlier import of the same file added are skipped, and another file of the same name needs a --prefix.

    Rows are committed in the order of FILE, some 10,000 at a time; searches go on meanwhile. An interrupted
    import leaves the rows committed so far; run the same command again to import the others.
    """
    if model is not None and embedding is not None:
        raise click.UsageError("--model and --embedding exclude each other")
    done = import_vectors(
        gallery,
        file,
        model=model,
        name=embedding,
        root=root,
        prefix=prefix,
        index=IndexSpec(kind, recall, memory),
        storage=storage,
        runtime=runtime,
        show_progress=True,
    )
    target = Gallery(gallery)
    index = "flat" if target.index is None else target.index.card["kind"]
    facts = {"gallery": str(gallery), **vars(done), "images": len(target), "index": index}
    text = f"{gallery}: {_counts(done)}; {pluralize(len(target), 'image')} in the gallery, index: {index}"
    print_result(facts, as_json, text)


def _counts(done: ImportResult) -> str:
    counts = [f"{done.added} added", f"{done.replaced} replaced"]
    if done.unchanged:
        counts.append(f"{done.unchanged} there from an earlier import of this file")
    return ", ".join(counts)
