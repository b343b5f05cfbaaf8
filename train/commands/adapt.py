"""Command `lookalike adapt`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.commands.stores import open_files
from retrieval.errors import InputError
from retrieval.files import now
from retrieval.galleries.files import Gallery
from retrieval.images.decode import embed_files
from retrieval.ingest.sources import scan
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.storage.planning import ImageFile
from retrieval.text import pluralize
from retrieval.upkeep.reprojection import check_projectable
from train.layers.applying import apply_layer, print_undo
from train.layers.folding import append_layer

if TYPE_CHECKING:
    from train.layers.whitening import WhiteningGain

_IN_DATABASE = "adapt the model file with --images, and build another collection with it"
_COPIES = 500


@click.command()
@click.argument("target", metavar="GALLERY|MODEL", type=click.Path(path_type=Path))
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Images to adapt a model file to; their folders are their labels for --by labels.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Model file to write, for a model.")
@click.option(
    "--by",
    type=click.Choice(["auto", "copies", "labels"]),
    default="auto",
    show_default=True,
    help="What to choose and measure by. auto: labels, if the gallery has enough of them, else copies.",
)
@click.option("--dim", type=click.IntRange(min=1), help="Dimension of the new vectors.  [default: chosen]")
@click.option(
    "--power",
    type=click.FloatRange(0, 1),
    help="Power of the standard deviations: 0 rotates only, 1 whitens.  [default: chosen]",
)
@click.option("--dry-run", is_flag=True, help="Measure the gain, and change nothing.")
@click.option("--undo", "is_undo", is_flag=True, help="Restore the state of a gallery before its last layer.")
@click.option("--drop-old", is_flag=True, help="Delete an earlier GALLERY.old.")
@runtime_options
@json_option
@click.pass_context
def adapt(
    ctx: click.Context,
    target: Path,
    images: Path | None,
    out: Path | None,
    by: str,
    dim: int | None,
    power: float | None,
    dry_run: bool,
    is_undo: bool,
    drop_old: bool,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Adapt an embedding to your images without labels, by half-whitening: a linear layer behind the model.

    The vectors are rotated to their principal components, divided by a power of the standard deviation of
    each, and shortened. Power and dimension are chosen such that augmented copies of the images find their
    originals, or, if there are labels, images of the same label find each other.

    \b
      lookalike adapt shop.gallery --dry-run
      lookalike adapt shop.gallery
      lookalike adapt shop.gallery --undo
      lookalike adapt model.onnx --images photos --out adapted.onnx

    A gallery gets the layer in its model file, and all its vectors are replaced; no image is decoded except
    for copies. The gallery before is kept as GALLERY.old. Running servers notice the change.

    The gain is measured on images that it was not chosen by, and the layer is refused (exit code 1) unless
    the gain is certain: its 95% interval is above 0. A gain of copies does not prove one of labels; as copies
    overrate high powers, they choose among 0 and 0.25 only.
    """
    if is_undo:
        print_undo(target, _IN_DATABASE, as_json)
        return
    from train.layers.whitening import DIMS, FEWEST_QUERIES, POWERS, candidates

    began = time.monotonic()
    source = _Source.open(target, images, out, runtime, dry_run, drop_old)
    if len(source.vectors) < FEWEST_QUERIES:
        few = pluralize(len(source.vectors), "image")
        raise InputError(
            f"{target}: {few}, of which no gain can be measured; add images, {FEWEST_QUERIES} at least"
        )
    found = candidates(
        source.vectors,
        POWERS if power is None else (power,),
        DIMS if dim is None else (dim,),
    )
    if dim is not None:
        found = [one for one in found if one[0].dim == min(dim, source.vectors.shape[1])]
        if not found:
            few = f"{len(source.vectors)} vectors of {source.vectors.shape[1]} dimensions"
            raise InputError(f"--dim {dim}: {few} are too few to leave out dimensions; leave it out")
    gain = source.measure(by, found)
    facts: dict[str, Any] = {
        "target": str(target),
        "images": len(source.vectors),
        **asdict(gain),
        "accepted": gain.is_proven,
        "adapted": False,
    }
    lines = [_gain_line(gain)]
    if not gain.is_proven:
        lines.append(f"{target}: unchanged, because no gain is certain")
    elif dry_run:
        lines.append(f"{target}: unchanged; without --dry-run it would be adapted")
    else:
        layer = next(layer for one, layer in found if one == gain.chosen)
        measured = {name: facts[name] for name in ("metric", "queries", "before", "after", "low", "high")}
        note = {
            "command": "adapt",
            "date": now(),
            "images": len(source.vectors),
            "power": gain.chosen.power,
            **measured,
        }
        if source.gallery is not None:
            facts |= apply_layer(
                source.gallery, layer, note, {"images": len(source.vectors)}, drop_old=drop_old
            )
            lines.append(
                f"{target}: adapted, {facts['dim']} dimensions; before: {facts['old']}; "
                f"`lookalike adapt {target} --undo` restores it"
            )
        else:
            assert out is not None
            append_layer(target, layer, out, note)
            facts |= {"out": str(out), "fingerprint": Embedder(out).fingerprint}
            lines.append(f"{out}: written, {gain.chosen.dim} dimensions")
        facts["adapted"] = True
    facts["seconds"] = round(time.monotonic() - began, 1)
    print_result(facts, as_json, lines)
    if not gain.is_proven:
        ctx.exit(1)


