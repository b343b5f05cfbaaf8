"""Pairs of images that people compared, `pairs:FILE`: each is the same or different, or has a score."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.arrow import load_pyarrow
from retrieval.errors import InputError
from retrieval.text import pluralize
from train.data.dataset import LabelledImage, LabelledPairs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_WORDS = {"1": 1.0, "same": 1.0, "true": 1.0, "0": 0.0, "different": 0.0, "false": 0.0}
_GROUPS = 20  # of images that pairs connect: with fewer, they are divided
_NAMED = 5  # missing files that a message names


def from_pairs(file: Path) -> tuple[list[LabelledImage], LabelledPairs]:
    """Read a CSV or Parquet file with the columns image_a, image_b, and label or score.

    Paths are relative to the file. A label is 1, same or true, or 0, different or false. Scores are numbers
    on any scale, larger for more alike. The class of an image is the group of images that pairs connect it
    with, so that images held out by class share no pair with the others; if the groups are few, or one has
    most images, it is a part of such groups, and pairs between held-out and other images are not used.

    Raises:
        InputError: The file cannot be read, or a line is wrong: a missing value or file, an unknown label, a
            score that is no number, an image paired with itself, or one pair with two values; or all values
            are equal.
    """
    where = f"pairs:{file}"
    columns = _read(file, where)
    graded = "score" in columns
    number: dict[str, int] = {}
    rows: dict[tuple[int, int], tuple[int, float]] = {}  # pair -> line and value
    lines = zip(columns["image_a"], columns["image_b"], columns["score" if graded else "label"], strict=True)
    for line, (a, b, text) in enumerate(lines, 2):
        value = _value(text, graded, f"{where}, line {line}")
        if not a or not b:
            raise InputError(f"{where}, line {line}: no {'image_b' if a else 'image_a'}")
        if a == b:
            raise InputError(f"{where}, line {line}: {a} is paired with itself; leave the line out")
        one, other = (number.setdefault(name, len(number)) for name in (a, b))
        before, known = rows.setdefault((min(one, other), max(one, other)), (line, value))
        if known != value:
            kinds = [str(v) if graded else "same" if v else "different" for v in (known, value)]
            raise InputError(
                f"{where}: {a} and {b} are {kinds[0]} in line {before} and {kinds[1]} in line {line}; "
                "leave one out"
            )
    if len({value for _, value in rows.values()}) < 2:
        raise InputError(f"{where}: all pairs have the same value, so there is nothing to learn")
    _check_files(where, file.parent, number)
    places = np.array(list(rows), np.int64).reshape(-1, 2)
    values = np.array([value for _, value in rows.values()])
    names = list(number)
    found = () if graded else tuple(_contradictions(places, values, names))
    groups = _groups(places, len(names))
    images = [
        LabelledImage(file.parent / name, str(group)) for name, group in zip(names, groups, strict=True)
    ]
    return images, LabelledPairs(places[:, 0], places[:, 1], values, graded, found)


def contradiction_note(pairs: LabelledPairs | None) -> str | None:
    """Return a note for users on labels that contradict each other; `None` without any."""
    if pairs is None or not pairs.contradictions:
        return None
    count, first = len(pairs.contradictions), pairs.contradictions[0]
    return (
        f"pairs: {pluralize(count, 'pair')} labelled different although a chain of same pairs connects them, "
        f"such as {first}: look at these labels"
    )


def _read(file: Path, where: str) -> Mapping[str, Sequence[str]]:
    """Return the columns of a table as text."""
    try:
        if file.suffix == ".parquet":
            load_pyarrow(f"{where}: Parquet")
            from pyarrow import ArrowException, parquet

            try:
                table: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
            except ArrowException as error:
                raise InputError(f"{where}: cannot be read ({error})") from error
            columns = {
                name: ["" if value is None else str(value) for value in column]
                for name, column in table.items()
            }
        else:
            with file.open(newline="", encoding="utf-8-sig") as lines:
                reader = csv.DictReader(lines, restval="")
                rows = list(reader)
                columns = {name: [row[name] for row in rows] for name in reader.fieldnames or ()}
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{where}: cannot be read ({error})") from error
    for name in ("image_a", "image_b"):
        if name not in columns:
            raise InputError(f"{where}: no column {name!r}; it needs image_a, image_b, and label or score")
    if ("label" in columns) == ("score" in columns):
        problem = "both label and score" if "label" in columns else "neither label nor score"
        raise InputError(f"{where}: there is {problem}; one of these columns is needed")
    if not columns["image_a"]:
        raise InputError(f"{where}: lists no pairs")
    return columns


def _value(text: str, graded: bool, where: str) -> float:
    if not graded:
        value = _WORDS.get(text.strip().lower().removesuffix(".0"))
        if value is None:
            raise InputError(f"{where}: label is {text!r}; expected 1, same, true, 0, different or false")
        return value
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: score is {text!r}; expected a number")
    return number


def _check_files(where: str, folder: Path, names: Iterable[str]) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - _NAMED} others" if len(missing) > _NAMED else ""
        raise InputError(
            f"{where}: no such file: {', '.join(missing[:_NAMED])}{more}; paths are relative to {folder}"
        )


def _links(places: np.ndarray, count: int) -> csr_array:
    """Return the graph of pairs [P, 2] of `count` images."""
    from scipy.sparse import coo_array  # slow to import

    both = np.concatenate([places, places[:, ::-1]])
    return coo_array((np.ones(len(both)), (both[:, 0], both[:, 1])), (count, count)).tocsr()


def _components(links: csr_array) -> np.ndarray:
    """Return the number of the group of each image that pairs connect."""
    from scipy.sparse.csgraph import connected_components  # slow to import

    found: np.ndarray = connected_components(links, directed=False)[1]
    return found


def _groups(places: np.ndarray, count: int) -> list[int]:
    """Return the group of each image; parts of groups are next to each other in the graph."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee  # slow to import

    links = _links(places, count)
    found = _components(links)
    sizes = np.bincount(found)
    if len(sizes) < _GROUPS or sizes.max() > count / 2:
        found[reverse_cuthill_mckee(links, symmetric_mode=True)] = np.arange(count) * _GROUPS // count
    groups: list[int] = found.tolist()
    return groups


def _contradictions(places: np.ndarray, values: np.ndarray, names: Sequence[str]) -> Iterator[str]:
    """Yield the different pairs of images that a chain of same pairs connects."""
    same = _components(_links(places[values == 1], len(names)))
    for a, b in places[values == 0].tolist():
        if same[a] == same[b]:
            yield f"{names[a]} and {names[b]}"
