"""Judged sets: queries with lists of what each should find in a gallery that is mostly distractors.

This is how instance retrieval is measured. The sets are not for training, as they have no classes.
"""

from __future__ import annotations

import csv
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from retrieval.errors import ImageError, InputError
from retrieval.images.load import load_image
from retrieval.ingest.sources import scan
from retrieval.metrics.judged import Judgements
from retrieval.storage.planning import ImageFile

KS = (1, 5, 10)  # of recall, or of precision, in a report
_DISTRACTORS = "distractors"  # folder of a set with further images, which answer no query
_RIGHT, _EASY, _HARD, _IGNORED = "relevant", "easy", "hard", "ignored"
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """A query.

    Attributes:
        path: Image file.
        thing: What it shows. Intervals for other things resample all queries of one together.
        box: The part of the image that is searched for: left, top, right and bottom in pixels; `None`: all.
    """

    path: Path
    thing: str
    box: Box | None = None


@dataclass(frozen=True)
class JudgedSet:
    """Queries, the gallery that they search, and what they should find there.

    Attributes:
        name: Data specification as the user wrote it.
        queries: The queries.
        gallery: Image files that are searched, distractors among them.
        protocols: What each query should find, rows of `gallery`, by the name of the protocol.
        k: Depth of average precision, which is reported with recall; `None` for the average precision and the
            precision of the revisited Oxford and Paris.
    """

    name: str
    queries: list[JudgedQuery]
    gallery: list[Path]
    protocols: Mapping[str, Judgements]
    k: int | None

    @contextmanager
    def query_files(self) -> Iterator[list[Path]]:
        """Yield an image file for each query; the parts of images are cut out for the time of the block."""
        with TemporaryDirectory(prefix="lookalike-") as folder:
            yield [self._file(query, Path(folder, f"{n}.png")) for n, query in enumerate(self.queries)]

    def _file(self, query: JudgedQuery, part: Path) -> Path:
        if query.box is None:
            return query.path
        left, top, right, bottom = map(round, query.box)
        try:
            load_image(query.path).crop((left, top, right, bottom)).save(part, compress_level=1)
        except ImageError:
            return query.path  # whoever reads it reports it
        return part


@dataclass(frozen=True)
class KnownJudgedSet:
    """A published judged set.

    Attributes:
        title: Short description.
        protocol: What is measured.
        images: Number of images without distractors that come separately.
        by_hand: How to obtain it and lay it out.
        read: Reads it from a folder; the first argument is the data specification.
    """

    source: ClassVar[str] = "by hand"
    bundled: ClassVar[bool] = False
    licence: ClassVar[str] = ""  # of its images; their publishers state several, or none

    title: str
    protocol: str
    images: int
    by_hand: str
    read: Callable[[str, Path], JudgedSet]


def load_judged(spec: str) -> JudgedSet | None:
    """Load a judged set: `judged:DIR` (see `from_folder`) or `NAME:ROOT`; `None` for other data.

    Raises:
        InputError: It is missing, incomplete or contradictory.
    """
    name, _, location = spec.partition(":")
    if not is_judged(spec):
        return None
    if not location:
        raise InputError(
            f"data {spec!r}: no folder given; write {name}:{'DIR' if name == 'judged' else 'ROOT'}"
        )
    if name == "judged":
        return from_folder(spec, Path(location))
    try:
        return JUDGED[name].read(spec, Path(location))
    except InputError as error:
        raise InputError(f"{spec}: {error}; {JUDGED[name].by_hand}") from error


def is_judged(spec: str) -> bool:
    """Tell whether a data specification names a judged set."""
    name = spec.partition(":")[0]
    return name == "judged" or name in JUDGED


def from_folder(spec: str, folder: Path) -> JudgedSet:
    """Read a set of one's own: judgements.csv, and a folder gallery with the images that are searched.

    The table has the columns query, image and judgement, and a line for each pair that was judged; paths are
    relative to its folder. A judgement is "relevant"; "easy" or "hard", which give the protocols easy, medium
    (both) and hard; or "ignored", for an image that should neither be found nor count as wrong. All other
    images of the gallery are wrong. Average precision is that of the first 100.

    Raises:
        InputError: The table cannot be read, or contradicts itself.
    """
    file = folder / "judgements.csv"
    gallery = _images(folder / "gallery")
    rows, found = {os.path.realpath(path): row for row, path in enumerate(gallery)}, _Judged()
    for line, (query, image, judgement) in _table(file, ("query", "image", "judgement")):
        place = f"{file}, line {line}"
        if judgement not in (_RIGHT, _EASY, _HARD, _IGNORED):
            raise InputError(f"{place}: judgement {judgement!r}; expected relevant, easy, hard or ignored")
        path = os.path.realpath(folder / image)
        if path not in rows:
            raise InputError(f"{place}: {image}: there is no such image in {folder / 'gallery'}")
        found.add(JudgedQuery(folder / query, query), judgement, [rows[path]], place)
    return found.as_set(spec, [*gallery, *_distractors(folder)], 100)


