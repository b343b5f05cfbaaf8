"""`lookalike index export` and `import`: exchange vectors with other programs."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.commands.ingest import print_table_report, table_facts
from retrieval.commands.options import index_options, storage_option
from retrieval.commands.stores import explain_password, store_option
from retrieval.gallery import Gallery
from retrieval.ingest.transfer import ImportResult
from retrieval.model.runtime import Runtime
from retrieval.storage.records import IndexSpec
from retrieval.stores.address import Address
from retrieval.text import pluralize

_FILE = click.Path(path_type=Path)
_gallery_argument = click.argument("gallery", type=_FILE)


@click.command("export")
@_gallery_argument
@click.argument("file", type=_FILE)
@json_option
def export_(gallery: Path, file: Path, as_json: bool) -> None:
    """Export the vectors of GALLERY, with ids, paths, labels and metadata, to FILE.

    FILE ends in .parquet, with one row per image and the column `vector`; or in .npy, with a .csv beside it
    that has the other columns in the same order. `lookalike index import` reads both. A gallery in a database
    is exported in the same way, in bounded memory.

    \b
      lookalike index export shop.gallery shop.parquet
      lookalike index export shop.gallery shop.npy
    """
    count = Gallery.open(gallery).export(file, show_progress=True)
    print_result({"file": str(file), "images": count}, as_json, f"{file}: {count} images")


@click.command("import")
@_gallery_argument
@click.argument("file", type=_FILE)
@click.option("--model", type=_FILE, help="Model file that computed the vectors.")
@click.option("--embedding", metavar="NAME", help="Name of the embedding, if there is no model file.")
@store_option("Import into a database instead of files, see docs/stores.md")
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
@click.pass_context
def import_(
    ctx: click.Context,
    gallery: Path,
    file: Path,
    model: Path | None,
    embedding: str | None,
    store: Address | None,
    root: Path | None,
    prefix: str | None,
    kind: str | None,
    recall: float | None,
    memory: int | None,
    index_dim: int | None,
    storage: str | None,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Import vectors from another program into GALLERY, which is created if necessary, and index them.

    FILE is a .parquet with a column `vector`, a .npy [N, D] with an optional .csv of the same name beside it,
    or a .npz with an array `vectors`; or a folder of shards from `lookalike index build --engine ray`. Other
    columns (arrays) are `id`, `path`, `label` and any metadata. An image needs no file. Vectors are
    normalized. All rows are checked first: if one of them is invalid, nothing is imported.

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

    With --store, a database has the images, and GALLERY only its address and the model; this is the fastest
    way to move a gallery into a database, or to load the shards of `lookalike index build --engine ray`.
    Rows with the same contents as an image of the gallery are left out, so repeating an import is quick.

    \b
      lookalike index import shop.gallery old.parquet --model model.onnx --store qdrant://db.example:6333/shop
    """
    if model is not None and embedding is not None:
        raise click.UsageError("--model and --embedding exclude each other")
    done = Gallery.import_vectors(
        gallery,
        file,
        model=model,
        name=embedding,
        store=store,
        root=root,
        prefix=prefix,
        index=IndexSpec(kind, recall, memory, index_dim),
        storage=storage,
        runtime=runtime,
        show_progress=True,
    )
    if store is not None:
        explain_password(store)
    target = Gallery.open(gallery, store=store)
    index = target.index_kind
    facts = {"gallery": str(gallery), **done.counts, "images": len(target), "index": index}
    facts["table"] = table_facts(done.table)
    text = f"{gallery}: {_counts(done)}; {pluralize(len(target), 'image')} in the gallery, index: {index}"
    print_result(facts, as_json, text)
    print_table_report(done.table)
    if done.table.bad:
        ctx.exit(3)


def _counts(done: ImportResult) -> str:
    counts = [f"{done.added} added", f"{done.replaced} replaced"]
    if done.unchanged:
        counts.append(f"{done.unchanged} there already")
    return ", ".join(counts)
