"""Indexing plan: which files are new, changed, moved, gone or known to be unusable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from retrieval.errors import ImageError, InputError
from retrieval.images.load import read_bytes
from retrieval.images.location import Location, locate_item
from retrieval.ingest.sources import Entry, Scan
from retrieval.machine.resources import cores
from retrieval.progress import Progress
from retrieval.storage import schema
from retrieval.storage.planning import Comparison, ImageFile, ItemPlace, roots
from retrieval.storage.queries import holds_text
from retrieval.storage.records import Change, Value
from retrieval.storage.store import Store

_CHUNK = 20_000  # files that are compared at a time


@contextmanager
def plan_indexing(
    store: Store, found: Scan, *, retry: bool = False, checksum: bool = False, show_progress: bool = False
) -> Iterator[Comparison]:
    """Compare the files of a scan with a gallery, by size and modification time.

    Args:
        store: Store of the gallery.
        found: Files.
        retry: Retry files that were unusable before, although they have not changed.
        checksum: Compare the SHA-256 of files with the same size and modification time, too.
        show_progress: Print progress on stderr.

    Raises:
        InputError: As for iterating over the scan, or metadata or ids that cannot be stored.
    """
    with Comparison(store, retry=retry, checksum=checksum, distinct=found.repeats) as plan:
        with Progress("listing", None, "files", show=show_progress) as progress:
            for chunk in in_chunks(found):
                plan.add(chunk)
                progress.update(len(chunk))
        if key := plan.repeated_key():
            raise InputError(f"two images have the id {key!r}; give each its own")
        check_metadata(store, plan.metadata_names, plan.metadata())
        if checksum:
            _compare_contents(store, plan, show_progress)
        yield plan


def known_roots(store: Store) -> list[str]:
    """Return the full paths of the root folders of a gallery, that of the uploads included."""
    home = store.folder.resolve()
    return sorted({str(store.uploads), *(str(home / root) for root in roots(store))})


def find_gone(store: Store, plan: Comparison, top: Path) -> None:
    """Record the items of a plan below a folder whose file is gone.

    A file that the scan did not find may still exist, in a tar file or without an image suffix.
    """
    home = store.folder.resolve()
    for root in roots(store):
        base = str(home / root)
        if Path(base).is_relative_to(top):
            low, high = "", None
        elif top.is_relative_to(base):
            low = f"{top.relative_to(base).as_posix()}/"
            high = f"{low[:-1]}0"  # the text after all that begin with `low`
        else:
            continue
        for items in plan.unseen(root, low, high):
            plan.add_gone([item for item, path in items if not locate_item(base, "", path).exists()])


def match_moved(store: Store, plan: Comparison, show_progress: bool = False) -> None:
    """Find the new places of gone files among the new files of a plan, by size and SHA-256."""
    if not plan.gone_count:
        return
    with Progress("comparing moved files", None, "files", show=show_progress) as progress:
        for numbers, digests in _hashed(store, plan.candidates()):
            for number, digest in zip(numbers, digests, strict=True):
                if digest is not None:
                    plan.match(number, digest)
            progress.update(len(numbers))


def _compare_contents(store: Store, plan: Comparison, show_progress: bool) -> None:
    with Progress("comparing contents", plan.check_count, "files", show=show_progress) as progress:
        expected: dict[int, str] = {}

        def files() -> Iterator[tuple[int, ImageFile]]:
            for number, image, digest in plan.to_check():
                expected[number] = digest
                yield number, image

        for numbers, digests in _hashed(store, files()):
            same = (expected.pop(n) == digest for n, digest in zip(numbers, digests, strict=True))
            plan.settle(zip(numbers, same, strict=True))
            progress.update(len(numbers))


def _hashed(
    store: Store, files: Iterable[tuple[int, ImageFile]]
) -> Iterator[tuple[list[int], list[str | None]]]:
    """Yield the numbers of some files and the SHA-256 of each one, `None` if it cannot be read."""

    def digest(where: Location) -> str | None:
        try:
            return hashlib.sha256(read_bytes(where)).hexdigest()
        except ImageError:
            return None

    home, files = str(store.folder), iter(files)
    with ThreadPoolExecutor(cores(), thread_name_prefix="hash") as pool:
        while some := list(islice(files, 256)):
            numbers = [number for number, _ in some]
            places = (locate_item(home, image.root, image.path) for _, image in some)
            yield numbers, list(pool.map(digest, places))


def moved_item(image: ImageFile, item: ItemPlace) -> Change:
    """Return the change of an item whose file has moved to the path of `image`.

    The key changes only if it was the old path, and the label only if it was the old folder.
    """
    folder = Path(item.path).parent.as_posix()
    keeps_label = not image.has_own_label and item.label not in (None, folder)
    stamp = replace(image.stamp, label=item.label) if keeps_label else image.stamp
    key = image.id or (image.path if item.key == item.path else None)
    return Change(item.id, stamp, image.metadata, key)


def check_metadata(
    store: Store, names: Iterable[str], rows: Iterable[tuple[object, Mapping[str, Value]]]
) -> None:
    """Raise an `InputError` if metadata does not fit the gallery's columns.

    Args:
        store: Store of the gallery.
        names: Names of all columns of the metadata.
        rows: Position in error messages and values of each image with metadata.
    """
    given = sorted(names)
    if not given:
        return
    columns = store.columns()
    chosen = schema.match_columns(given, columns)
    types: dict[str, schema.ColumnType] = {}
    for column in set(columns) & set(chosen.values()):
        is_text = holds_text(store, column)
        if is_text is not None:
            types[column] = "text" if is_text else "number"
    checked = (
        (place, {chosen[name]: schema.check_value(name, value) for name, value in values.items()})
        for place, values in rows
    )
    schema.check_types(checked, types)


def changes_of(store: Store, plan: Comparison) -> Iterator[list[Change]]:
    """Yield the changes of unchanged files whose given label or metadata differ from those stored."""
    described = plan.described()
    while some := {item: image for image, item in islice(described, 1000)}:
        changes = []
        for item in store.items(list(some)):
            image = some[item.id]
            label = image.label if image.has_own_label else item.label
            metadata: dict[str, Value] = {
                name: value for name, value in image.metadata.items() if item.metadata.get(name) != value
            }
            if metadata or label != item.label:
                stamp = replace(image.stamp, label=label)
                changes.append(Change(item.id, stamp, metadata))
        if changes:
            yield changes


def in_chunks(files: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield files in lists of the size that is compared at a time."""
    entries = iter(files)
    while chunk := list(islice(entries, _CHUNK)):
        yield chunk