class _Judged:
    """Judgements that are being read: gallery rows by query and judgement."""

    def __init__(self) -> None:
        self._rows: dict[JudgedQuery, dict[str, set[int]]] = {}

    def add(self, query: JudgedQuery, judgement: str, rows: Iterable[int], place: str) -> None:
        mine = self._rows.setdefault(query, {})
        mine.setdefault(judgement, set()).update(rows)
        others = set().union(*(known for name, known in mine.items() if name != judgement))
        if twice := mine[judgement] & others:
            raise InputError(f"{place}: {query.path.name}: {len(twice)} images are judged in two ways")

    def as_set(self, spec: str, gallery: list[Path], k: int | None) -> JudgedSet:
        protocols: dict[str, tuple[Sequence[str], Sequence[str]]]
        used = {name for mine in self._rows.values() for name, rows in mine.items() if rows}
        if not used & {_RIGHT, _EASY, _HARD}:
            raise InputError("no query has an image to find")
        if not used & {_EASY, _HARD}:
            protocols = {"": ((_RIGHT,), (_IGNORED,))}
        elif _RIGHT in used:
            raise InputError("judgements: use relevant, or easy and hard, but not both")
        else:  # Radenovic et al. 2018, section 3.3
            protocols = {
                "easy": ((_EASY,), (_HARD, _IGNORED)),
                "medium": ((_EASY, _HARD), (_IGNORED,)),
                "hard": ((_HARD,), (_EASY, _IGNORED)),
            }
        judgements = {
            name: Judgements(*([self._of(mine, kinds) for mine in self._rows.values()] for kinds in sides))
            for name, sides in protocols.items()
        }
        return JudgedSet(spec, list(self._rows), gallery, judgements, k)

    @staticmethod
    def _of(mine: Mapping[str, set[int]], kinds: Sequence[str]) -> np.ndarray:
        return np.array(sorted(set().union(*(mine.get(kind, set()) for kind in kinds))), np.int64)


# ---- published sets


def _buildings(name: str, spec: str, root: Path) -> JudgedSet:
    """Read the revisited Oxford or Paris: gnd_NAME.pkl and jpg/ (Radenovic et al. 2018)."""
    home = root if (root / f"gnd_{name}.pkl").is_file() else root / name
    file = home / f"gnd_{name}.pkl"
    truth = _read_pickle(file)
    try:
        gallery = [home / "jpg" / f"{image}.jpg" for image in truth["imlist"]]
        found = _Judged()
        for image, facts in zip(truth["qimlist"], truth["gnd"], strict=True):
            left, top, right, bottom = map(float, facts["bbx"])
            thing = image.rpartition("_")[0] or image  # as in all_souls_000013
            query = JudgedQuery(home / "jpg" / f"{image}.jpg", thing, (left, top, right, bottom))
            for ours, theirs in ((_EASY, "easy"), (_HARD, "hard"), (_IGNORED, "junk")):
                found.add(query, ours, (int(row) for row in facts[theirs]), str(file))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file}: not the judgements of {name} ({error!r})") from error
    return found.as_set(spec, _existing([*gallery, *_distractors(home)]), None)


def _landmarks(spec: str, root: Path) -> JudgedSet:
    """Read the Google Landmarks Dataset v2: retrieval_solution_v2.1.csv, test/ and index/."""
    name = "retrieval_solution_v2.1.csv"
    file = next((one for one in (root / name, root / "test" / name) if one.is_file()), root / name)
    gallery = _images(root / "index")
    rows, found = {path.stem: row for row, path in enumerate(gallery)}, _Judged()
    usages: list[str] = []
    for line, (image, relevant, usage) in _table(file, ("id", "images", "Usage")):
        if usage == "Ignored":
            continue
        place, names = f"{file}, line {line}", relevant.split()
        if absent := [one for one in names if one not in rows]:
            what = f"{len(absent)} images of {image} are not in index, {absent[0]} among them"
            raise InputError(f"{place}: {what}")
        query = JudgedQuery(root.joinpath("test", *image[:3], f"{image}.jpg"), image)
        found.add(query, _RIGHT, [rows[one] for one in names], place)
        usages.append(usage.lower())
    whole = found.as_set(spec, [*gallery, *_distractors(root)], 100)
    if len(usages) != len(whole.queries):
        raise InputError(f"{file}: an image is listed twice")
    judged, nothing = whole.protocols[""], np.empty(0, np.int64)
    protocols = {}
    for usage in sorted(set(usages), reverse=True):
        chosen = [
            rows if one == usage else nothing for rows, one in zip(judged.relevant, usages, strict=True)
        ]
        protocols[usage] = Judgements(chosen, judged.ignored)
    return replace(whole, protocols=protocols)


