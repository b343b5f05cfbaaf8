"""From what --data says to a data set."""

from __future__ import annotations

import os
from pathlib import Path

from retrieval.errors import InputError, did_you_mean
from train.data import custom, known
from train.data.dataset import DataSet
from train.data.fetcher import fetch
from train.data.known import KNOWN


def load(spec: str) -> DataSet:
    """Find the images of a data set.

    Args:
        spec: `folder:DIR` (one folder a class, at any depth; top folders called train and test are
            splits), `csv:FILE` (columns path, label and optionally split, role and coarse; paths relative
            to the file), `NAME:ROOT` for a data set known by name, or the name alone for a bundled one.

    Raises:
        InputError: an unknown name, a place without labelled images, or a data set that is not whole.
    """
    name, _, place = spec.partition(":")
    if name in ("folder", "csv"):
        if not place:
            where = "DIR" if name == "folder" else "FILE"
            raise InputError(f"data {spec!r}: say where, as in {name}:{where}")
        splits = (custom.from_folder if name == "folder" else custom.from_csv)(Path(place))
        coarse = any(image.coarse for images in splits if images for image in images)
        return DataSet(spec, *splits, coarse_name="coarse label" if coarse else None)
    if name not in KNOWN:
        others = f"known: folder:DIR, csv:FILE, {', '.join(KNOWN)}"
        hint = did_you_mean(name, ["folder", "csv", *KNOWN], others)
        raise InputError(f"data {spec!r}: no data set is called {name!r}; {hint}")
    facts = KNOWN[name]
    if not place and not facts.bundled:
        raise InputError(f"data {spec!r}: say where it is, as in {name}:ROOT")
    root = Path(place) if place else _cache() / name
    if not place:
        fetch(name, root)
    splits = known.read(name, root)
    return DataSet(spec, *splits, coarse_name=facts.coarse_name, transitions=facts.transitions)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lookalike"
