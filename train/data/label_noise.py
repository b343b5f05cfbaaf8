"""Synthetic label noise, to measure how robust a loss is to wrong labels."""

from __future__ import annotations

import csv
import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.files import atomic_write
from train.config import NoiseConfig
from train.data import KNOWN, DataSet, LabelledImage

_STREAM = 1  # random stream, distinct from others with the same seed


def with_wrong_labels(
    images: Sequence[LabelledImage], config: NoiseConfig, seed: int, transitions: Mapping[str, str]
) -> list[LabelledImage]:
    """Return the images in the same order, some with the label of another of their classes.

    symmetric: round(rate N) random images get one of the other classes with equal probability. With
    `include_true` one of all classes, so that a C-th part of them keeps its label: the "random one-hot
    vector" of Roy et al. (2022, Learning Deep Optimal Embeddings with Sinkhorn Divergences, section 4) can
    be read either way.
    asymmetric: round(rate n) of the n images of each class get the class in `transitions` (Patrini et al.
    2017); without transitions, the next class in sorted order, the first one for the last. If that class is
    not among the images, its own transition is followed; classes without one stay clean.

    Only `label` changes; `coarse` keeps the true value.

    Raises:
        InputError: There is only one class, or no class has a transition.
    """
    classes = sorted({image.label for image in images})
    if not config.rate or not images:
        return list(images)
    if len(classes) < 2:
        raise InputError(
            f"noise.rate={config.rate:g}: wrong labels need two classes, got {len(classes)}; set it to 0"
        )
    random = np.random.default_rng([seed, _STREAM])
    if config.kind == "symmetric":
        given = _symmetric(images, classes, config, random)
    else:
        targets = wrong_classes(classes, transitions)
        if not targets:
            raise InputError(
                f"noise.kind=asymmetric: none of the {len(classes)} classes is mistaken for another here; "
                "set noise.kind=symmetric"
            )
        given = _asymmetric(images, targets, config.rate, random)
    return [
        dataclasses.replace(image, label=given[i]) if i in given else image for i, image in enumerate(images)
    ]


def noise_note(dataset: DataSet, config: NoiseConfig) -> str | None:
    """Return a note for users on asymmetric noise whose transitions the data set does not define."""
    if config.kind == "symmetric" or not config.rate or dataset.transitions:
        return None
    *names, last = (name for name, known in KNOWN.items() if known.transitions)
    return (
        f"asymmetric noise: {dataset.name} defines no transitions, as {', '.join(names)} and {last} do; each "
        "class is mistaken for the next one in sorted order, the last for the first, alike or not"
    )


def write_noise(file: Path, before: Sequence[LabelledImage], after: Sequence[LabelledImage]) -> None:
    """Write the wrong labels as CSV: path, label (true), given (wrong)."""
    with (
        atomic_write(file) as draft,
        draft.open("w", newline="", encoding="utf-8", errors="surrogateescape") as lines,
    ):
        writer = csv.writer(lines)
        writer.writerow(["path", "label", "given"])
        for right, wrong in zip(before, after, strict=True):
            if right.label != wrong.label:
                writer.writerow([right.path, right.label, wrong.label])


def _symmetric(
    images: Sequence[LabelledImage], classes: list[str], config: NoiseConfig, random: np.random.Generator
) -> dict[int, str]:
    """Return the new labels by position of the image."""
    chosen = random.choice(len(images), round(config.rate * len(images)), replace=False)
    fewest = 0 if config.include_true else 1  # a step of 0 keeps the class
    steps = random.integers(fewest, len(classes), len(chosen))
    place = {label: number for number, label in enumerate(classes)}
    return {
        int(i): classes[(place[images[i].label] + step) % len(classes)]
        for i, step in zip(chosen, steps, strict=True)
    }


def _asymmetric(
    images: Sequence[LabelledImage], targets: Mapping[str, str], rate: float, random: np.random.Generator
) -> dict[int, str]:
    """Return the wrong labels by position of the image."""
    members = defaultdict(list)
    for position, image in enumerate(images):
        members[image.label].append(position)
    given: dict[int, str] = {}
    for label, target in sorted(targets.items()):
        chosen = random.choice(members[label], round(rate * len(members[label])), replace=False)
        given |= dict.fromkeys(map(int, chosen), target)
    return given


def wrong_classes(classes: list[str], transitions: Mapping[str, str]) -> dict[str, str]:
    """Return the class that asymmetric noise mistakes each class for; classes without one stay clean.

    Args:
        classes: Sorted names of the classes that are present.
        transitions: Wrong class by true class, as the data set defines them; empty if it does not.
    """
    if not transitions:
        return dict(zip(classes, [*classes[1:], classes[0]], strict=True))
    there, found = set(classes), {}
    for label in classes:
        target, passed = transitions.get(label), {label}
        while target is not None and target not in there and target not in passed:
            passed.add(target)
            target = transitions.get(target)
        if target is not None and target in there and target != label:
            found[label] = target
    return found
