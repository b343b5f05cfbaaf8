"""A layer fitted with labels: learned on the stored vectors of a gallery, and measured on held-out images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np

from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.text import align_columns, pluralize
from train.layers.components import fit_starts
from train.layers.flow import MOST_FITTED, Fit
from train.layers.folds import Kind
from train.layers.learning import learn_layer
from train.layers.lesson import Lesson, print_lesson, read_lesson
from train.layers.measuring import METRICS, PURPOSES, Gain, Measurement, Purpose, beside, kinds, study
from train.layers.settings import TeachingConfig
from train.layers.whitening import NO_CLASS, WhiteningGain, candidates, gain_by_labels

TITLES: dict[Kind, str] = {"known": "new images of known classes", "unseen": "images of unseen classes"}
METRIC_TITLES = {"map_at_r": "MAP@R", "recall_at_1": "Recall@1"}


def fit_teaching(gallery: Gallery, labels: str, purpose: Purpose, config: TeachingConfig) -> Fit:
    """Return the layer that serves a purpose best, learned from the labels of a gallery or of a table.

    Args:
        gallery: Gallery.
        labels: "gallery", or a CSV or Parquet file; see `train.layers.lesson.read_lesson`.
        purpose: Kinds of images that have to gain.
        config: Settings.

    Raises:
        InputError: As for `read_lesson`; or the loss is invalid.
    """
    lesson = read_lesson(gallery, labels)
    classes, images = len(np.unique(lesson.classes)), len(lesson.classes)
    print_lesson(gallery, lesson)
    if lesson.contradictory:
        print_status(f"{pluralize(lesson.contradictory, 'image')} left out: decisions on them contradict")
    starts = fit_starts(np.concatenate([lesson.vectors, lesson.others]), config.powers, config.dim)
    studied = study(
        lesson.vectors,
        lesson.classes,
        lesson.others,
        starts,
        config,
        products=lesson.products,
        show_progress=True,
    )
    found = {name: studied.conclude(name) for name in PURPOSES}
    best = found.pop(purpose)
    alone = _without_labels(lesson, best.gains["unseen"])
    warnings = losses_in(best.gains)
    lines = [*gain_lines(best.gains), *warnings]
    if alone is not None:
        spread = spread_text(alone.after - alone.before, alone.low, alone.high)
        lines.append(
            f"`lookalike adapt {gallery.folder}`, which needs no labels, gains more for {TITLES['unseen']}: "
            f"{spread} MAP@R"
        )
    gains = {kind: gain and asdict(gain) for kind, gain in best.gains.items()}
    origin = {"labels": lesson.labels, "images": images, "classes": classes}
    chosen = asdict(best.chosen)
    return Fit(
        command="teach",
        done="taught",
        facts={
            "gallery": str(gallery.folder),
            **origin,
            "contradictory": lesson.contradictory,
            "left_out": lesson.known,
            "for": purpose,
            "folds": studied.folds,
            **chosen,
            "gains": gains,
            "accepted": best.is_accepted,
            "others": {
                name: {**asdict(other.chosen), "accepted": other.is_accepted} for name, other in found.items()
            },
            "warnings": warnings,
            "adapt": alone and asdict(alone),
        },
        lines=lines,
        refusal=None if best.is_accepted else _refusal(best, found.values()),
        note={
            **origin,
            "for": purpose,
            "settings": config.model_dump(mode="json"),
            **chosen,
            "gains": gains,
        },
        counts={"labels": lesson.labels},
        learn=lambda: learn_layer(
            lesson.vectors,
            lesson.classes,
            next(start for start in starts if start.power == best.chosen.power),
            best.chosen.blend,
            config,
            show_progress=True,
        ),
    )


def gain_lines(gains: Mapping[Kind, Gain | None]) -> list[str]:
    rows = [("", "", "before", "after", "difference (95% interval)")]
    for kind, gain in gains.items():
        if gain is None:
            rows.append((TITLES[kind], "not measured: too few labelled images or classes", "", "", ""))
            continue
        title = f"{TITLES[kind]} ({gain.queries} queries)"
        for name, text in METRIC_TITLES.items():
            change = gain.metrics[name]
            before, after = (f"{100 * value:.1f}" for value in (change.before, change.after))
            spread = spread_text(change.difference, change.low, change.high)
            rows.append((title, text, before, after, spread))
            title = ""
    return align_columns(rows)


def spread_text(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def losses_in(gains: Mapping[Kind, Gain | None]) -> list[str]:
    """Return a warning for each metric that certainly falls."""
    return [
        f"warning: {TITLES[kind]} lose: {spread_text(change.difference, change.low, change.high)} {text}"
        for kind, gain in gains.items()
        if gain is not None
        for name, text in METRIC_TITLES.items()
        if (change := gain.metrics[name]).high < 0
    ]


def _without_labels(lesson: Lesson, taught: Gain | None) -> WhiteningGain | None:
    """Return what `lookalike adapt` gains by these labels, if that is certain and more than teaching gains.

    Args:
        lesson: Labelled vectors and others.
        taught: What teaching gains for unseen classes.
    """
    vectors = np.concatenate([lesson.vectors, lesson.others])
    classes = np.concatenate([lesson.classes, np.full(len(lesson.others), NO_CLASS)])
    some = np.random.default_rng(0).permutation(len(vectors))[:MOST_FITTED]
    products = None if lesson.products is None else beside(lesson.products, len(lesson.others))[some]
    vectors, classes = vectors[some], classes[some]
    try:
        alone = gain_by_labels(vectors, classes, candidates(vectors), products=products)
    except InputError:  # too few labels to measure it
        return None
    learned = -np.inf if taught is None else taught.metrics[METRICS[0]].difference
    return alone if alone.is_proven and alone.after - alone.before > learned else None


def _refusal(best: Measurement, others: Iterable[Measurement]) -> str:
    """Return why a layer is refused, and for which purposes one would be accepted."""
    reasons = []
    for kind in kinds(best.purpose):
        gain = best.gains[kind]
        if gain is None:
            reasons.append(f"the gain of {TITLES[kind]} cannot be measured")
        elif not gain.is_proven:
            reasons.append(f"no gain of {TITLES[kind]} is certain")
    accepted = [f"--for {other.purpose}" for other in others if other.is_accepted]
    advice = f"{' or '.join(accepted)} would be accepted" if accepted else "label more images"
    return f"{' and '.join(reasons)}; {advice}"
