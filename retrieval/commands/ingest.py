"""`lookalike index build`, `add`, `sync` and `rebuild`: bring images into a gallery."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from retrieval.cli import json_option, print_next, print_result, print_status
from retrieval.commands.default_model import default_model, kept_model
from retrieval.commands.device_options import runtime_options
from retrieval.commands.engine_options import RayOptions, ray_options
from retrieval.commands.options import (
    checksum_option,
    index_options,
    max_bad_option,
    max_removed_option,
    retry_option,
    storage_option,
)
from retrieval.commands.search_options import combine_options
from retrieval.commands.stores import explain_password, store_option
from retrieval.errors import InputError, LookalikeError
from retrieval.galleries.database_folder import is_gallery
from retrieval.galleries.searchable import SearchableGallery
from retrieval.gallery import Gallery
from retrieval.ingest import sync as syncing
from retrieval.ingest import watch as watching
from retrieval.ingest.indexing import BadFilePolicy, IngestResult, refuse_empty
from retrieval.ingest.sources import Sources
from retrieval.ingest.tables import TableReport
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.search.options import Duplicates
from retrieval.storage.identity import has_text
from retrieval.storage.records import IndexSpec
from retrieval.stores.address import Address
from retrieval.text import pluralize
from retrieval.upkeep.bridge import Sample

_MAX_LISTED = 10
ignore_decisions_option = click.option(
    "--ignore-decisions",
    is_flag=True,
    help="Add images that were removed by hand, and do not carry out other decisions; see `lookalike check "
    "decisions`.",
)
_FILE = click.Path(path_type=Path)
product_option = click.option(
    "--product",
    metavar="COLUMN[,VARIANT]",
    help="Column whose values name the products: images with the same value are views of one, and searches "
    "find products. A second column names their variants, such as colours. An empty COLUMN ends that. See "
    "docs/products.md.",
)


# The images and their metadata.
_source_options = combine_options(
    click.argument("images", type=_FILE, nargs=-1),
    click.option(
        "--list", "list_file", metavar="FILE", help="Text file of image paths, one per line; - for stdin."
    ),
    click.option(
        "--metadata",
        "table",
        type=_FILE,
        metavar="FILE",
        help="CSV or Parquet table of metadata; see `lookalike index build --help`.",
    ),
    click.option(
        "--root",
        type=_FILE,
        metavar="DIR",
        help="Base folder of the relative paths in --list and --metadata.",
    ),
)


@click.command()
@click.argument("gallery", type=_FILE)
@_source_options
@click.option(
    "--model",
    type=_FILE,
    help="Model file to embed with.  [default: that of the gallery, if it exists, or EfficientNet-Lite0]",
)
@click.option(
    "--objects",
    is_flag=True,
    help="Index overlapping parts of each picture, too, so that a query finds pictures that it is a part of. "
    "The gallery remembers it. See docs/objects.md.",
)
@click.option(
    "--detector",
    type=_FILE,
    help="With --objects: ONNX model of a detector, whose boxes are the parts. The gallery keeps a copy.",
)
@product_option
@store_option("Keep the images in a database instead of files, see docs/stores.md")
@index_options
@storage_option
@retry_option
@max_bad_option
@ray_options
@ignore_decisions_option
@runtime_options
@json_option
@click.pass_context
def build(
    ctx: click.Context,
    gallery: Path,
    images: tuple[Path, ...],
    list_file: str | None,
    table: Path | None,
    root: Path | None,
    model: Path | None,
    objects: bool,
    detector: Path | None,
    product: str | None,
    store: Address | None,
    kind: str | None,
    recall: float | None,
    memory: int | None,
    index_dim: int | None,
    storage: str | None,
    retry: bool,
    max_bad: float,
    ray: RayOptions | None,
    ignore_decisions: bool,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Build GALLERY from IMAGES: files, folders with all sub-folders, quoted patterns such as '**/*.jpg', tar
    shards, which are not unpacked, and URLs of remote storage, which is read and not copied.

    \b
      lookalike index build shop.gallery photos
      lookalike index build shop.gallery photos --model model.onnx
      lookalike index build shop.gallery shards/*.tar --model model.onnx
      lookalike index build shop.gallery photos --metadata shop.csv --model model.onnx
      lookalike index build shop.gallery --metadata shop.csv --model model.onnx
      lookalike index build shop.gallery s3://shop/photos --model model.onnx

    Without --model, EfficientNet-Lite0 with ImageNet weights embeds the images (Apache-2.0, of the extra
    demo); `lookalike model list` has stronger networks, and `lookalike export` makes a model file of them.

    By default the label of an image is its folder and its id is its path. Unreadable files are listed and
    skipped (exit code 3). An interrupted build continues when you run the same command again; a finished one
    only checks that nothing has changed.

    --metadata is a table with the column `path` and any other columns: `id` and `label` replace the path and
    the folder, all others are metadata for filters (`lookalike search --where`). Without IMAGES, the table
    lists the images. Its paths are relative to the folder in IMAGES, if there is one, and otherwise to the
    folder of the table. A CSV column has numbers if 90% of its fields are numbers, and the others are listed
    and left empty (exit code 3); all other columns are text, and an empty field is a missing value. In a tar
    shard, a/x.json, a/x.cls and a/x.txt contain the metadata, the label and a text for a/x.jpg.

    With the columns `box_x`, `box_y`, `box_width` and `box_height`, in pixels or as fractions, rows are about
    parts of pictures, each with a vector of its own. With --objects, parts that cover each picture are
    indexed beside it, and a search finds a picture by its best part. See docs/objects.md.

    \b
      lookalike index build rooms.gallery --metadata boxes.csv
      lookalike index build rooms.gallery rooms --objects
      lookalike index build rooms.gallery rooms --objects --detector detector.onnx

    With --product, images with the same value of a column are views of one product, such as a front and a
    side: searches find products, and every later command knows it.

    \b
      lookalike index build shop.gallery photos --metadata shop.csv --product sku

    Without a GPU, the model takes most of the time. A model exported with `--precision int8` can be twice as
    fast on a CPU; `lookalike export` and `lookalike model info` measure it on yours.

    With --engine ray, workers on many machines embed the images, which must be at the same path on all of
    them. The gallery gets the same images and ids. See docs/ray.md.

    \b
      lookalike index build shop.gallery /mnt/photos --model model.onnx --engine ray --ray-address auto

    With --store, a database has the images with their vectors, and GALLERY only its address and the model.
    Several machines can add, search and serve at once. The password comes from $LOOKALIKE_STORE_PASSWORD.

    \b
      lookalike index build shop.gallery photos --model model.onnx --store postgresql://me@db.example/shop
    """
    sources, index = Sources(images, list_file, table, root), IndexSpec(kind, recall, memory, index_dim)
    if detector is not None and not objects:
        raise click.UsageError("--detector goes with --objects.")
    if model is None:
        model = kept_model(gallery) if is_gallery(gallery) else default_model()
    kind_of = Gallery.kind(gallery, store)
    kind_of.check_index(index, gallery)
    if ray is not None:
        kind_of.check_has("ray", gallery)
    embed, runtime = (None, runtime) if ray is None else ray.source(runtime, retry=retry)
    target, new = Gallery.open_or_create(gallery, Embedder.open(model, runtime), storage=storage, store=store)
    if store is not None:
        explain_password(store)
    try:
        if objects:
            target.use_objects(detector)
        result = target.add_sources(
            sources,
            index=index,
            reindex=True,
            policy=BadFilePolicy(retry, max_bad),
            embed=embed,
            command="build",
            ignore_decisions=ignore_decisions,
            show_progress=True,
        )
        if new:
            refuse_empty(target, result)
        if product is not None:
            target.use_products(product or None)
    except LookalikeError:
        target.refresh()
        if new and not len(target):  # unusable sources leave no empty gallery
            shutil.rmtree(gallery)
        raise
    _report(ctx, target, result, as_json)
    print_next("serve", str(gallery))


