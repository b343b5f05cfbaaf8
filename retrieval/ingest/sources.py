"""Where the pictures of a gallery come from: folders, globs, tar shards, lists and tables of files."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError, InputError
from retrieval.images import shards
from retrieval.images.load import SUFFIXES
from retrieval.ingest import tables
from retrieval.storage import schema
from retrieval.storage.records import BadFile, FileStamp, Value

STANDARD_INPUT = "-"
Metadata = str | Path | Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class ImageFile(FileStamp):
    """An image file, and what its owner says about it.

    Attributes:
        id: the owner's id for it; `None`: its path will do.
        metadata: a value for each column that is given.
        told: whether the label is the owner's too, and not just the name of the folder.
    """

    id: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    told: bool = False

    @property
    def file(self) -> FileStamp:
        """The file alone."""
        return FileStamp(self.root, self.path, self.size, self.mtime_ns, self.label)


@dataclass
class Scan:
    """What the sources hold.

    Attributes:
        files: image files by full path, in a fixed order.
        unusable: names that cannot be kept, tar files that are damaged, rows whose file is gone.
        ignored: files without an image suffix.
        unmatched: rows of a table about files that were not given.
    """

    files: dict[Path, ImageFile] = field(default_factory=dict)
    unusable: list[BadFile] = field(default_factory=list)
    ignored: int = 0
    unmatched: int = 0

    def add(self, path: Path, picture: ImageFile) -> None:
        """Take a file in; the first that says something about it counts."""
        if _is_text(picture.path):
            self.files.setdefault(path, picture)
            return
        written = os.fsencode(picture.path).decode("utf-8", "backslashreplace")
        detail = "its name is not valid UTF-8: rename it"
        self.unusable.append(BadFile(replace(picture.file, path=written), "name", detail))


def collect(
    sources: Iterable[str | Path],
    *,
    list_file: str | None = None,
    metadata: Metadata | None = None,
    root: Path | None = None,
    roots: Iterable[str] = (),
) -> Scan:
    """Everything that is named: sources as for `scan`, a list of files, and a table.

    The rows of a table are about the images of the other sources; where there is no other, they are the
    source. Paths in a table are relative to the folder that is given, if one is, else to the table's own;
    paths in a list to the working folder.

    Args:
        list_file: a text file with a path on each line, or "-", the standard input.
        metadata: a table, which is a CSV or Parquet file, see `retrieval.ingest.tables`; or the values by
            column for each of the sources, which are files then.
        root: what paths in the list and the table are relative to instead.
        roots: known folders, as for `scan`.

    Raises:
        InputError: nothing is named; a source, list or table that does not exist, names no image, or is not
            what it should be.
    """
    paths, roots = [Path(source) for source in sources], list(roots)
    if not paths and list_file is None and metadata is None:
        raise InputError("no images: name files or folders, or give --list or --metadata")
    found = scan(paths, roots)
    if list_file is not None:
        _take_list(found, list_file, (root or Path()).resolve(), roots)
    if metadata is None:
        return found
    if not isinstance(metadata, str | Path):
        _take_facts(found, _row_each(paths, metadata), Path("/"), "metadata")
        return found
    table = Path(metadata)
    if root is not None:
        base = root.resolve()
    else:
        folders = [path for path in paths if path.is_dir()]
        base = (folders[0] if len(folders) == 1 else table.parent).resolve()
    if found.files:
        _take_facts(found, tables.read(table), base, str(table))
    else:
        _take_rows(found, tables.read(table), base, roots)
    return found


def scan(sources: Iterable[str | Path], roots: Iterable[str] = ()) -> Scan:
    """Find the image files among files, folders, globs and tar shards.

    A folder is searched through all its sub-folders, each once, also where links lead to them; the label of
    an image is the folder it lies in, seen from the folder that was named. Hidden files are passed over, and
    a file named outright is taken whatever its suffix. Where a source lies within one of `roots`, paths and
    labels are taken from there.

    Raises:
        InputError: a source that does not exist, or holds no image.
    """
    found, known = Scan(), list(roots)
    for source in map(Path, sources):
        one = Scan()
        if source.exists():
            top = source.resolve()
            _take(one, top, _root(top, known, top if top.is_dir() else top.parent))
        elif glob.has_magic(str(source)):
            _take_glob(one, source, known)
        else:
            raise InputError(f"{source}: there is no such file or folder")
        if not one.files and not one.unusable:
            what = f"no image files in it ({', '.join(SUFFIXES[:6])}, ...)"
            raise InputError(f"{source}: {what}{_hint(source)}")
        for path, picture in one.files.items():
            found.files.setdefault(path, picture)
        found.unusable += one.unusable
        found.ignored += one.ignored
    return found


def stamp(path: Path, root: Path) -> ImageFile:
    """A file as it is now; its label is its folder below `root`."""
    relative = path.relative_to(root)
    label = relative.parent.as_posix() if relative.parent.parts else None
    try:
        size, mtime = _stat(path)
    except (OSError, ValueError, InputError):  # vanished, or a broken link: reading it will say so
        size, mtime = 0, 0
    return ImageFile(str(root), relative.as_posix(), size, mtime, label)


def exists(path: Path) -> bool:
    """Whether there is a file of this path, or one inside a tar file; also where nobody may look."""
    try:
        _stat(path)
    except PermissionError:
        return True
    except (OSError, ValueError, InputError):
        return False
    return True


def _stat(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except NotADirectoryError:
        return shards.stat(path)
    return status.st_size, status.st_mtime_ns


# ---- files and folders


def _take(found: Scan, top: Path, root: Path) -> None:
    if top.is_file() and top.suffix.lower() == shards.SUFFIX:
        _take_shard(found, top, root)
        return
    errors: list[OSError] = []
    for path in _files(top, errors):
        if top.is_dir() and path.suffix.lower() not in SUFFIXES:
            found.ignored += 1
        else:
            found.add(path, stamp(path, root))
    for error in errors:
        folder = stamp(Path(error.filename), root)
        found.unusable.append(
            BadFile(folder, ImageError.PERMISSION, f"folder not readable ({error.strerror})")
        )


def _take_glob(found: Scan, pattern: Path, known: Sequence[str]) -> None:
    """What a pattern matches; labels are seen from the last folder before its first wildcard."""
    magic = next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))
    start = Path(*pattern.parts[:magic])
    top = start.resolve()
    for match in sorted(glob.glob(str(pattern), recursive=True)):
        path = top / Path(match).relative_to(start)
        if path.is_dir() or path.suffix.lower() in (*SUFFIXES, shards.SUFFIX):
            _take(found, path, _root(path, known, top))
        else:
            found.ignored += 1


def _files(top: Path, errors: list[OSError]) -> Iterator[Path]:
    """The files below a folder, or the file itself. Real folders come before those that links lead to."""
    if not top.is_dir():
        yield top
        return
    seen: set[tuple[int, int]] = set()
    waiting = [top]
    while waiting:
        links = []
        for folder, folders, names in os.walk(waiting.pop(0), onerror=errors.append):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            links += [path for name in folders if (path := Path(folder, name)).is_symlink()]
            yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        waiting += links


def _root(path: Path, known: Iterable[str], otherwise: Path) -> Path:
    """The innermost known folder that a path lies in."""
    within = [root for root in map(Path, known) if path.is_relative_to(root)]
    return max(within, key=lambda root: len(root.parts), default=otherwise)


def _hint(source: Path) -> str:
    tars = source.is_dir() and any(path.suffix.lower() == shards.SUFFIX for path in source.iterdir())
    return f"; name tar shards themselves, as in '{source}/*{shards.SUFFIX}'" if tars else ""


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # the operating system's bytes, smuggled through as surrogates
        return False
    return "\0" not in name


# ---- tar shards


def _take_shard(found: Scan, tar: Path, root: Path) -> None:
    """Pictures of a tar file; files of the same stem beside each, as WebDataset has them, are about it.

    x.json holds metadata (and id, label), x.cls the label, x.txt the metadata column "text". Names that mean
    something else in a gallery, such as width, are left out.
    """
    base = stamp(tar, root)
    try:
        for _, group in groupby(shards.members(tar), lambda member: _stem(member.name)):
            members = list(group)
            facts, problem = _facts(tar, members)
            for member in members:
                name = PurePosixPath(member.name)
                if name.suffix.lower() not in SUFFIXES or name.name.startswith("."):
                    found.ignored += name.suffix.lower() not in _SIDECARS
                    continue
                path = f"{base.path}/{name.as_posix()}"
                label = name.parent.as_posix() if name.parent.parts else None
                picture = ImageFile(base.root, path, member.size, base.mtime_ns, label)
                if not shards.is_within(member.name):
                    found.unusable.append(BadFile(picture, "name", "its name leads out of the tar file"))
                elif problem:
                    found.unusable.append(BadFile(picture, "metadata", problem))
                else:
                    found.add(tar / name, _with_facts(picture, tables.row(facts, f"{tar}/{name}")))
    except InputError as error:
        if not any(path.is_relative_to(tar) for path in found.files):
            raise
        found.unusable.append(BadFile(base, ImageError.DAMAGED, f"its end cannot be read ({error})"))


_SIDECARS = {".json": "", ".cls": "label", ".txt": "text"}
_LARGEST_SIDECAR = 2**20


def _stem(name: str) -> str:
    """What files about the same picture have in common: the name up to its first dot."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def _facts(tar: Path, members: Iterable[shards.Member]) -> tuple[dict[str, object], str | None]:
    """What the files about a picture say, and what is wrong with them."""
    facts: dict[str, object] = {}
    for member in members:
        suffix = PurePosixPath(member.name).suffix.lower()
        if suffix not in _SIDECARS:
            continue
        if member.size > _LARGEST_SIDECAR:
            return {}, f"{member.name} beside it is over 1 MB"
        try:
            text = shards.read_member(tar, member.start, member.size).decode("utf-8-sig")
            facts |= _from_json(text) if suffix == ".json" else {_SIDECARS[suffix]: text.strip()}
        except (ValueError, RecursionError) as error:
            return {}, f"{member.name} beside it cannot be read ({error})"
    return facts, None


