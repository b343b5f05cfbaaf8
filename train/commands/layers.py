"""Commands `improve`, `adapt` and `teach`: fit a linear layer behind the model to your images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from train.layers.flow import GalleryTarget, ModelTarget, Outcome, run, undo
from train.layers.whitening import fit_whitening

if TYPE_CHECKING:
    from train.layers.measuring import Purpose

_FILE = click.Path(path_type=Path)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Measure the gain, and change nothing.")
_for_option = click.option(
    "--for",
    "purpose",
    type=click.Choice(["known", "unseen", "both"]),
    default="both",
    show_default=True,
    help="What has to gain: new images of the labelled classes, images of classes without labels, or each of "
    "the two.",
)
_drop_old_option = click.option("--drop-old", is_flag=True, help="Delete an earlier GALLERY.old.")


def _finish(ctx: click.Context, outcome: Outcome, as_json: bool) -> None:
    print_result(outcome.facts, as_json, outcome.lines)
    if not outcome.is_accepted:
        ctx.exit(1)


@click.command()
@click.argument("target", metavar="GALLERY|MODEL", type=_FILE)
@click.option(
    "--images",
    type=_FILE,
    metavar="DIR",
    help="Images to adapt a model file to; their folders are their labels for --by labels.",
)
@click.option("--out", type=_FILE, help="Model file to write, for a model.")
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
@_dry_run_option
@click.option("--undo", "is_undo", is_flag=True, help="Restore the state of a gallery before its last layer.")
@_drop_old_option
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
        _finish(ctx, undo(Gallery.open(target)), as_json)
        return
    source: GalleryTarget | ModelTarget
    if target.is_dir():
        if images is not None or out is not None:
            raise InputError("--images and --out: for a model file; a gallery has its own images")
        gallery = Gallery.open(target, runtime=runtime)
        source = GalleryTarget(gallery, by_labels=by != "copies", drop_old=drop_old or dry_run)
    elif not target.exists():
        raise InputError(f"{target}: there is no such gallery or model file")
    elif images is None or (out is None and not dry_run):
        raise InputError(f"{target}: a model file needs --images DIR and --out FILE")
    else:
        source = ModelTarget(Embedder.open(target, runtime), [images], out)
        by = "copies" if by == "auto" else by
    outcome = run(
        source, lambda: fit_whitening(source.images(), by=by, power=power, dim=dim), dry_run=dry_run
    )
    _finish(ctx, outcome, as_json)


def _print_settings(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from train.layers.settings import explain_teaching

        print_result(None, False, explain_teaching())
        ctx.exit()


@click.command()
@click.argument("gallery", type=_FILE)
@click.option(
    "--labels",
    default="gallery",
    show_default=True,
    metavar="TABLE|gallery",
    help="Labels: those of the gallery, or a CSV or Parquet table, described above.",
)
@click.option(
    "--text-column",
    "columns",
    multiple=True,
    metavar="COLUMN",
    help="Learn to search by text from the titles in this metadata column; repeat it to join several.",
)
@_for_option
@_dry_run_option
@click.option("--undo", "is_undo", is_flag=True, help="Restore the state before the last lesson.")
@_drop_old_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting, as in loss.name=triplet.",
)
@click.option(
    "--settings",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_settings,
    help="List the settings, and exit.",
)
@runtime_options
@json_option
@click.pass_context
def teach(
    ctx: click.Context,
    gallery: Path,
    labels: str,
    columns: tuple[str, ...],
    purpose: Purpose,
    dry_run: bool,
    is_undo: bool,
    drop_old: bool,
    overrides: tuple[str, ...],
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Teach a gallery from labels which images belong together: learn a linear layer on its vectors.

    No image is decoded. The layer goes into the model file of the gallery, all vectors are replaced, and the
    index is built again; images that are added later get the same layer. Searches continue meanwhile, and
    running servers notice the change. The gallery before is kept as GALLERY.old; --undo restores it.

    \b
      lookalike teach shop.gallery --dry-run
      lookalike teach shop.gallery
      lookalike teach shop.gallery --labels corrections.csv --for known
      lookalike teach shop.gallery --labels decisions.csv
      lookalike teach shop.gallery --undo

    The gain is measured on labelled images that are held out, apart for new images of known classes and for
    images of unseen classes, and the layer is refused (exit code 1) unless the gain that --for asks for is
    certain: its 95% interval is above 0. Teaching helps known classes, and may hurt unseen ones: a share of
    the learned layer is chosen that serves the purpose best, and a certain loss of the others is a warning.
    Before another lesson take the last one back with --undo, or its labels would be no proof.

    TABLE has the columns label and one of id, key and path; or it has decisions on pairs of images: the
    columns a and b (ids or keys) and same (1 or 0). Of several decisions on a pair, the last one counts.

    With --text-column the gallery learns words instead, in seconds: a small text encoder goes into its model
    file, and the vectors stay. It is refused (exit code 1) unless titles that were held out certainly find an
    image of theirs among the first ten five times as often as by chance.

    \b
      lookalike teach shop.gallery --text-column title
      lookalike search shop.gallery --text "red kettle"
    """
    if is_undo:
        _finish(ctx, undo(Gallery.open(gallery)), as_json)
        return
    if columns:
        from train.layers.titles import fit_titles

        if labels != "gallery" or purpose != "both" or overrides:
            raise InputError("--text-column: learns from titles alone; leave out --labels, --for and --set")
        target = Gallery.open(gallery, runtime=runtime)
        source = GalleryTarget(target, by_labels=False, drop_old=drop_old or dry_run)
        _finish(ctx, run(source, lambda: fit_titles(target, columns), dry_run=dry_run), as_json)
        return
    from train.layers.settings import parse_teaching
    from train.layers.teaching import fit_teaching
    from train.settings import parse_changes

    config = parse_teaching(parse_changes(overrides))
    target = Gallery.open(gallery, runtime=runtime)
    source = GalleryTarget(target, by_labels=True, drop_old=drop_old or dry_run)
    outcome = run(source, lambda: fit_teaching(target, labels, purpose, config), dry_run=dry_run)
    _finish(ctx, outcome, as_json)