@click.command()
@click.argument("gallery", type=_FILE)
@_source_options
@click.option("--model", type=_FILE, help="Check that the gallery was built with this model.")
@click.option(
    "--duplicates",
    type=click.Choice(get_args(Duplicates)),
    default="keep",
    show_default=True,
    help="New images that look like another one, in the gallery or among IMAGES: add them, or leave them "
    "out and list them.",
)
@product_option
@retry_option
@max_bad_option
@ray_options
@ignore_decisions_option
@runtime_options
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
    duplicates: Duplicates,
    product: str | None,
    retry: bool,
    max_bad: float,
    ray: RayOptions | None,
    ignore_decisions: bool,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Add IMAGES to GALLERY. Sources and metadata are as for `lookalike index build`.

    Unchanged images that are in the gallery already are skipped, but new --metadata is stored. A file with
    the same bytes as an indexed image is not embedded again.

    \b
      lookalike index add shop.gallery photos/new
      find photos -name '*.jpg' -newer stamp | lookalike index add shop.gallery --list -
      lookalike index add shop.gallery photos --metadata prices.csv
      lookalike index add shop.gallery /mnt/photos --engine ray --ray-address auto
      lookalike index add shop.gallery --product sku

    With --duplicates refuse, a new image is left out if its similarity to another one is 0.95 or more, the
    threshold of `lookalike check duplicates`. The files stay where they are: a later run without the option,
    or a sync, adds them.

    \b
      lookalike index add shop.gallery photos/new --duplicates refuse
    """
    if ray is not None:
        Gallery.kind(gallery).check_has("ray", gallery)
    embed, runtime = (None, runtime) if ray is None else ray.source(runtime, retry=retry)
    target = Gallery.open(gallery, runtime=runtime)
    if model is not None:
        target.use_model(Embedder.open(model, runtime))
    if product is not None and not (images or list_file or table):
        target.use_products(product or None)
        _report(ctx, target, IngestResult(), as_json)
        return
    result = target.add_sources(
        Sources(images, list_file, table, root),
        policy=BadFilePolicy(retry, max_bad),
        embed=embed,
        duplicates=duplicates,
        ignore_decisions=ignore_decisions,
        show_progress=True,
    )
    if product is not None:
        target.use_products(product or None)
    _report(ctx, target, result, as_json)


@click.command()
@click.argument("gallery", type=_FILE)
@click.argument("folder", type=_FILE, required=False)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C or SIGTERM, and sync when FOLDER changes.")
@click.option(
    "--poll",
    "seconds",
    type=click.FloatRange(0, min_open=True),
    default=watching.SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: time between two looks at FOLDER.",
)
@click.option("--dry-run", is_flag=True, help="Print the differences to FOLDER and change nothing.")
@click.option("--prune", is_flag=True, help="Without FOLDER: remove images whose file is gone.")
@max_removed_option
@checksum_option
@retry_option
@max_bad_option
@ignore_decisions_option
@runtime_options
@json_option
@click.pass_context
def sync(
    ctx: click.Context,
    gallery: Path,
    folder: Path | None,
    watch: bool,
    seconds: float,
    dry_run: bool,
    prune: bool,
    limit: syncing.RemovalLimit | None,
    checksum: bool,
    retry: bool,
    max_bad: float,
    ignore_decisions: bool,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Sync GALLERY with FOLDER: add new files, embed changed files again, remove images whose file is gone.

    Images from other folders stay. A file whose size and modification time are as when it was indexed counts
    as unchanged, unless you pass --checksum. A file that moved, or has only a new modification time, is not
    embedded again.

    If more than --max-removed of the images from FOLDER are gone, for example because a part of it is not
    mounted, nothing is changed (exit code 2). A removed image keeps its id and metadata until `lookalike
    index optimize --compact`, and gets them back when its file comes back.

    \b
      lookalike index sync shop.gallery photos --dry-run
      lookalike index sync shop.gallery photos
      lookalike index sync shop.gallery photos --max-removed 100%

    With --watch, FOLDER is compared with the gallery every --poll seconds, on any file system. A file
    modified in the last two seconds waits, since it may be incomplete. Errors are printed, and the watch goes
    on. --json prints a line for each change.

    \b
      lookalike index sync shop.gallery photos --watch
      lookalike index sync shop.gallery /mnt/photos --watch --poll 60 --max-removed 5%

    Without FOLDER, only the files of images that are in the gallery are checked: changed ones are embedded
    again, and no new ones are added. Images whose file is gone are listed; they stay unless you pass --prune,
    which is refused if more than --max-removed are gone.

    \b
      lookalike index sync shop.gallery
      lookalike index sync shop.gallery --checksum
      lookalike index sync shop.gallery --prune --max-removed 25%
    """
    if folder is None and (watch or dry_run):
        raise click.UsageError(f"{'--watch' if watch else '--dry-run'} needs FOLDER")
    if folder is not None and prune:
        raise click.UsageError("--prune is without FOLDER; with it, images whose file is gone are removed")
    if watch and (dry_run or checksum or retry or ignore_decisions):
        raise click.UsageError("--watch excludes --dry-run, --checksum, --retry and --ignore-decisions")
    target, policy = Gallery.open(gallery, runtime=runtime), BadFilePolicy(retry, max_bad)
    if folder is None:
        done = target.update(
            prune=prune,
            limit=limit,
            checksum=checksum,
            policy=policy,
            ignore_decisions=ignore_decisions,
            show_progress=True,
        )
        if done.gone:
            verb = "removed" if prune else "--prune removes them"
            _print_list(f"{pluralize(len(done.gone), 'image')} whose file is gone ({verb}):", done.gone)
        _report(ctx, target, done.result, as_json, gone=done.gone)
        return
    if watch:
        _watch(target, folder, seconds, limit, policy, as_json)
        return
    if dry_run:
        found = target.difference(
            folder,
            limit=limit,
            checksum=checksum,
            ignore_decisions=ignore_decisions,
            show_progress=not as_json,
        )
        facts = {**vars(found), "removed_share": found.removed_share}
        print_result(facts, as_json, f"{gallery}: {_difference(found)}")
        return
    result = target.sync(
        folder,
        limit=limit,
        checksum=checksum,
        policy=policy,
        ignore_decisions=ignore_decisions,
        show_progress=True,
    )
    _report(ctx, target, result, as_json)


