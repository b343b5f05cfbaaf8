"""Search spaces: their syntax, rounding, places inside settings, and the values of the first trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import InputError
from train.experiments.experiment import Experiment
from train.experiments.search_space import (
    Choices,
    Interval,
    add_common_spaces,
    default_values,
    fill_spaces,
    find_spaces,
    is_space,
    parse_space,
)
from train.experiments.sweep_plan import parse_variants

MARGIN = {"low": 0.05, "high": 0.5, "log": True}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (3, "expected a search space, got 3"),
        ({"low": 1}, "high: missing"),
        ({"low": 1, "high": 2, "lg": True}, "lg: not a part of this search space; did you mean 'log'"),
        ({"low": "a", "high": 2}, "low: expected a number, got 'a'"),
        ({"low": 1, "high": float("inf")}, "high: expected a number, got inf"),
        ({"low": 2, "high": 1}, "expected low below high, got 2 and 1"),
        ({"low": 0, "high": 1.0, "log": True}, "log: needs low above 0"),
        ({"low": 1, "high": 2, "log": 3}, "log: expected true or false, got 3"),
        ({"low": 1, "high": 8, "step": 2}, "step: 2 does not lead from 1 to 8"),
        ({"low": 1, "high": 8, "step": 0.5}, "step: expected a positive number, an integer between integers"),
        ({"low": 1, "high": 8, "step": 1, "log": True}, "log and step cannot be combined"),
        ({"choices": 3}, "choices: expected a list of two or more values"),
        ({"choices": [1]}, "choices: expected a list of two or more values"),
        ({"choices": ["a", "b", "a"]}, "choices: a value occurs twice"),
        ({"choices": [1, 2], "low": 1}, "low: not a part of this search space"),
    ],
)
def test_malformed_space_is_refused(space: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^loss.margin: {message}"):
        parse_space(space, "loss.margin")


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e3), st.booleans(), st.floats(0, 1))
def test_rounded_value_is_near_and_within_the_ends(low: float, factor: float, log: bool, at: float) -> None:
    space = parse_space({"low": low, "high": low * factor, "log": log}, "")
    assert isinstance(space, Interval)
    value = space.low + at * (space.high - space.low)
    rounded = space.rounded(value)
    assert space.contains(rounded)
    assert space.contains(space.middle)
    assert abs(rounded - value) <= 5e-4 * value


@given(st.integers(-50, 50), st.integers(1, 7), st.integers(1, 20), st.floats(0, 1))
def test_integers_with_a_step(low: int, step: int, steps: int, at: float) -> None:
    space = parse_space({"low": low, "high": low + step * steps, "step": step}, "")
    assert isinstance(space, Interval)
    values = range(low, low + step * steps + 1, step)
    rounded = space.rounded(low + at * step * steps)
    assert type(rounded) is int
    assert rounded in values
    assert [v for v in range(low - 1, low + step * steps + 2) if space.contains(v)] == list(values)
    assert not space.contains(low + 0.5)
    assert space.values == list(values)


def test_values_with_a_step_have_no_rounding_error() -> None:
    space = parse_space({"low": 0.1, "high": 0.5, "step": 0.1}, "")
    assert space.values == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert parse_space({"low": 0.1, "high": 0.5}, "").values is None


def test_middle_of_a_logarithmic_space_is_the_geometric_mean() -> None:
    assert parse_space({"low": 1e-4, "high": 1e-2, "log": True}, "").middle == pytest.approx(1e-3)
    assert parse_space({"low": 0.1, "high": 0.5}, "").middle == pytest.approx(0.3)
    assert parse_space({"low": 1, "high": 64, "log": True}, "").middle == 8


def test_true_is_not_the_choice_1() -> None:
    space = parse_space({"choices": [1, True, None, [2, 3]]}, "")
    assert isinstance(space, Choices)
    assert [space.place(value) for value in (1, True, None, [2, 3], 4)] == [0, 1, 2, 3, None]


def test_spaces_are_found_and_filled_at_any_depth(tmp_path: Path) -> None:
    file = tmp_path / "methods.yaml"
    file.write_text(
        "deep:\n"
        "  loss: {name: triplet, margin: {low: 0.05, high: 0.5, log: true},\n"
        "         regularizers: [{name: mmd-laplacian, weight: {choices: [0.1, 1.0]}, sigma: 0.5}]}\n"
        "  optimizer: {lr: {low: 1e-4, high: 1e-2}}\n"
        "  batch.per_class: {low: 2, high: 4}\n"
    )
    changes = parse_variants([], file, option="--method", is_value=is_space)["deep"]
    assert {name: space.to_dict() for name, space in find_spaces(changes).items()} == {
        "loss.margin": MARGIN,
        "loss.regularizers.0.weight": {"choices": [0.1, 1.0]},
        "optimizer.lr": {"low": 1e-4, "high": 1e-2},
        "batch.per_class": {"low": 2, "high": 4},
    }
    values = {
        "loss.margin": 0.3,
        "loss.regularizers.0.weight": 1.0,
        "optimizer.lr": 0.001,
        "batch.per_class": 3,
    }
    assert fill_spaces(changes, values) == {
        "loss": {
            "name": "triplet",
            "margin": 0.3,
            "regularizers": [{"name": "mmd-laplacian", "weight": 1.0, "sigma": 0.5}],
        },
        "optimizer.lr": 0.001,
        "batch.per_class": 3,
    }


def test_common_space_does_not_replace_what_a_method_sets() -> None:
    common = {"optimizer.lr": {"low": 1e-4, "high": 1e-2}, "loss.margin": MARGIN}
    assert add_common_spaces({}, common) == common
    fixed = {"loss": {"name": "triplet", "margin": 0.3}, "optimizer.lr": 1e-3}
    assert add_common_spaces(fixed, common) == fixed
    assert find_spaces(add_common_spaces({"loss": {"name": "triplet"}}, common)).keys() == common.keys()


def test_first_values_are_the_defaults_or_the_middle() -> None:
    experiment = Experiment("digits", None, {"optimizer.lr": 2e-3})
    loss = {"name": "triplet", "negatives": "batch", "margin": MARGIN}
    changes = {
        "loss": loss,
        "optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "epochs": {"low": 1, "high": 5},
        "precision": {"choices": ["bf16", "auto"]},
    }
    assert default_values(experiment, changes, find_spaces(changes)) == {
        "loss.margin": 0.2,  # of the loss's constructor
        "optimizer.lr": 2e-3,  # of the experiment
        "epochs": 3,  # the middle: the default, 20, is not in the space
        "precision": "auto",  # of the settings
    }
