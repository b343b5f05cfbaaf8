"""The flow of a layer: fitted to a target, measured, accepted or refused, applied at once, undone.

    target -> `Fit`: best candidate, its gain with an interval, accepted or not -> applied -> `Outcome`

A target is a gallery, or a model file with images. A layer is fitted with labels (`train.layers.teaching`) or
without (`train.layers.whitening`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.evaluation.gallery import layers_of_labels
from retrieval.files import now
from retrieval.gallery import Gallery
from retrieval.images.decode import embed_files
from retrieval.ingest.sources import scan
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.progress import Progress
from retrieval.storage.planning import ImageFile
from retrieval.text import pluralize
from train.layers.folding import append_layer

MOST_FITTED = 50_000  # vectors that a layer is fitted to without labels


class TextSide(Protocol):
    """Text encoder that was learned: a model file gets it, and the vectors of images stay."""

    def write(self, own: Embedder, out: Path, note: Mapping[str, Any]) -> None:
        """Write a copy of a model file with this text encoder."""


@dataclass(frozen=True)
class Fit:
    """Layer or text encoder that was chosen, and what it gains.

    Attributes:
        command: Name of the command, for the provenance, the history and the way back.
        done: What it does to a gallery: "adapted", "taught".
        facts: Choice and gain, as JSON values.
        lines: The same for people.
        refusal: Why the layer is refused; `None` if it is accepted.
        note: Origin of the layer, for the provenance of the model file.
        counts: Numbers for the history of the gallery.
        learn: Returns what is applied. It is called only if it is.
        forget: Called when the layer was applied: deletes what was kept for another run.
    """

    command: str
    done: str
    facts: Mapping[str, Any]
    lines: Sequence[str]
    refusal: str | None
    note: Mapping[str, Any]
    counts: Mapping[str, int]
    learn: Callable[[], Layer | TextSide]
    forget: Callable[[], object] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a target, as JSON values and as lines for people.

    Attributes:
        facts: JSON values.
        lines: Text.
        is_accepted: Whether there was a certain gain.
    """

    facts: Mapping[str, Any]
    lines: Sequence[str]
    is_accepted: bool = True


@dataclass(frozen=True, eq=False)
class Images:
    """Images that a layer is fitted to, a sample if there are more than 50,000.

    Attributes:
        target: Gallery or model file.
        embedder: Model of the vectors.
        vectors: Unit vectors, float32 [n, D].
        labels: Label of each; `None` without one.
        paths: Path of each.
        contents: SHA-256 of the file of each; empty for a part of a picture.
        products: Product of each, int64 [n]; `None` if images are not of products.
    """

    target: Path
    embedder: Embedder
    vectors: np.ndarray
    labels: Sequence[str | None]
    paths: Sequence[Path]
    contents: Sequence[str]
    products: np.ndarray | None = None

    @property
    def learned(self) -> np.ndarray:
        """Which images the network may have learned the labels of, bool [n]: see `TrainingImages.learned`."""
        known = self.embedder.training_images
        if known is None:
            return np.zeros(len(self.labels), bool)
        return known.learned(self.contents, self.labels)


