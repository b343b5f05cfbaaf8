"""Data specifications of `--data`: folder, csv or images and a path, hf:USER/NAME, or a known data set."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import InputError, did_you_mean
from retrieval.files import user_cache
from train.data import custom
from train.data.dataset import DataSet
from train.data.fetcher import fetch
from train.data.hub_dataset import from_hub
from train.data.judged import JUDGED, is_judged
from train.data.known import KNOWN, read_known
from train.data.pairs import from_pairs

_CUSTOM = {"folder": custom.from_folder, "csv": custom.from_csv, "images": custom.from_images}


def load(spec: str, *, unlabelled: bool = False) -> DataSet:
    """Load a data set.

    Args:
        spec: `folder:DIR` (one folder per class, at any depth; top folders train and test are splits),
            `csv:FILE` (columns path, label and optionally split, role and coarse; paths relative to the
            file), `images:DIR` (no labels: every image is a class of its own), `pairs:FILE` (pairs of
            images that are the same or different, or have scores, see `from_pairs`), `hf:USER/NAME` for a
            data set of the Hugging Face Hub (see `from_hub`), `NAME:ROOT` for a known data set, or the name
            alone for a bundled one.
        unlabelled: Accept images without labels, and pairs.

    Raises:
        InputError: Labels are needed and there are none, an unknown name, a folder or file without (labelled)
            images, or an incomplete data set.
    """
    name, _, location = spec.partition(":")
    if name in _CUSTOM:
        if not location:
            where = "FILE" if name == "csv" else "DIR"
            raise InputError(f"data {spec!r}: no path given; write {name}:{where}")
        if name == "images" and not unlabelled:
            hint = "use folder:DIR or csv:FILE"
            raise InputError(f"data {spec!r}: labels are needed here, and these images have none; {hint}")
        splits = _CUSTOM[name](Path(location))
        coarse = any(image.coarse for images in splits if images for image in images)
        coarse_name = "coarse label" if coarse else None
        return DataSet(spec, *splits, coarse_name=coarse_name, labelled=name != "images")
    if name == "pairs":
        if not location:
            raise InputError(f"data {spec!r}: no path given; write pairs:FILE")
        if not unlabelled:
            raise InputError(f"data {spec!r}: pairs have no classes; they are for `lookalike train`")
        compared, pairs = from_pairs(Path(location))
        return DataSet(spec, compared, compared, labelled=False, pairs=pairs)
    if is_judged(spec):
        raise InputError(f"data {spec!r}: judged queries have no classes; they are for `lookalike evaluate`")
    if name == "hf":
        return DataSet(spec, *from_hub(location))
    if name not in KNOWN:
        others = f"known: folder:DIR, csv:FILE, images:DIR, hf:USER/NAME, {', '.join(KNOWN)}"
        hint = did_you_mean(name, [*_CUSTOM, "pairs", "hf", "judged", *KNOWN, *JUDGED], others)
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
    return DataSet(
        spec,
        *splits,
        coarse_name=facts.coarse_name,
        transitions=facts.transitions,
        licence=facts.licence,
    )