def _from_json(text: str) -> dict[str, object]:
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError("expected an object")
    taken = schema.RESERVED - {"id", "label"}
    return {
        name: value if isinstance(value, Value) else json.dumps(value)
        for name, value in facts.items()
        if name.lower() not in taken
    }


# ---- lists and tables


def _take_list(found: Scan, list_file: str, base: Path, known: Sequence[str]) -> None:
    name = "standard input" if list_file == STANDARD_INPUT else list_file
    try:
        data = sys.stdin.buffer.read() if list_file == STANDARD_INPUT else Path(list_file).read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from error
    lines = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")).split("\n")
    named = [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not named:
        raise InputError(f"{name}: it lists no images")
    for number, line in named:
        path = _within(base, line, f"{name}, line {number}")
        found.add(path, stamp(path, _root(path, known, base)))


def _row_each(paths: Sequence[Path], values: Sequence[Mapping[str, object]]) -> list[tables.Row]:
    """What is said about each of some files, as a table would say it."""
    if len(values) != len(paths):
        raise InputError(f"metadata: {len(values)} rows for {len(paths)} files; it takes one for each")
    each = enumerate(zip(paths, values, strict=True), 1)
    return tables.rows(
        (f"metadata, row {n}", {**row, "path": str(path.resolve())}) for n, (path, row) in each
    )


def _take_rows(found: Scan, rows: Iterable[tables.Row], base: Path, known: Sequence[str]) -> None:
    """The rows of a table as the source."""
    for row in rows:
        path = _within(base, row.path, row.place)
        if path in found.files:
            raise InputError(f"{row.place}: {row.path} is in the table twice")
        found.add(path, _with_facts(stamp(path, _root(path, known, base)), row))


def _take_facts(found: Scan, rows: Iterable[tables.Row], base: Path, name: str) -> None:
    """The rows of a table as facts about files that were found."""
    done: set[Path] = set()
    for row in rows:
        path = _within(base, row.path, row.place)
        if path in done:
            raise InputError(f"{row.place}: {row.path} is in the table twice")
        done.add(path)
        if path in found.files:
            found.files[path] = _with_facts(found.files[path], row)
        elif exists(path):
            found.unmatched += 1
        else:
            missing = BadFile(stamp(path, base), ImageError.MISSING, f"there is no such file ({row.place})")
            found.unusable.append(missing)
    if done.isdisjoint(found.files):
        hint = f"its paths are taken relative to {base}; --root names another folder"
        raise InputError(f"{name}: none of its rows is about an image that was given; {hint}")


def _with_facts(picture: ImageFile, row: tables.Row) -> ImageFile:
    label = row.label if row.has_label else picture.label
    return replace(picture, label=label, id=row.id, metadata=row.metadata, told=picture.told or row.has_label)


def _within(base: Path, name: str, place: str) -> Path:
    path = Path(os.path.normpath(base / name))
    if not path.is_relative_to(base):  # it may say by links what `base` says without
        path = path.parent.resolve() / path.name
    if not path.is_relative_to(base) or path == base or "\0" in name:
        raise InputError(f"{place}: {name!r} lies outside {base}; --root names the folder of all images")
    return path
