"""Indexing plan: which files are new, changed, moved, gone or known to be unusable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

from retrieval.errors import ImageError, InputError
from retrieval.galleries.writer import Writer
from retrieval.images.load import content_sha256, read_bytes
from retrieval.images.location import Location, locate_item
from retrieval.ingest.sources import Entry, Scan
from retrieval.machine.resources import cores
from retrieval.progress import Progress
from retrieval.storage.planning import Comparison, ImageFile, ItemPlace, ItemTable
from retrieval.storage.records import Change, Value

_CHUNK = 5000  # files that are compared at a time


def plan_indexing(
    writer: Writer,
    table: ItemTable,
    found: Scan,
    *,
    retry: bool = False,
    checksum: bool = False,
    show_progress: bool = False,
) -> Comparison:
    """Compare the files of a scan with a gallery, by size and modification time.

    Args:
        writer: Writer of the gallery.
        table: Its items.
        found: Files.
        retry: Retry files that were unusable before, although they have not changed.
        checksum: Compare the SHA-256 of files with the same size and modification time, too.
        show_progress: Print progress on stderr.

    Raises:
        InputError: As for iterating over the scan, or metadata or ids that cannot be stored.
    """
    plan = Comparison(table, retry=retry, checksum=checksum, distinct=found.repeats)
    with Progress("listing", None, "files", show=show_progress) as progress:
        for chunk in in_chunks(found):
            plan.add(chunk)
            progress.update(len(chunk))
    if key := plan.repeated_key():
        raise InputError(f"two images have the id {key!r}; give each its own")
    writer.check_metadata(plan.metadata_names, plan.metadata())
    if checksum:
        _compare_contents(plan, show_progress)
    return plan


def known_roots(table: ItemTable) -> list[str]:
    """Return the full paths of the root folders of a gallery's items, that of the uploads included."""
    home = table.folder.resolve()
    return sorted({str(table.uploads), *(str(home / root) for root in table.roots())})


def find_gone(plan: Comparison, top: Path) -> None:
    """Record the items of a plan below a folder whose file is gone.

    A file that the scan did not find may still exist, in a tar file or without an image suffix.
    """
    home = plan.table.folder.resolve()
    for root in plan.table.roots():
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


def match_moved(plan: Comparison, show_progress: bool = False) -> None:
    """Find the new places of gone files among the new files of a plan, by size and SHA-256."""
    if not plan.gone_count:
        return
    with Progress("comparing moved files", None, "files", show=show_progress) as progress:
        for numbers, digests in _hashed(plan, plan.candidates()):
            for number, digest in zip(numbers, digests, strict=True):
                if digest is not None:
                    plan.match(number, digest)
            progress.update(len(numbers))


def _compare_contents(plan: Comparison, show_progress: bool) -> None:
    with Progress("comparing contents", plan.check_count, "files", show=show_progress) as progress:
        expected: dict[int, str] = {}

        def files() -> Iterator[tuple[int, ImageFile]]:
            for number, image, digest in plan.to_check():
                expected[number] = digest
                yield number, image

        for numbers, digests in _hashed(plan, files()):
            same = (expected.pop(n) == digest for n, digest in zip(numbers, digests, strict=True))
            plan.settle(zip(numbers, same, strict=True))
            progress.update(len(numbers))


def _hashed(
    plan: Comparison, files: Iterable[tuple[int, ImageFile]]
) -> Iterator[tuple[list[int], list[str | None]]]:
    """Yield the numbers of some files and the SHA-256 of each one, `None` if it cannot be read."""

    def digest(where: Location) -> str | None:
        try:
            return content_sha256(read_bytes(where), where.box)
        except ImageError:
            return None

    home, files = str(plan.table.folder), iter(files)
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


def changes_of(writer: Writer, plan: Comparison) -> Iterator[list[Change]]:
    """Yield the changes of unchanged files whose given label or metadata differ from those stored."""
    described = plan.described()
    while some := {item: image for image, item in islice(described, 1000)}:
        changes = []
        for item in writer.items(list(some)):
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
