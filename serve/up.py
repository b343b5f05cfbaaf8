"""The command `lookalike up`: from a folder of pictures to the page in the browser."""

from __future__ import annotations

import csv
import hashlib
import os
import shlex
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.cli import print_status
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError, LookalikeError
from retrieval.files import user_data
from retrieval.galleries.database_folder import is_gallery
from retrieval.images.location import Location
from retrieval.model.runtime import Runtime
from serve.addresses import parse_galleries
from serve.commands import serve
from serve.config import Settings

if TYPE_CHECKING:
    from retrieval.gallery import Gallery
    from serve.core.following import Event
    from serve.core.service import SearchService

_TABLES = ("metadata.csv", "labels.csv", "metadata.parquet", "labels.parquet")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="auto|lite0|NAME|FILE",
    help="Network of a new gallery: a model file, a name of `lookalike model list`, or auto: the strongest "
    "small one for this machine.  [default: auto]",
)
@click.option(
    "--gallery",
    type=click.Path(path_type=Path),
    help="Where to keep the gallery.  [default: FOLDER.gallery, or among your data if that is not writable]",
)
@click.option("--host", default=Settings.host, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=Settings.port,
    show_default=True,
    help="Port; 0 picks a free one.",
)
@click.option(
    "--browser/--no-browser",
    default=None,
    help="Open the page.  [default: if there is a terminal and a screen]",
)
@runtime_options
def up(
    folder: Path,
    model: str | None,
    gallery: Path | None,
    host: str,
    port: int,
    browser: bool | None,
    runtime: Runtime,
) -> None:
    """Search a folder of pictures in the browser: all in one.

    \b
      lookalike up photos
      lookalike up photos --gallery /data/photos.gallery --port 8000
      lookalike up s3://shop/photos --gallery shop.gallery

    The page is there at once and finds what is indexed so far. Ctrl-C ends it and loses nothing: the same
    command goes on where it stopped. A second start finds the gallery, and only looks for changes. As long as
    it runs, it follows FOLDER: new pictures are added, changed ones embedded again, deleted ones removed. Of
    remote storage, it looks once.

    The labels are the sub-folders, or those of a table with the columns `path` and `label`: a CSV file in
    FOLDER, or beside it FOLDER.csv, metadata.csv or labels.csv. Its other columns are for filters. It is
    read again when pictures are added.

    --model auto takes, with a network and with torch, the strongest small backbone of `lookalike model list`
    with a permissive licence that this machine runs at 15 images a second, and downloads it once; otherwise
    EfficientNet-Lite0, which the extra demo brings.

    `lookalike index` and `lookalike serve` have all other settings, and take the same gallery.
    """
    # Before FAISS is imported: single queries gain nothing from its threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from retrieval.ingest.sources import scan
    from serve.config import settings
    from serve.server import run

    place = Location.parse(folder)
    is_remote = place.kind == "url"
    if not is_remote and not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {what}; name the folder that has your pictures")
    if is_gallery(folder):
        raise InputError(
            f"{folder}: a gallery, not a folder of pictures; `lookalike serve {folder}` serves it"
        )
    next(iter(scan([place])))  # an error if there is no picture, before anything is made
    table = None if is_remote else _find_table(folder)
    target = gallery or _gallery_of(folder, place)
    work = _Work(folder, is_remote, table, target)
    work.prepare(model, runtime)
    # All else as `lookalike serve` has it, its environment variables included.
    context = serve.make_context("up", [f"{_name_of(place)}={target}", "--host", host, "--port", str(port)])
    served = settings(**context.params)
    opens = _has_screen() if browser is None else browser
    # One process: it does the work, too.
    run(replace(served, runtime=runtime, workers=1), work.follow, partial(_show, target, opens))


