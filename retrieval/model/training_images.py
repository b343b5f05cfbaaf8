"""Images that a model was trained on, known by their contents; kept in the model file."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from retrieval.errors import ImageError
from retrieval.images.load import content_sha256, read_bytes

_MOST = 20_000  # images and classes that are kept; of more, random ones
_ENOUGH = 300  # none found among so many: at 95%, fewer than 1% are there (rule of three)
_SHA256 = re.compile("[0-9a-f]{64}")
_NUMBERS = ("contents", "labels", "held_out")
_LEARNED, _SEEN = "was trained on {}", "saw {} in training, but did not learn their labels"
UNKNOWN = "may have been trained on these images"


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """The images that a model was trained on, and their classes.

    Images are equal if their files are, so a smaller or newly compressed copy is another image.

    Attributes:
        images: Number of different images; of a sample, of files.
        classes: Number of classes.
        contents: First eight bytes of the SHA-256 of each file, or of a random sample, uint64 [n].
        labels: The same of the names of the classes, uint64 [c].
        held_out: Those of `contents` whose labels were not learned, uint64 [h]: they chose the epoch, or the
            model is the start of its run, fitted to images alone.
    """

    images: int
    classes: int
    contents: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(
        cls,
        files: Sequence[str | PathLike[str]],
        labels: Collection[str],
        held_out: Collection[str | PathLike[str]] = (),
    ) -> TrainingImages:
        """Read the files, of more than 20,000 a random sample (fixed seed). What cannot be read is left out.

        Args:
            files: Image files.
            labels: Names of their classes.
            held_out: Those of the files whose labels were not learned.
        """
        drawn = np.random.default_rng(0).permutation(len(files))[:_MOST]
        chosen = [files[row] for row in drawn]
        with ThreadPoolExecutor() as pool:
            found = [(file, one) for file, one in zip(chosen, pool.map(_content, chosen), strict=True) if one]
        contents = _numbers(one for _, one in found)
        learned = _numbers(one for file, one in found if file not in held_out)
        images = len(contents) if len(drawn) == len(files) else len(files) - (len(drawn) - len(found))
        names = sorted(set(labels))
        kept = np.random.default_rng(0).permutation(len(names))[:_MOST]
        of_names = _numbers(_name(names[row]) for row in kept)
        return cls(images, len(names), contents, of_names, np.setdiff1d(contents, learned))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any] | None) -> TrainingImages | None:
        """Return what `to_dict` stored; `None` for nothing, or for what it cannot have stored."""
        if found is None:
            return None
        try:
            contents, labels, held_out = (
                np.frombuffer(b64decode(found[key], validate=True), "<u8") for key in _NUMBERS
            )
            images, classes = int(found["images"]), int(found["classes"])
        except (KeyError, OverflowError, TypeError, ValueError):
            return None
        if not 0 < len(contents) <= images:
            return None
        return cls(images, classes, contents, labels, held_out)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        numbers = {key: getattr(self, key).astype("<u8") for key in _NUMBERS}
        texts = {key: b64encode(part.tobytes()).decode() for key, part in numbers.items()}
        return {"images": self.images, "classes": self.classes, **texts}

    @property
    def _is_sampled(self) -> bool:
        return len(self.contents) < self.images

    def learned(self, contents: Sequence[str], labels: Sequence[str | None]) -> np.ndarray:
        """Return which images the model may have learned the labels of, bool [n].

        An image counts by its file; by its class, where the file is unknown, or only a sample of the training
        images is known.

        Args:
            contents: As for `remark`.
            labels: Their labels.
        """
        of_classes, held_out = set(self.labels.tolist()), set(self.held_out.tolist())
        shared = {label for label in {*labels} if label is not None and _number(_name(label)) in of_classes}
        known, is_sampled = set(self.contents.tolist()) - held_out, self._is_sampled

        def may_have_learned(content: str, label: str | None) -> bool:
            if not _SHA256.fullmatch(content):
                return label in shared
            number = _number(content)
            return number in known or (is_sampled and number not in held_out and label in shared)

        return np.array([may_have_learned(*image) for image in zip(contents, labels, strict=True)], bool)

    def remark(self, contents: Sequence[str], labels: Iterable[str | None]) -> str:
        """Return what the model has to do with other images, as in "was trained on 3 of these 40 images".

        Args:
            contents: SHA-256 of each of their files, in hexadecimal digits; imported vectors have none.
            labels: Their labels.

        Returns:
            The remark; empty if it was trained on none of them, and on no class of such a name.
        """
        known = [content for content in contents if _SHA256.fullmatch(content)]
        given = _numbers(known)
        about = "about " if self._is_sampled else ""
        kinds = {_LEARNED: np.setdiff1d(self.contents, self.held_out), _SEEN: self.held_out}
        for words, numbers in kinds.items():
            if matches := int(np.isin(given, numbers).sum()):
                of_all = min(len(given), round(matches * self.images / len(self.contents)))
                return words.format(f"{about}{of_all:,} of these {len(given):,} images")
        if len(known) < len(contents) or (
            self._is_sampled and len(given) * len(self.contents) < _ENOUGH * self.images
        ):
            return UNKNOWN
        names = _numbers(_name(label) for label in {*labels} if label is not None)
        if shared := int(np.isin(names, self.labels).sum()):
            return (
                f"was trained on other images of {shared:,} of these {len(names):,} classes, by their names"
            )
        return ""


def _content(file: str | PathLike[str]) -> str | None:
    try:
        return content_sha256(read_bytes(file))
    except ImageError:
        return None


def _name(label: str) -> str:
    return hashlib.sha256(label.encode(errors="surrogateescape")).hexdigest()


def _number(digest: str) -> int:
    return int(digest[:16], 16)


def _numbers(digests: Iterable[str]) -> np.ndarray:
    """Return the first eight bytes of each distinct SHA-256, uint64, ascending."""
    return np.unique(np.frombuffer(bytes.fromhex("".join(digest[:16] for digest in digests)), ">u8"))
