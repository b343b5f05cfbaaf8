"""Data sets of the Hugging Face Hub: `hf:USER/NAME`, read once through the library datasets.

The images are written to the user's cache as they are, without a second encoding, and read as `csv:FILE`.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from retrieval.errors import ImageError, InputError, did_you_mean
from retrieval.files import file_lock, user_cache
from retrieval.images.load import open_bytes
from retrieval.machine.extras import needs
from retrieval.model import hub
from retrieval.progress import Progress
from train.data import custom
from train.data.dataset import Splits

_OPTIONS = ("config", "revision", "image", "label", "train", "test")
_LABELS = ("label", "labels", "class", "category", "target", "fine_label")
_TESTS = ("test", "validation", "valid", "val")
_TABLE = "images.csv"


@dataclass(frozen=True)
class HubData:
    """A data set of the hub, and where its images, labels and splits are.

    Attributes:
        repository: USER/NAME.
        config: Configuration (subset); `None` for the only one.
        revision: Branch, tag or commit; `None` for the newest state.
        image: Column of the images; `None` for the only one that holds images.
        label: Column of the labels; `None` for the only class label, or a column named label, class, ...
        train: Name of the training split.
        test: Name of the test split; `None` for test or validation, whichever there is.
    """

    repository: str
    config: str | None = None
    revision: str | None = None
    image: str | None = None
    label: str | None = None
    train: str = "train"
    test: str | None = None

    @classmethod
    def parse(cls, spec: str) -> HubData:
        """Parse USER/NAME?key=value&...; raise an `InputError` for an unknown key."""
        repository, _, query = spec.partition("?")
        if not hub.is_repository(repository):
            raise InputError(f"data 'hf:{spec}': not a data set of the hub; write hf:USER/NAME")
        options = dict(parse_qsl(query, keep_blank_values=True))
        for key in options:
            if key not in _OPTIONS:
                hint = did_you_mean(key, _OPTIONS)
                raise InputError(f"data 'hf:{spec}': unknown option {key!r}; {hint}")
        return cls(repository, **options)


def from_hub(spec: str) -> Splits:
    """Return the images of a data set of the hub, which is downloaded at the first use.

    Args:
        spec: USER/NAME, or USER/NAME?key=value&... with the attributes of `HubData`. Without `revision`, the
            state of the first use stays.

    Raises:
        InputError: There is no such data set, column or split; or the library datasets is missing.
        LookalikeError: The hub cannot be reached.
    """
    data = HubData.parse(spec)
    name = f"{data.repository.replace('/', '--')}-{sha256(spec.encode()).hexdigest()[:12]}"
    folder = user_cache("hub") / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock"), lambda _: None):  # one process at a time
        if not (folder / _TABLE).is_file():
            draft = folder.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            try:
                _write(data, draft)
                draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return custom.from_csv(folder / _TABLE)


def _write(data: HubData, folder: Path) -> None:
    """Write images and table of a data set."""
    splits = _splits(data)
    columns = next(iter(splits.values())).features
    image, label = _image_column(data, columns), _label_column(data, columns)
    several = len(splits) > 1
    total = sum(part.num_rows for part in splits.values())
    with (folder / _TABLE).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", *(["split"] if several else [])])
        with Progress("writing images", total, "images", show=True) as progress:
            for split, part in splits.items():
                (folder / split).mkdir()
                for number, (content, value) in enumerate(_rows(part, image, label)):
                    name = f"{split}/{number:07d}{_suffix(content)}"
                    (folder / name).write_bytes(content)
                    table.writerow([name, value, *([split] if several else [])])
                    progress.update(1)


def _splits(data: HubData) -> dict[str, Any]:
    """Return the splits as `datasets.Dataset` by our name, train and test, or train alone."""
    try:
        import datasets  # slow to import
    except ModuleNotFoundError as error:
        raise InputError(f"hf: {needs('datasets')}") from error
    with hub.one_line(data.repository):
        try:
            found = datasets.load_dataset(data.repository, data.config, revision=data.revision)
        except (datasets.exceptions.DatasetsError, FileNotFoundError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"data hf:{data.repository}: {reason}") from error
    test = data.test or next((name for name in _TESTS if name in found), None)
    wanted = {"train": data.train, **({"test": test} if test else {})}
    if data.train not in found and len(found) == 1 and data.train == HubData.train:
        wanted = {"train": next(iter(found))}
    for name in wanted.values():
        if name not in found:
            raise InputError(f"data hf:{data.repository}: no split {name!r}; it has {', '.join(found)}")
    return {ours: found[name] for ours, name in wanted.items()}


def _image_column(data: HubData, columns: Mapping[str, Any]) -> str:
    images = [name for name, kind in columns.items() if type(kind).__name__ == "Image"]
    return _chosen(data, "image", data.image, columns, images)


def _label_column(data: HubData, columns: Mapping[str, Any]) -> str:
    labels = [name for name, kind in columns.items() if type(kind).__name__ == "ClassLabel"]
    return _chosen(data, "label", data.label, columns, labels or [n for n in _LABELS if n in columns][:1])


def _chosen(
    data: HubData, what: str, wish: str | None, columns: Mapping[str, Any], candidates: Sequence[str]
) -> str:
    if wish in columns:
        return str(wish)
    if wish is None and len(candidates) == 1:
        return candidates[0]
    problem = f"no column {wish!r}" if wish else f"which column is the {what} is not clear"
    hint = f"it has {', '.join(columns)}; choose one with hf:{data.repository}?{what}=COLUMN"
    raise InputError(f"data hf:{data.repository}: {problem}; {hint}")


def _rows(part: Any, image: str, label: str) -> Iterator[tuple[bytes, str]]:
    """Yield the bytes of each image file with its label."""
    from datasets import Image

    kind = part.features[label]
    for row in part.select_columns([image, label]).cast_column(image, Image(decode=False)):
        content = row[image]["bytes"] or Path(row[image]["path"]).read_bytes()
        value = row[label]
        yield content, kind.int2str(value) if hasattr(kind, "int2str") else str(value)


def _suffix(content: bytes) -> str:
    try:
        return open_bytes(content, "image").suffix
    except ImageError:  # reported with its file when it is used
        return ".jpg"
