"""Judged sets: queries with lists of what each should find in a gallery that is mostly distractors.

This is how instance retrieval is measured. The sets are not for training, as they have no classes.
"""

from __future__ import annotations

import csv
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from retrieval.errors import ImageError, InputError
from retrieval.images.load import load_image
from retrieval.ingest.sources import scan
from retrieval.ingest.tables import check_columns
from retrieval.metrics.judged import Judgements
from retrieval.metrics.recognition import UNKNOWN
from retrieval.storage.planning import ImageFile

REVISITED = ("trapezoid_ap", "precision_at_1", "precision_at_5", "precision_at_10")
RECOGNITION = ("gap", "gap_of_known", "recall_at_1")
UNIVERSAL = ("modified_precision_at_5", "recall_at_1")
_DISTRACTORS = "distractors"  # folder of a set with further images, which answer no query
_RIGHT, _EASY, _HARD, _IGNORED = "relevant", "easy", "hard", "ignored"
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """A query.

    Attributes:
        path: Image file.
        thing: What it shows; "" if nothing of the gallery. Intervals for other things resample all queries of
            one together.
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
        measures: Keys of what is reported; the first is the one of the set.
        balanced: Whether the protocols are domains, each query having one, and their mean is reported, too.
    """

    name: str
    queries: list[JudgedQuery]
    gallery: list[Path]
    protocols: Mapping[str, Judgements]
    measures: Sequence[str]
    balanced: bool = False

    @property
    def ks(self) -> tuple[int, ...]:
        """K of the measures that have one, ascending."""
        ends = {key.rpartition("_at_")[2] for key in self.measures}
        return tuple(sorted(int(end) for end in ends if end.isdigit()))

    @property
    def depth(self) -> int | None:
        """Number of results that the measures look at; `None`: all."""
        return max(self.ks) if len(self.ks) and all("_at_" in key for key in self.measures) else None

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
class RecognitionSet(JudgedSet):
    """Queries whose thing is named by their nearest images, with a confidence; others show unknown things.

    Attributes:
        classes: Class of each gallery image, int64 [M].
        truth: Class of each query, int64 [N]; `retrieval.metrics.recognition.UNKNOWN` for unknown things.
        validation: Image files of the queries on which the confidence is fitted; there may be none.
        validation_truth: Their classes.
    """

    classes: np.ndarray = field(kw_only=True)
    truth: np.ndarray = field(kw_only=True)
    validation: Sequence[Path] = field(kw_only=True)
    validation_truth: np.ndarray = field(kw_only=True)


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
    return found.as_set(spec, [*gallery, *_distractors(folder)], _at(100))


def _at(k: int) -> tuple[str, ...]:
    return f"map_at_{k}", "recall_at_1", "recall_at_5", "recall_at_10"


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

    def as_set(self, spec: str, gallery: list[Path], measures: Sequence[str]) -> JudgedSet:
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
        return JudgedSet(spec, list(self._rows), gallery, judgements, measures)

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
    return found.as_set(spec, _existing([*gallery, *_distractors(home)]), REVISITED)


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
    whole = found.as_set(spec, [*gallery, *_distractors(root)], _at(100))
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
    return found.as_set(spec, [*gallery, *distractors], _at(1000))


def _domains(spec: str, root: Path) -> JudgedSet:
    """Read UnED: info_files/DOMAIN/test.json and index.json, and images/ (Ypsilantis et al. 2023).

    All domains are searched together. Where a domain has no index, its queries are searched for among the
    others.
    """
    queries: list[JudgedQuery] = []
    gallery: list[Path] = []
    found: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    nothing = np.empty(0, np.int64)
    for file in sorted((root / "info_files").glob("*/test.json")):
        name, begin = file.parent.name, len(gallery)
        own = not file.with_name("index.json").is_file()
        searched = _listed(file if own else file.with_name("index.json"), root)
        rows: dict[str, list[int]] = {}
        for row, (path, classes) in enumerate(searched, begin):
            gallery.append(path)
            for one in classes:
                rows.setdefault(one, []).append(row)
        relevant, ignored = found[name] = [nothing] * len(queries), [nothing] * len(queries)
        for number, (path, classes) in enumerate(_listed(file, root)):
            queries.append(JudgedQuery(path, f"{name} {' '.join(classes)}"))
            self_ = np.array([begin + number] if own else [], np.int64)
            right = np.unique([row for one in classes for row in rows.get(one, ())]).astype(np.int64)
            relevant.append(np.setdiff1d(right, self_))
            ignored.append(self_)
    if not found:
        raise InputError(f"{root / 'info_files'}: no folders with test.json")
    for side in (side for sides in found.values() for side in sides):
        side += [nothing] * (len(queries) - len(side))
    protocols = {name: Judgements(*sides) for name, sides in found.items()}
    return JudgedSet(spec, queries, _existing([*gallery, *_distractors(root)]), protocols, UNIVERSAL, True)