@click.command()
@click.argument("gallery", type=_FILE)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=10,
    show_default=True,
    help="Time for the trials. What an earlier run has tried costs none.",
)
@click.option(
    "--labels",
    default="gallery",
    show_default=True,
    metavar="TABLE|gallery",
    help="Labels: those of the gallery, or a CSV or Parquet table, as for `lookalike teach`.",
)
@_for_option
@click.option("--apply", "is_applied", is_flag=True, help="Apply the best layer, if its gain is certain.")
@click.option("--undo", "is_undo", is_flag=True, help="Restore the state before the last layer.")
@_drop_old_option
@runtime_options
@json_option
@click.pass_context
def improve(
    ctx: click.Context,
    gallery: Path,
    minutes: float,
    labels: str,
    purpose: Purpose,
    is_applied: bool,
    is_undo: bool,
    drop_old: bool,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Try all that labels and machine allow, and keep the best, with proof: use it first.

    Layers behind the model are tried on the stored vectors: whitening as by `adapt`, what `teach` learns, and
    heads by other losses and learning rates. No image is decoded, and nothing is changed without --apply.

    \b
      lookalike improve shop.gallery                      # what would help?
      lookalike improve shop.gallery --apply              # take the best; what was tried is not tried again
      lookalike improve shop.gallery --minutes 30         # try more
      lookalike improve shop.gallery --labels labels.csv --for unseen
      lookalike improve shop.gallery --undo

    The table has what each method gains for held-out images of known classes and for held-out classes, with
    intervals over classes that hold for all rows together. The gain of the best is measured apart: classes
    and images are divided into four parts, the whole choice is made by three of them and measured on the
    fourth, in turn. Nothing that it is measured on has chosen it, however much was tried. Images without a
    label are searched, too, and count as wrong. If that gain is not certain, nothing is applied, and the exit
    code is 1. After --apply the gallery is calibrated with the same labels, as by `lookalike calibrate`, if
    the error on held-out classes is at most 5 points. A gallery that has learned from labels is refused:
    take that back with --undo first.

    Finished trials are kept in GALLERY.improve until a layer is applied: an interrupted run continues.
    Without labels, whitening is tried by augmented copies of the images, as by `lookalike adapt`.

    `adapt` and `teach` are two of the methods alone, in seconds: use them in scripts, or for a model file.
    """
    if is_undo:
        _finish(ctx, undo(Gallery.open(gallery)), as_json)
        return
    from train.layers.improvement import calibrate_improved, fit_improvement

    opened = Gallery.open(gallery, runtime=runtime)
    target = GalleryTarget(opened, by_labels=True, drop_old=drop_old or not is_applied)
    outcome = run(
        target,
        lambda: fit_improvement(target, labels, purpose, minutes),
        dry_run=not is_applied,
        to_apply="with --apply",
    )
    if outcome.facts["improved"] and "labels" in outcome.facts:
        calibration, line = calibrate_improved(gallery, labels, runtime)
        outcome = replace(
            outcome,
            facts={**outcome.facts, "calibration": calibration},
            lines=[*outcome.lines, line],
        )
    _finish(ctx, outcome, as_json)
