"""Command `lookalike teach`."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from retrieval.model.runtime import Runtime
from retrieval.text import align_columns, pluralize
from retrieval.upkeep.reprojection import check_projectable
from train.layers.applying import apply_layer, print_undo

if TYPE_CHECKING:
    from train.layers.lesson import Lesson
    from train.layers.whitening import WhiteningGain

_IN_DATABASE = "teach a gallery in files of the same images, and build another collection with its model file"
_TITLES = {"known": "new images of known classes", "unseen": "images of unseen classes"}
_METRICS = {"map_at_r": "MAP@R", "recall_at_1": "Recall@1"}


def _print_settings(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from train.layers.settings import explain_teaching

        print_result(None, False, explain_teaching())
        ctx.exit()


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--labels",
    default="gallery",
    show_default=True,
    metavar="TABLE|gallery",
    help="Labels: those of the gallery, or a CSV or Parquet table, described above.",
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["known", "unseen", "both"]),
    default="both",
    show_default=True,
    help="What has to gain: new images of the labelled classes, images of classes without labels, or each of "
    "the two.",
)
@click.option("--dry-run", is_flag=True, help="Measure the gain, and change nothing.")
@click.option("--undo", "is_undo", is_flag=True, help="Restore the state before the last lesson.")
@click.option("--drop-old", is_flag=True, help="Delete an earlier GALLERY.old.")
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
    purpose: str,
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

    TABLE has the columns label and one of id, key and path; or it has decisions on pairs of images: the
    columns a and b (ids or keys) and same (1 or 0). Of several decisions on a pair, the last one counts.
    """
    if is_undo:
        print_undo(gallery, _IN_DATABASE, as_json)
        return
    from train.layers.learning import fit_starts, learn_layer
    from train.layers.lesson import read_lesson
    from train.layers.measuring import PURPOSES, study
    from train.layers.settings import parse_teaching
    from train.settings import parse_changes

    config = parse_teaching(parse_changes(overrides))
    target = open_files(gallery, _IN_DATABASE, runtime)
    check_projectable(target, drop_old=drop_old or dry_run)
    lesson = read_lesson(target, labels)
    classes = len(set(lesson.classes.tolist()))
    images = len(lesson.classes)
    print_status(f"{gallery}: {pluralize(images, 'labelled image')} of {classes} classes")
    if lesson.contradictory:
        print_status(f"{pluralize(lesson.contradictory, 'image')} left out: decisions on them contradict")
    began = time.monotonic()
    starts = fit_starts(np.concatenate([lesson.vectors, lesson.others]), config.powers, config.dim)
    studied = study(lesson.vectors, lesson.classes, lesson.others, starts, config, show_progress=True)
    found = {name: studied.conclude(name) for name in PURPOSES}
    best = next(found[name] for name in PURPOSES if name == purpose)
    alone = _without_labels(lesson)
    if alone is not None and not _is_better(alone, best.gains["unseen"]):
        alone = None
    warnings = _losses(best.gains)
    facts: dict[str, Any] = {
        "gallery": str(gallery),
        "labels": lesson.labels,
        "images": images,
        "classes": classes,
        "contradictory": lesson.contradictory,
        "for": purpose,
        "folds": studied.folds,
        "power": best.chosen.power,
        "blend": best.chosen.blend,
        "gains": {kind: gain and asdict(gain) for kind, gain in best.gains.items()},
        "accepted": best.is_accepted,
        "others": {
            name: {**asdict(other.chosen), "accepted": other.is_accepted}
            for name, other in found.items()
            if name != purpose
        },
        "warnings": warnings,
        "adapt": alone and asdict(alone),
        "taught": False,
    }
    lines = [*_gain_lines(best.gains), *warnings]
    if alone is not None:
        spread = _spread(alone.after - alone.before, alone.low, alone.high)
        lines.append(
            f"`lookalike adapt {gallery}`, which needs no labels, gains more for {_TITLES['unseen']}: "
            f"{spread} MAP@R"
        )
    if best.is_accepted and not dry_run:
        layer = learn_layer(
            lesson.vectors,
            lesson.classes,
            next(start for start in starts if start.power == best.chosen.power),
            best.chosen.blend,
            config,
            show_progress=True,
        )
        note = {
            "command": "teach",
            "date": now(),
            "labels": lesson.labels,
            "images": images,
            "classes": classes,
            "for": purpose,
            "settings": config.model_dump(mode="json"),
            "power": best.chosen.power,
            "blend": best.chosen.blend,
            "gains": facts["gains"],
        }
        facts |= apply_layer(target, layer, note, {"labels": lesson.labels}, drop_old=drop_old)
        facts["taught"] = True
        lines.append(
            f"{gallery}: taught, {facts['dim']} dimensions; before: {facts['old']}; "
            f"`lookalike teach {gallery} --undo` restores it"
        )
    facts["seconds"] = round(time.monotonic() - began, 1)
    if not best.is_accepted:
        lines.append(
            f"{gallery}: unchanged, because {_reason(best.gains, purpose)}{_advice(facts['others'])}"
        )
    elif dry_run:
        lines.append(f"{gallery}: unchanged; without --dry-run it would be taught")
    print_result(facts, as_json, lines)
    if not best.is_accepted:
        ctx.exit(1)


