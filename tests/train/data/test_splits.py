"""Classes held out for validation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import InputError
from train.config import SplitConfig
from train.data import LabelledImage
from train.data.splits import hold_out_classes


def images(classes: int, each: int = 2) -> list[LabelledImage]:
    return [LabelledImage(Path(f"{c}-{i}"), f"class {c:03d}") for i in range(each) for c in range(classes)]


def labels(found: list[LabelledImage]) -> set[str]:
    return {image.label for image in found}


@given(st.integers(4, 60), st.floats(0, 0.9), st.integers(0, 9))
def test_validation_is_a_share_of_whole_classes_or_empty(classes: int, share: float, seed: int) -> None:
    every, config = images(classes), SplitConfig(validation=share)
    wanted = round(share * classes)
    if wanted > classes - 2:
        with pytest.raises(InputError, match="lower it"):
            hold_out_classes(every, config, seed)
        return
    training, held_out = hold_out_classes(every, config, seed)
    assert len(labels(held_out)) == (wanted if wanted >= 2 else 0), "one class alone cannot be searched"
    assert not labels(training) & labels(held_out)
    assert sorted(training + held_out, key=every.index) == every
    assert [image for image in every if image in training] == training, "in their order"
    assert hold_out_classes(every, config, seed) == (training, held_out)


@given(st.integers(2, 9), st.integers(0, 40), st.integers(0, 9))
def test_every_class_is_in_exactly_one_fold(folds: int, more: int, seed: int) -> None:
    every = images(2 * folds + more)
    parts = [hold_out_classes(every, SplitConfig(folds=folds, fold=fold), seed) for fold in range(folds)]
    sizes = [len(labels(held_out)) for _, held_out in parts]
    assert sum(sizes) == len(labels(every))
    assert set().union(*(labels(held_out) for _, held_out in parts)) == labels(every)
    assert max(sizes) - min(sizes) <= 1
    assert all(labels(training) == labels(every) - labels(held_out) for training, held_out in parts)


def test_folds_of_one_class_are_refused() -> None:
    with pytest.raises(InputError, match=r"split\.folds=4 needs two classes in each, 8 in all; there are 7"):
        hold_out_classes(images(7), SplitConfig(folds=4), 0)


def test_split_depends_on_the_seed_not_on_image_order() -> None:
    every = images(40)
    for config in (SplitConfig(validation=0.25), SplitConfig(folds=4)):
        drawn = {frozenset(labels(hold_out_classes(every, config, seed)[1])) for seed in range(5)}
        assert len(drawn) == 5
        assert labels(hold_out_classes(every[::-1], config, 0)[1]) == labels(
            hold_out_classes(every, config, 0)[1]
        )