def _exhibits(spec: str, root: Path) -> RecognitionSet:
    """Read Met: ground_truth/ with MET_database.json, testset.json and valset.json, and images/.

    Without the full database, the small one (mini_MET_database.json) is searched.
    """
    facts = root / "ground_truth"
    whole = facts / "MET_database.json"
    database = _listed(whole if whole.is_file() else facts / "mini_MET_database.json", root, "id")
    number_of: dict[str, int] = {}
    classes = np.array([number_of.setdefault(one, len(number_of)) for _, (one,) in database], np.int64)
    asked = _listed(facts / "testset.json", root, "MET_id")
    tried = _listed(facts / "valset.json", root, "MET_id") if (facts / "valset.json").is_file() else []
    # An exhibit that the small database lacks has a number of its own, and is never found.
    truth, validation_truth = (
        np.array(
            [number_of.setdefault(one[0], len(number_of)) if one else UNKNOWN for _, one in side], np.int64
        )
        for side in (asked, tried)
    )
    order, sizes = np.argsort(classes, kind="stable"), np.bincount(classes, minlength=len(number_of))
    nothing = np.empty(0, np.int64)
    rows = [*np.split(order, np.cumsum(sizes)[:-1]), nothing]  # of each class; the last one: `UNKNOWN`
    relevant = [rows[number] for number in truth.tolist()]
    return RecognitionSet(
        spec,
        [JudgedQuery(path, one[0] if one else "") for path, one in asked],
        _existing([path for path, _ in database]),
        {"": Judgements(relevant, [nothing] * len(asked))},
        RECOGNITION,
        classes=classes,
        truth=truth,
        validation=[path for path, _ in tried],
        validation_truth=validation_truth,
    )


def _listed(file: Path, root: Path, key: str = "class_id") -> list[tuple[Path, list[str]]]:
    """Return the image file and the classes of each entry of a JSON list; there may be no class."""
    try:
        entries = json.loads(file.read_text())
        found = []
        for entry in entries:
            given = entry.get(key, [])
            classes = [str(one) for one in (given if isinstance(given, list) else [given])]
            found.append((_unpacked(root / "images" / entry["path"]), classes))
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: not a list of images with their classes ({error!r})") from error
    return found


def _unpacked(path: Path) -> Path:
    """Return a file whose name some programs unpack with escapes, as those of RP2K, which are in Chinese."""
    if str(path).isascii() or path.exists():
        return path
    return Path(str(path).encode("unicode-escape").decode().replace("\\u", "#U").replace("\\x", "#U00"))


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
    "uned": KnownJudgedSet(
        title="cars, clothes, food, landmarks, works of art and others, UnED",
        protocol="241,986 queries of 8 domains in one index of 1,397,126 images; mMP@5 and R@1",
        images=1_413_476,
        by_hand=(
            "lay out ROOT/images/ and ROOT/info_files/ as the folder data of "
            "https://github.com/nikosips/Universal-Image-Embeddings; fewer domains will do"
        ),
        read=_domains,
    ),
    "met": KnownJudgedSet(
        title="works of art, Met",
        protocol="1,003 queries of 224,408 exhibits in 397,121 images, and others; GAP, GAP- and R@1",
        images=398_124,
        by_hand="unpack the images to ROOT/images/ and the ground truth of http://cmp.felk.cvut.cz/met/ to "
        "ROOT/ground_truth/",
        read=_exhibits,
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
            check_columns(str(file), reader.fieldnames or (), columns)
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