class _Source:
    """Vectors to adapt, with their images and labels."""

    def __init__(
        self,
        embedder: Embedder,
        gallery: Gallery | None,
        vectors: np.ndarray,
        labels: Sequence[str | None],
        paths: Sequence[Path],
    ) -> None:
        self.embedder, self.gallery, self.vectors = embedder, gallery, vectors
        self._labels, self._paths = labels, paths

    @classmethod
    def open(
        cls,
        target: Path,
        images: Path | None,
        out: Path | None,
        runtime: Runtime,
        dry_run: bool,
        drop_old: bool,
    ) -> _Source:
        """Open a gallery, or embed images with a model file."""
        from train.layers.whitening import MOST_FITTED

        if target.is_dir():
            if images is not None or out is not None:
                raise InputError("--images and --out: for a model file; a gallery has its own images")
            gallery = open_files(target, _IN_DATABASE, runtime)
            check_projectable(gallery, drop_old=drop_old or dry_run)
            stored = gallery.embeddings(limit=MOST_FITTED)
            paths = gallery.paths.lazy(stored.ids.tolist())
            return cls(gallery.embedder, gallery, stored.vectors, stored.labels, paths)
        if not target.exists():
            raise InputError(f"{target}: there is no such gallery or model file")
        if images is None or (out is None and not dry_run):
            raise InputError(f"{target}: a model file needs --images DIR and --out FILE")
        embedder = Embedder.open(target, runtime)
        files = [entry for entry in scan([images]) if isinstance(entry, ImageFile)]
        if len(files) > MOST_FITTED:
            drawn = np.random.default_rng(0).permutation(len(files))[:MOST_FITTED]
            files = [files[number] for number in np.sort(drawn).tolist()]
        with Progress("embedding", len(files), "images") as progress:
            embedded = embed_files(
                [file.full for file in files],
                embedder.preprocess,
                embedder.embed_pixels,
                progress,
                batch_size=embedder.batch_size,
            )
        if embedded.bad:
            print_status(f"{pluralize(len(embedded.bad), 'unreadable image')} left out")
        used = [files[position] for position in embedded.positions]
        return cls(embedder, None, embedded.vectors, [file.label for file in used], [f.full for f in used])

    def measure(self, by: str, found: Any) -> WhiteningGain:
        """Choose a candidate, and measure what it gains."""
        from train.layers.copies import embed_copies
        from train.layers.whitening import COPY_POWERS, NO_CLASS, gain_by_copies, gain_by_labels

        labelled = np.array([label is not None for label in self._labels])
        if by == "labels" or (by == "auto" and self.gallery is not None and labelled.any()):
            try:
                classes = np.unique([label or "" for label in self._labels], return_inverse=True)[1]
                classes[~labelled] = NO_CLASS
                return gain_by_labels(self.vectors, classes, found)
            except InputError as error:
                if by == "labels":
                    raise
                print_status(f"{error}; augmented copies are used in their place")
        moderate = [one for one in found if one[0].power in COPY_POWERS]
        copies, originals = embed_copies(self.embedder, self._paths, _COPIES, show_progress=True)
        return gain_by_copies(self.vectors, copies, originals, moderate or found)


def _gain_line(gain: WhiteningGain) -> str:
    what = "copies find their originals" if gain.metric == "MRR" else "images find those of their label"
    change = 100 * (gain.after - gain.before)
    return (
        f"{what}: {gain.metric} {100 * gain.before:.1f} -> {100 * gain.after:.1f}, {change:+.1f} "
        f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f}; {gain.queries} queries), by power "
        f"{gain.chosen.power:g} and {gain.chosen.dim} dimensions"
    )
