"""Tables of judgements about the items of a gallery: labels and decisions, or decisions on pairs.

Labels: one of the columns `id`, `key` and `path`, and the column `label`, or `decision`, which is keep or
remove. Pairs: the columns `a` and `b`, two items by id or key, and `same`, which is 1 (true, yes) or 0
(false, no). Further columns are ignored. An empty label or decision is one that was not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.errors import InputError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.location import Location
from retrieval.ingest.tables import read_rows, separator_hint
from retrieval.storage.records import Value
from retrieval.text import pluralize

_NAMES = ("id", "key", "path")
_LISTED = 10  # unknown items in an error message
_ACTIONS = ("", "keep", "remove")
_DECISIONS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


_Row = tuple[str, Mapping[str, Value]]  # position in error messages, and values by column
_Name = tuple[str, Value]  # position in error messages, and the name of an item


@dataclass(frozen=True)
class Judgements:
    """Judgements about items.

    Attributes:
        labels: Labels by item id, without those of items to remove.
        pairs: Pairs of item ids, and whether both show the same thing.
        kept: Ids of the items that are right as they are.
        removed: Ids of the items to remove.
    """

    labels: dict[int, str]
    pairs: list[tuple[int, int, bool]]
    kept: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


def read_judgements(file: Path, gallery: SearchableGallery) -> Judgements:
    """Read a table of labels or of decisions.

    Args:
        file: CSV or Parquet (`.parquet`) file.
        gallery: Gallery of the items.

    Raises:
        InputError: The table is invalid, has two judgements of an item, or names items that the gallery does
            not have.
    """
    rows = list(read_rows(file))
    if not rows:  # a list of nothing
        return Judgements({}, [])
    columns = rows[0][1].keys()
    if {"a", "b", "same"} <= columns:
        return Judgements({}, _pairs(rows, gallery))
    name = next((name for name in _NAMES if name in columns), None)
    if name is None or not {"label", "decision"} & columns:
        what = f"columns {', '.join(map(repr, columns))}"
        needs = "it needs one of id, key and path, and label or decision, or a, b and same"
        raise InputError(f"{file}: {what}; {separator_hint(list(columns)) or needs}")
    given = [(place, row[name], str(row.get("label") or ""), _action(row, place)) for place, row in rows]
    given = [one for one in given if one[2] or one[3]]
    find = _ids_of_paths if name == "path" else _ids_of
    ids = find([(place, value) for place, value, *_ in given], gallery)
    found: dict[int, tuple[str, str]] = {}
    for item, (place, value, label, action) in zip(ids, given, strict=True):
        if (first := found.setdefault(item, (label, action))) != (label, action):
            what = f"the label {first[0]!r}" if first[0] != label else f"the decision {first[1]!r}"
            raise InputError(f"{place}: {value!r} has {what} in another row; leave one")
    return Judgements(
        {item: label for item, (label, action) in found.items() if label and action != "remove"},
        [],
        [item for item, (_, action) in found.items() if action == "keep"],
        [item for item, (_, action) in found.items() if action == "remove"],
    )


def _action(row: Mapping[str, Value], place: str) -> str:
    action = str(row.get("decision") or "").strip().lower()
    if action not in _ACTIONS:
        raise InputError(f"{place}: decision is {row['decision']!r}; write keep or remove, or leave it empty")
    return action


def connected_components(items: Iterable[int], pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the connected component of each item, named by one of its items.

    Args:
        items: All items.
        pairs: Two items each that are connected.
    """
    parent = {item: item for item in items}

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = item = parent[parent[item]]
        return item

    for a, b in pairs:
        parent[root(a)] = root(b)
    return {item: root(item) for item in parent}


def _pairs(rows: Sequence[_Row], gallery: SearchableGallery) -> list[tuple[int, int, bool]]:
    made = [(place, row) for place, row in rows if row["same"] not in (None, "")]
    decisions = [_decision(row["same"], place) for place, row in made]
    first, second = (_ids_of([(place, row[side]) for place, row in made], gallery) for side in "ab")
    return list(zip(first, second, decisions, strict=True))


def _decision(value: Value, place: str) -> bool:
    text = str(value).strip().lower()
    if text.removesuffix(".0") not in _DECISIONS:
        raise InputError(f"{place}: same is {value!r}; write 1 or 0")
    return _DECISIONS[text.removesuffix(".0")]


def _ids_of(names: Sequence[_Name], gallery: SearchableGallery) -> list[int]:
    """Return the ids of items by id or key."""
    try:
        return gallery.ids_of([_as_name(value) for _, value in names])
    except InputError as error:
        unknown = [f"{place}: {value!r}" for place, value in names if not _is_known(value, gallery)]
        if not unknown:  # it came meanwhile
            raise
        raise _unknown(unknown, gallery) from error


def _ids_of_paths(names: Sequence[_Name], gallery: SearchableGallery) -> list[int]:
    """Return the ids of items by path or URL of their file; a relative path is below the indexed folder."""
    ids, unknown = [], []
    for place, value in names:
        path = str(value)
        if found := gallery.item_at(Path(Location.parse(path).path).absolute()):
            ids.append(found)
        elif _is_known(path, gallery):
            ids += gallery.ids_of([path])
        else:
            unknown.append(f"{place}: {path!r}")
    if unknown:
        raise _unknown(unknown, gallery)
    return ids


def _is_known(value: Value, gallery: SearchableGallery) -> bool:
    try:
        gallery.ids_of([_as_name(value)])
    except InputError:
        return False
    return True


def _unknown(unknown: Sequence[str], gallery: SearchableGallery) -> InputError:
    more = f"; and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
    what = f"the gallery does not have the items of {pluralize(len(unknown), 'row')}"
    return InputError(f"{gallery.folder}: {what}; leave them out: {'; '.join(unknown[:_LISTED])}{more}")


def _as_name(value: Value) -> int | str:
    return value if isinstance(value, int) else str(value)