class _Work:
    """The work beside the server: it fills the gallery, follows the folder and says what it has done.

    Args:
        folder: The pictures.
        is_remote: They are in remote storage, which is looked at once.
        table: Table of labels and metadata, and the folder of its paths.
        target: The gallery.
    """

    def __init__(self, folder: Path, is_remote: bool, table: tuple[Path, Path] | None, target: Path) -> None:
        self._folder, self._is_remote, self._table, self._target = folder, is_remote, table, target
        self._has_advised = False

    def prepare(self, model: str | None, runtime: Runtime) -> None:
        """Create the gallery, unless it is there."""
        from retrieval.commands.default_model import AUTO, chosen_model
        from retrieval.gallery import Gallery
        from retrieval.model.embedder import Embedder

        if is_gallery(self._target):
            print_status(f"gallery: {self._target}, which is there already")
            if model is None or model == AUTO:
                return
        file = chosen_model(model or AUTO, runtime)
        Gallery.open_or_create(self._target, Embedder.open(file, runtime))

    @contextmanager
    def follow(self, service: SearchService) -> Iterator[None]:
        """Do the work on the served gallery; print what it has kept if it was interrupted."""
        import retrieval.commands.ingest  # for the reports  # noqa: F401
        from retrieval.ingest.sources import Sources
        from serve.core.following import Follower

        metadata, root = self._table or (None, None)
        sources = Sources([self._folder], metadata=metadata, root=root)
        watched = None if self._is_remote else self._folder
        follower = Follower(service, sources, watched, self._report)
        try:
            with follower:
                yield
        finally:
            if follower.interrupted:
                print_status(follower.interrupted)

    def _report(self, gallery: Gallery | None, event: Event) -> None:
        from retrieval.commands.ingest import print_details, summary

        if isinstance(event, LookalikeError | OSError):
            print_status(f"lookalike: {event}")
            return
        assert gallery is not None
        print_status(summary(gallery, event))
        print_details(event)
        if not self._has_advised:
            self._has_advised = True
            for line in _advice(gallery, self._target, self._table and self._table[0]):
                print_status(line)


def _advice(gallery: Gallery, target: Path, table: Path | None) -> Iterator[str]:
    """Yield what the labels are, and the commands that come next."""
    labels = [label for label, _ in gallery.contents.label_counts() if label is not None]
    where = f"the table {table}" if table else "the sub-folders"
    name = shlex.quote(str(target))
    if len(labels) > 1:
        yield f"labels: {len(labels)} classes, from {where}"
        yield f"how good it is: lookalike evaluate {name} --out report"
        yield f"make it better: lookalike improve {name}"
        yield f"wrong labels: lookalike check suspects {name}"
    else:
        yield "labels: none; sub-folders for classes, or a table with the columns path and label, bring them"
        yield f"copies: lookalike check duplicates {name}"


def _find_table(folder: Path) -> tuple[Path, Path] | None:
    """Return the table that describes the pictures of a folder, and the folder of its paths.

    If there is none, print why each table that was looked at is not one.

    Raises:
        InputError: The table is invalid.
    """
    from retrieval.ingest.tables import TableReport, read_table

    unused: dict[Path, str] = {}
    top = folder.resolve()
    beside = [top.with_name(f"{top.name}.csv"), *(top.parent / name for name in _TABLES)]
    for table in (*(top / name for name in _TABLES), *sorted(top.glob("*.csv")), *beside):
        if not table.is_file():
            continue
        try:
            paths = [row.path for row in read_table(table, TableReport())]
        except InputError as error:
            if table.suffix != ".csv" or "path" in _columns(table):
                raise
            # Any other table may lie there; but who wrote a table of labels must learn why it is none.
            unused[table] = str(error)
            continue
        bases = (base for base in (top, table.parent) if any((base / path).is_file() for path in paths))
        base = next(bases, None)
        if base is not None:
            print_status(f"table: {table}, {', '.join(_columns(table))}")
            return table, base
        unused[table] = f"{table}: none of its paths is a file in {top}"
    for reason in unused.values():
        print_status(f"table not used: {reason}")
    return None


def _columns(table: Path) -> list[str]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as lines:
            return next(csv.reader(lines), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def _gallery_of(folder: Path, place: Location) -> Path:
    """Return the place of the gallery of a folder: beside it, or among the user's data."""
    if place.kind != "url":
        top = folder.resolve()
        beside = top.with_name(f"{top.name}.gallery")
        if is_gallery(beside) or os.access(top.parent, os.W_OK):
            # As the user writes it, so that commands can be copied.
            return beside if folder.name in ("", "..") else folder.with_name(f"{folder.name}.gallery")
    digest = hashlib.sha256(str(place if place.kind == "url" else folder.resolve()).encode()).hexdigest()[:8]
    return user_data("galleries") / f"{_name_of(place)}-{digest}.gallery"


def _name_of(place: Location) -> str:
    """Return the name of the gallery on the page."""
    path = Path(place.path) if place.kind == "url" else Path(place.path).resolve()
    return next(iter(parse_galleries([path.name]))) if path.name else "pictures"


def _show(target: Path, browser: bool, address: str) -> None:
    """Print where everything is, and open the page."""
    print_status(f"gallery: {target}; search from here: lookalike search {shlex.quote(str(target))} PICTURE")
    if browser:
        webbrowser.open(address)


def _has_screen() -> bool:
    """Return whether somebody sees a browser that is opened here."""
    if sys.platform.startswith("linux") and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        return False
    return sys.stderr.isatty()