# ---- text output


def _gain_lines(gains: Mapping[Any, Any]) -> list[str]:
    rows = [("", "", "before", "after", "difference (95% interval)")]
    for kind, gain in gains.items():
        if gain is None:
            rows.append((_TITLES[kind], "not measured: too few labelled images or classes", "", "", ""))
            continue
        title = f"{_TITLES[kind]} ({gain.queries} queries)"
        for name, text in _METRICS.items():
            change = gain.metrics[name]
            before, after = (f"{100 * value:.1f}" for value in (change.before, change.after))
            spread = _spread(change.difference, change.low, change.high)
            rows.append((title, text, before, after, spread))
            title = ""
    return align_columns(rows)


def _spread(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _losses(gains: Mapping[Any, Any]) -> list[str]:
    """Return a warning for each metric that certainly falls."""
    return [
        f"warning: {_TITLES[kind]} lose: {_spread(change.difference, change.low, change.high)} {text}"
        for kind, gain in gains.items()
        if gain is not None
        for name, text in _METRICS.items()
        if (change := gain.metrics[name]).high < 0
    ]


def _without_labels(lesson: Lesson) -> WhiteningGain | None:
    """Return what `lookalike adapt` gains, by these labels; `None` if they are too few to measure it."""
    from train.layers.whitening import (
        DIMS,
        MOST_FITTED,
        NO_CLASS,
        POWERS,
        candidates,
        gain_by_labels,
    )

    vectors = np.concatenate([lesson.vectors, lesson.others])
    classes = np.concatenate([lesson.classes, np.full(len(lesson.others), NO_CLASS)])
    some = np.random.default_rng(0).permutation(len(vectors))[:MOST_FITTED]
    vectors, classes = vectors[some], classes[some]
    try:
        return gain_by_labels(vectors, classes, candidates(vectors, POWERS, DIMS))
    except InputError:
        return None


def _is_better(alone: WhiteningGain, taught: Any) -> bool:
    """Return whether adapting has a proven gain, and a larger one for unseen classes than teaching."""
    learned = -np.inf if taught is None else taught.metrics["map_at_r"].difference
    return alone.is_proven and bool(alone.after - alone.before > learned)


def _reason(gains: Mapping[Any, Any], purpose: str) -> str:
    """Return why a layer is refused."""
    reasons = []
    for kind in ("known", "unseen") if purpose == "both" else (purpose,):
        gain = gains[kind]
        if gain is None:
            reasons.append(f"the gain of {_TITLES[kind]} cannot be measured")
        elif not gain.is_proven:
            reasons.append(f"no gain of {_TITLES[kind]} is certain")
    return " and ".join(reasons)


def _advice(others: Mapping[str, Mapping[str, Any]]) -> str:
    """Return for which purposes a layer would be accepted."""
    accepted = [f"--for {name}" for name, other in others.items() if other["accepted"]]
    return f"; {' or '.join(accepted)} would be accepted" if accepted else "; label more images"