def _objects(spec: str, root: Path) -> JudgedSet:
    """Read ILIAS: THING/query/Q*.jpg and THING/pos/P*.jpg (Kordopatis-Zilos et al. 2025)."""
    home = root / "ilias_core" if (root / "ilias_core").is_dir() else root
    gallery: list[Path] = []
    found = _Judged()
    for queries in sorted(path for path in home.glob("*/query") if path.is_dir()):
        thing = queries.parent
        positives = _images(thing / "pos")
        rows = range(len(gallery), len(gallery) + len(positives))
        gallery += positives
        for image in _images(queries):
            found.add(JudgedQuery(image, thing.name), _RIGHT, rows, str(thing))
    if not gallery:
        raise InputError(f"{home}: no folders NAME/query and NAME/pos with images")
    distractors = [image for top in dict.fromkeys((home, root)) for image in _distractors(top)]
    return found.as_set(spec, [*gallery, *distractors], 1000)


def _revisited(name: str, city: str, searched: int) -> KnownJudgedSet:
    """Return a set of the revisited buildings: 70 queries, beside the images that are searched."""
    return KnownJudgedSet(
        title=f"buildings of {city}, revisited",
        protocol=f"70 queries, the part in a box; easy, medium and hard images of {searched:,}",
        images=searched + 70,
        by_hand=(
            f"unpack the {city} buildings to ROOT/jpg/ and put gnd_{name}.pkl of "
            "https://github.com/filipradenovic/revisitop there; what is in ROOT/distractors is searched, too"
        ),
        read=lambda spec, root: _buildings(name, spec, root),
    )


JUDGED = {
    "roxford5k": _revisited("roxford5k", "Oxford", 4_993),
    "rparis6k": _revisited("rparis6k", "Paris", 6_322),
    "gldv2": KnownJudgedSet(
        title="landmarks, Google Landmarks Dataset v2",
        protocol="1,129 queries, private and public, in an index of 761,757 images; mAP@100",
        images=762_886,
        by_hand=(
            "download test, index and retrieval_solution_v2.1.csv by the scripts of "
            "https://github.com/cvdfoundation/google-landmark, to ROOT/test/, ROOT/index/ and ROOT"
        ),
        read=_landmarks,
    ),
    "ilias": KnownJudgedSet(
        title="objects of 1,000 kinds, ILIAS",
        protocol="1,232 queries, 4,715 images to find, any number of distractors; mAP@1000",
        images=5_947,
        by_hand=(
            "unpack ilias_core.tar of https://vrg.fel.cvut.cz/ilias_data/ to ROOT/ilias_core/; images in "
            "ROOT/distractors are searched, too"
        ),
        read=_objects,
    ),
}


# ---- files


def _images(folder: Path) -> list[Path]:
    """Return the image files of a folder, at any depth, in order."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    found = [entry.full for entry in scan([folder]) if isinstance(entry, ImageFile)]
    if not found:
        raise InputError(f"{folder}: contains no images")
    return found


def _distractors(root: Path) -> list[Path]:
    return _images(root / _DISTRACTORS) if (root / _DISTRACTORS).is_dir() else []


def _existing(paths: list[Path]) -> list[Path]:
    if absent := [path for path in paths if not path.is_file()]:
        raise InputError(f"{len(absent)} of {len(paths)} images are missing, {absent[0]} among them")
    return paths


def _table(file: Path, columns: tuple[str, str, str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the values of some columns for each line of a CSV file."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            if absent := [name for name in columns if name not in (reader.fieldnames or ())]:
                raise InputError(f"{file}: no column {absent[0]!r} in its first line")
            for row in reader:
                values = [row[name] for name in columns]
                if None in values or None in row:
                    raise InputError(f"{file}, line {reader.line_num}: not one field for each column")
                yield reader.line_num, values
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file}: cannot be read ({error})") from error


class _PlainUnpickler(pickle.Unpickler):
    """Reads lists, dictionaries, texts, numbers and NumPy arrays; anything else is refused before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        found = _PLAIN.get((module.replace("numpy.core", "numpy._core"), name))
        if found is None:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return found


_PLAIN: dict[tuple[str, str], Any] = {  # what pickled arrays are made of, by the module that it is pickled as
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    ("numpy._core.multiarray", "scalar"): np._core.multiarray.scalar,  # type: ignore[attr-defined]
    ("numpy._core.numeric", "_frombuffer"): np._core.numeric._frombuffer,  # type: ignore[attr-defined]
    ("__builtin__", "bytes"): lambda: b"",
    ("builtins", "bytes"): lambda: b"",
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}


def _read_pickle(file: Path) -> Any:
    try:
        with file.open("rb") as data:
            return _PlainUnpickler(data, encoding="latin1").load()
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except Exception as error:  # the exception depends on where the file is damaged
        raise InputError(f"{file}: not a file of judgements ({error})") from error