def _watch(
    target: Gallery,
    folder: Path,
    seconds: float,
    limit: syncing.RemovalLimit | None,
    policy: BadFilePolicy,
    as_json: bool,
) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    print_status(f"{folder}: watching; Ctrl-C ends it")
    events = target.watch(folder, seconds=seconds, limit=limit, policy=policy, show_progress=not as_json)
    try:
        for event in events:
            if isinstance(event, IngestResult):
                facts = {**event.counts, "images": len(target), "bad": _bad_facts(event)}
                print_result(facts, as_json, [summary(target, event)], indent=None)
                _print_bad(event)
            else:
                print_status(f"lookalike: {event}")
    except KeyboardInterrupt:
        target.refresh()
        print_status(f"{folder}: stopped; {pluralize(len(target), 'image')} in the gallery")


@click.command()
@click.argument("gallery", type=_FILE)
@click.option("--model", required=True, type=_FILE, help="New model file.")
@click.option(
    "--drop-old", is_flag=True, help="Delete the old gallery at the end instead of keeping it as GALLERY.old."
)
@click.option("--force", is_flag=True, help="Take the new model even if it certainly finds less.")
@click.option(
    "--bridge",
    type=click.IntRange(min=100),
    metavar="N",
    help="Serve the new model at once: map the stored vectors into its space by what N images teach, then "
    "embed all images again. See docs/bridge.md.",
)
@max_bad_option
@runtime_options
@json_option
@click.pass_context
def rebuild(
    ctx: click.Context,
    gallery: Path,
    model: Path,
    drop_old: bool,
    force: bool,
    bridge: int | None,
    max_bad: float,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Rebuild GALLERY with another model: the same images, ids, labels and metadata with new vectors.

    The old gallery is unchanged, and can be searched, until the new one is complete and replaces it. An
    interrupted rebuild continues when you run the same command again. The old gallery is kept as GALLERY.old.

    If the images have labels, both models are compared on them before the new gallery replaces the old one:
    do images find another one of their class first (Recall@1), and all of them (MAP@R)? If the new model
    certainly finds less, nothing is changed (exit code 1). With --force it is taken all the same, and no
    image is embedded again.

    \b
      lookalike index rebuild shop.gallery --model better.onnx
      lookalike index rebuild shop.gallery --model better.onnx --drop-old
      lookalike index rebuild shop.gallery --model better.onnx --bridge 2000
    """
    from retrieval.evaluation.gallery import ModelComparison, compare_models

    target = Gallery.open(gallery)
    if bridge is not None:
        _bridge(ctx, target, Embedder.open(model, runtime), bridge, drop_old, force, as_json)
        return
    had_text = has_text(target.folder)
    compared: ModelComparison | None = None

    def accept(new: SearchableGallery) -> None:
        nonlocal compared
        try:
            compared = compare_models(target, new)
        except LookalikeError as error:  # damaged vectors, which a rebuild replaces
            print_status(f"the models were not compared: {error}")
            return
        if compared is None:
            print_status("the models were not compared: that takes two classes of two labelled images each")
        elif force or not compared.verdict.loses:
            print_status(compared.words)
        else:
            if as_json:
                facts = {"gallery": str(gallery), "refused": True, "comparison": asdict(compared)}
                print_result(facts, as_json, "")
            choice = f"--force takes it all the same, without embedding again; or delete {new.folder}"
            raise LookalikeError(f"{gallery}: {compared.words}; nothing was changed: {choice}")

    done = target.rebuild(
        Embedder.open(model, runtime),
        keep_old=not drop_old,
        policy=BadFilePolicy(max_bad=max_bad),
        accept=accept,
        show_progress=True,
    )
    if done.resumed:
        print_status(f"{pluralize(done.resumed, 'image')} already embedded by an earlier rebuild")
    if done.old is not None:
        print_status(f"old gallery: {done.old}")
    if had_text and not has_text(done.gallery.folder):
        print_status("the new model has no text encoder; `lookalike teach --text-column COLUMN` learns one")
    more = {"old": str(done.old) if done.old else None, "comparison": compared and asdict(compared)}
    _report(ctx, done.gallery, done.result, as_json, **more)


def _bridge(
    ctx: click.Context,
    target: Gallery,
    model: Embedder,
    count: int,
    drop_old: bool,
    force: bool,
    as_json: bool,
) -> None:
    from retrieval.evaluation.bridging import BridgeCost, bridge_cost

    cost: BridgeCost | None = None

    def accept(sample: Sample) -> None:
        nonlocal cost
        cost = bridge_cost(sample.labels, sample.old, sample.new, sample.bridged, sample.products)
        for line in cost.lines:
            print_status(line)
        if cost.refusal is not None and not force:
            if as_json:
                facts = {"gallery": str(target.folder), "refused": True, "bridge": asdict(cost)}
                print_result(facts, as_json, "")
            choice = "rebuild without --bridge, or take it all the same with --force"
            raise LookalikeError(f"{target.folder}: {cost.refusal}; nothing was changed: {choice}")

    def serving() -> None:
        print_status(f"{target.folder}: searched with the new model now; its images are embedded again")

    done = target.bridge(
        model, count, keep_old=not drop_old, accept=accept, serving=serving, show_progress=True
    )
    if done.resumed:
        print_status(f"{pluralize(done.resumed, 'image')} already embedded with this model")
    if done.old is not None:
        print_status(f"old gallery: {done.old}")
    more = {"old": str(done.old) if done.old else None, "bridge": cost and asdict(cost)}
    _report(ctx, done.gallery, done.result, as_json, **more)


def _difference(found: syncing.FolderDifference) -> str:
    text = (
        f"{found.new} new, {found.changed} changed, {found.unchanged} unchanged, {found.moved} moved, "
        f"{len(found.gone)} of {found.indexed} gone ({found.removed_share:.1%})"
    )
    return text if found.allowed else f"{text}: more than --max-removed allows, a sync would be refused"


def _report(
    ctx: click.Context, gallery: SearchableGallery, result: IngestResult, as_json: bool, **more: Any
) -> None:
    """Print the result of a run; exit with code 3 if files or fields of the table were unusable."""
    facts = as_json and {
        **gallery.info(),
        **result.counts,
        **more,
        "bad": _bad_facts(result),
        "table": table_facts(result.table),
        "duplicates": result.duplicates,
        "refused": [vars(one) for one in result.refused],
    }
    print_result(facts, as_json, summary(gallery, result))
    print_details(result)
    if result.bad or result.table.bad:
        ctx.exit(3)


def print_details(result: IngestResult) -> None:
    """Print copies, unusable files, and what does not fit the columns of the table."""
    if result.duplicates:
        copies = sum(len(keys) - 1 for keys in result.duplicates)
        groups = [_key_group(keys) for keys in result.duplicates]
        _print_list(
            f"{pluralize(copies, 'image')} with the same bytes as another image; all are kept:", groups
        )
    if result.refused:
        lines = [f"{one.path}: {one.score:.4f} like {one.key} (item {one.id})" for one in result.refused]
        _print_list(f"{pluralize(len(lines), 'near-duplicate')} left out:", lines)
    _print_bad(result)
    print_table_report(result.table)


def table_facts(report: TableReport) -> dict[str, Any]:
    """Return what does not fit the columns of a table, for JSON."""
    return {"bad": [vars(cell) for cell in report.bad], "mixed": report.mixed}


def print_table_report(report: TableReport) -> None:
    """Print what does not fit the columns of a table."""
    for line in report.mixed:
        print_status(line)
    if report.bad:
        count = pluralize(len(report.bad), "field")
        title = (
            f"{count} in columns of numbers left empty; correct the table, which has the values, and repeat:"
        )
        _print_list(title, [str(cell) for cell in report.bad])


def _bad_facts(result: IngestResult) -> list[dict[str, str]]:
    return [{"path": b.stamp.shown, "reason": b.reason, "detail": b.detail} for b in result.bad]


def _print_bad(result: IngestResult) -> None:
    if result.bad:
        bad = [f"{file.stamp.shown}: {file.detail}" for file in result.bad]
        _print_list(f"{pluralize(len(bad), 'file')} unusable and skipped:", bad)


def summary(gallery: SearchableGallery, result: IngestResult) -> str:
    """Return the result of a run as one line."""
    added = result.added - result.replaced
    parts = [
        f"{count} {what}"
        for count, what in (
            (added, "added"),
            (result.replaced, "replaced"),
            (result.moved, "moved"),
            (result.described, "with new metadata"),
            (result.relabelled, "with the label decided on by hand"),
            (result.removed, "removed"),
        )
        if count
    ]
    done = ", ".join(parts) or "nothing new to add"
    text = f"{gallery.folder}: {done}, {result.unchanged} unchanged"
    text += f"; {pluralize(len(gallery), 'image')} in the gallery"
    if result.copied:
        text += f" ({result.copied} not embedded, because their bytes were known)"
    if result.ignored:
        text += f" ({pluralize(result.ignored, 'file')} without an image suffix ignored)"
    if result.withheld:
        left_out = f"{pluralize(result.withheld, 'file')} left out, whose image was removed by hand"
        text += f" ({left_out}: `lookalike check decisions`)"
    if result.refused:
        text += f" ({pluralize(len(result.refused), 'near-duplicate')} left out)"
    if result.unmatched:
        text += (
            f" ({pluralize(result.unmatched, 'row')} of the table for files that are not among the images)"
        )
    return text


def _key_group(keys: list[str]) -> str:
    shown = " = ".join(keys[:3])
    return shown if len(keys) <= 3 else f"{shown} = {len(keys) - 3} more"


def _print_list(title: str, lines: list[str]) -> None:
    print_status(title)
    for line in lines[:_MAX_LISTED]:
        print_status(f"  {line}")
    if len(lines) > _MAX_LISTED:
        print_status(f"  and {len(lines) - _MAX_LISTED} more; --json lists all")