class GalleryTarget:
    """A gallery that gets a layer, into its model file and through its vectors at once, or a text encoder.

    Attributes:
        path: Gallery folder.

    Args:
        gallery: Gallery.
        by_labels: Labels choose and measure what it gets.
        drop_old: An earlier NAME.old may be deleted.

    Raises:
        InputError: As for `Gallery.check_projectable`; or an earlier layer has learned from labels, by which
            the gain of another one cannot be measured.
    """

    def __init__(self, gallery: Gallery, *, by_labels: bool, drop_old: bool = False) -> None:
        gallery.check_projectable(drop_old=drop_old)
        if by_labels and (learned := layers_of_labels(gallery.embedder)):
            command, date = (str(learned[-1].get(key)) for key in ("command", "date"))
            raise InputError(
                f"{gallery.folder}: `{command}` has learned from labels ({date[:10]}), so labels cannot show "
                f"what another layer gains for new images; `lookalike {command} {gallery.folder} --undo`, or "
                "`lookalike index rebuild` it with the model without that layer; then learn from all labels"
            )
        self.path, self.gallery, self._drop_old = gallery.folder, gallery, drop_old

    def images(self) -> Images:
        """Return its images."""
        stored = self.gallery.embeddings(limit=MOST_FITTED)
        paths = self.gallery.paths.lazy(stored.ids.tolist())
        products = self.gallery.products_of(stored.ids)
        contents = [""] * len(paths) if self.gallery.manifest.objects else stored.contents
        model = self.gallery.embedder
        return Images(self.path, model, stored.vectors, stored.labels, paths, contents, products)

    def apply(
        self, fit: Fit, learned: Layer | TextSide, note: Mapping[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Apply what was learned, wholly or not at all; return facts on the result, and a line of text.

        Args:
            fit: Where it comes from.
            learned: Layer or text encoder.
            note: Its origin, for the provenance.

        Raises:
            InputError, LookalikeError: As for `append_layer` and `reproject`; nothing is changed.
        """
        own = self.gallery.embedder
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / own.path.name
            layer: Layer | None = None
            if isinstance(learned, Layer):
                layer = learned
                append_layer(own.path, layer, file, note)
            else:
                learned.write(own, file, note)
            done = self.gallery.reproject(
                layer,
                Embedder.open(file, own.runtime),
                command=fit.command,
                counts=fit.counts,
                drop_old=self._drop_old,
                show_progress=True,
            )
        dim = done.gallery.manifest.dim
        undo = f"`lookalike {fit.command} {self.path} --undo` restores it"
        text = f"{self.path}: {fit.done}, {dim} dimensions; before: {done.old}; {undo}"
        return {"old": str(done.old), "fingerprint": done.gallery.fingerprint, "dim": dim}, text


class ModelTarget:
    """A model file with images, of which a copy gets a layer.

    Attributes:
        path: Model file.

    Args:
        model: Model file.
        sources: Images and folders of images.
        out: Model file to write; `None` if no layer is going to be applied.
    """

    def __init__(self, model: Embedder, sources: Sequence[Path], out: Path | None) -> None:
        self.path, self._model, self._sources, self._out = model.path, model, sources, out

    def images(self) -> Images:
        """Embed its images; unreadable ones are left out."""
        files = [entry for entry in scan(self._sources) if isinstance(entry, ImageFile)]
        if len(files) > MOST_FITTED:
            drawn = np.random.default_rng(0).permutation(len(files))[:MOST_FITTED]
            files = [files[number] for number in np.sort(drawn).tolist()]
        model = self._model
        with Progress("embedding", len(files), "images") as progress:
            embedded = embed_files(
                [file.full for file in files],
                model.preprocess,
                model.embed_pixels,
                progress,
                batch_size=model.batch_size,
            )
        if embedded.bad:
            print_status(f"{pluralize(len(embedded.bad), 'unreadable image')} left out")
        used = [files[position] for position in embedded.positions]
        labels, paths = [file.label for file in used], [file.full for file in used]
        return Images(self.path, model, embedded.vectors, labels, paths, embedded.contents)

    def apply(
        self, fit: Fit, learned: Layer | TextSide, note: Mapping[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Write the file with a layer; see `GalleryTarget.apply`."""
        assert isinstance(learned, Layer), "texts are learned from the titles of a gallery"
        if self._out is None:
            raise InputError(f"{self.path}: a model file needs --images DIR and --out FILE")
        append_layer(self.path, learned, self._out, note)
        facts = {"out": str(self._out), "fingerprint": Embedder(self._out).fingerprint}
        return facts, f"{self._out}: written, {len(learned.weight)} dimensions"


def run(
    target: GalleryTarget | ModelTarget,
    fit: Callable[[], Fit],
    *,
    dry_run: bool = False,
    to_apply: str = "without --dry-run",
) -> Outcome:
    """Fit a layer, and apply it if its gain is certain.

    Args:
        target: What gets the layer.
        fit: Fits and measures it.
        dry_run: Measure the gain, and change nothing.
        to_apply: How it is applied after all, for a line of text.

    Raises:
        InputError, LookalikeError: As for `fit` and `apply` of the target.
    """
    began = time.monotonic()
    found = fit()
    facts, lines = {**found.facts, found.done: False}, [*found.lines]
    if found.refusal is not None:
        lines.append(f"{target.path}: unchanged, because {found.refusal}")
    elif dry_run:
        lines.append(f"{target.path}: unchanged; {to_apply} it would be {found.done}")
    else:
        note = {"command": found.command, "date": now(), **found.note}
        applied, text = target.apply(found, found.learn(), note)
        facts |= {found.done: True, **applied}
        lines.append(text)
        if found.forget is not None:
            found.forget()
    facts["seconds"] = round(time.monotonic() - began, 1)
    return Outcome(facts, lines, found.refusal is None)


def undo(gallery: Gallery) -> Outcome:
    """Restore the model and the vectors of a gallery from before its last layer.

    Raises:
        InputError, LookalikeError: As for `Gallery.undo_reprojection`.
    """
    restored = gallery.undo_reprojection(show_progress=True)
    facts = {"gallery": str(gallery.folder), "images": len(restored), "fingerprint": restored.fingerprint}
    images = pluralize(len(restored), "image")
    return Outcome(facts, [f"{gallery.folder}: restored, {images} with model {restored.fingerprint[:12]}"])
