"""Data specifications of `--data`: folder:DIR, csv:FILE, NAME:ROOT, or a bundled name."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import InputError, did_you_mean
from retrieval.files import user_cache
from train.data import custom
from train.data.dataset import DataSet
from train.data.fetcher import fetch
from train.data.known import KNOWN, read_known


def load(spec: str) -> DataSet:
    """Load a data set.

    Args:
        spec: `folder:DIR` (one folder per class, at any depth; top folders train and test are splits),
            `csv:FILE` (columns path, label and optionally split, role and coarse; paths relative to the
            file), `NAME:ROOT` for a known data set, or the name alone for a bundled one.

    Raises:
        InputError: An unknown name, a folder or file without labelled images, or an incomplete data set.
    """
    name, _, location = spec.partition(":")
    if name in ("folder", "csv"):
        if not location:
            where = "DIR" if name == "folder" else "FILE"
            raise InputError(f"data {spec!r}: no path given; write {name}:{where}")
        splits = (custom.from_folder if name == "folder" else custom.from_csv)(Path(location))
        coarse = any(image.coarse for images in splits if images for image in images)
        return DataSet(spec, *splits, coarse_name="coarse label" if coarse else None)
    if name not in KNOWN:
        others = f"known: folder:DIR, csv:FILE, {', '.join(KNOWN)}"
        hint = did_you_mean(name, ["folder", "csv", *KNOWN], others)
        if Path(spec).exists():
            hint = f"did you mean '{'folder' if Path(spec).is_dir() else 'csv'}:{spec}'?"
        raise InputError(f"data {spec!r}: unknown data set; {hint}")
    facts = KNOWN[name]
    if not location and not facts.bundled:
        raise InputError(f"data {spec!r}: no folder given; write {name}:ROOT")
    root = Path(location) if location else user_cache(name)
    if not location:
        fetch(name, root)
    splits = read_known(name, root)
    return DataSet(spec, *splits, coarse_name=facts.coarse_name, transitions=facts.transitions)
