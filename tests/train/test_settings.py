"""Settings: recipes, overrides and validation errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from retrieval import InputError
from tests.conftest import lookalike_here
from train import settings


def test_configuration_round_trips_through_yaml() -> None:
    ours = settings.resolve("digits", "demo", ["optimizer.lr=0.5", "preprocess.mean=[0.1, 0.2, 0.3]"])
    assert ours.optimizer.lr == 0.5
    assert ours.preprocess.mean == (0.1, 0.2, 0.3)
    assert settings.parse_config(yaml.safe_load(ours.to_yaml())) == ours


def test_overrides_take_precedence_over_recipe_and_data_over_both() -> None:
    ours = settings.resolve("folder:x", "demo", ["batch.per_class=3", "loss={name: n-pair}", "seed=7"])
    assert (ours.data, ours.batch.per_class, ours.loss, ours.seed) == ("folder:x", 3, {"name": "n-pair"}, 7)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epoch=3", "did you mean 'epochs'"),
        ("optimizer.learning=3", "did you mean 'optimizer.lr'"),
        ("model.backbon=x", "did you mean 'model.backbone'"),
        ("epochs=many", "expected an integer, got 'many'"),
        ("epochs=true", "expected an integer"),
        ("epochs", "expected key=value"),
        ("epochs.a=1", "epochs: expected an integer"),
        ("augment.flip=1", "expected true or false"),
        ("model=conv4", "expected a mapping of keys to values, got 'conv4'; set model.backbone or another"),
        ("loss=triplet", "expected a mapping of keys to values, got 'triplet'; set loss.name or another"),
        ("epochs=-1", "epochs: expected 0 or more"),
        ("batch.classes=1", "batch.classes: expected 2 or more"),
        ("model.pooling=max", "expected mean, gem, cls, spatial or native, or auto, got 'max'"),
        ("augment.symmetries=3", "expected 1, 4 or 8"),
        ("split.validation=1.0", "expected 0 or more and below 1, got 1.0"),
        ("validation=0.2", "did you mean 'split.validation'"),
        ("split={folds: 3, fold: 3}", "less than split.folds"),
        ("published={source: 3}", "published.source: expected text"),
        ("published={recall: {1: 50}}", "published.source: missing"),
        ("preprocess.size=0", "preprocess.size: expected 1 or more"),
        ("preprocess.size=true", "preprocess.size: expected an integer"),
        ("preprocess.resize=9", "1 <= size <= resize"),
        ("preprocess.siz=9", "did you mean 'preprocess.size'"),
        ("preprocess.mean=[0.1, x, 0.2]", "preprocess.mean.1: expected a number"),
        ("split.folds=1", "expected 0 .none., or 2 or more"),
        ("optimizer.lr=.nan", "optimizer.lr: expected"),
        ("loss={", "not valid YAML"),
    ],
)
def test_invalid_setting_error_names_the_valid_ones(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings.resolve("digits", None, [override])


def test_unknown_recipe_error_names_a_known_recipe() -> None:
    with pytest.raises(InputError, match="demo"):
        settings.resolve("digits", "dmeo", [])
    with pytest.raises(InputError, match="--data"):
        settings.resolve(None, None, [])


def test_every_setting_is_listed_with_default_and_description() -> None:
    found = {one.name: one for one in settings.describe_settings()}
    for name, default in (("optimizer.lr", "0.001"), ("schedule.at", "[]"), ("preprocess.fit", "auto")):
        assert found[name].to_text().startswith(f"{name} = {default}\n    ")
    defaults = settings.resolve("digits", None, []).to_dict()
    leaves = [
        f"{group}.{name}" if isinstance(value, dict) and group != "loss" else group
        for group, value in defaults.items()
        for name in (value if isinstance(value, dict) and group != "loss" else [""])
    ]
    assert list(found) == list(dict.fromkeys(leaves))
    assert all(one.meaning and one.accepts for one in found.values())


@pytest.mark.parametrize(
    ("name", "accepts"),
    [
        ("split.validation", "a number, 0 or more and below 1"),
        ("split.by", "classes | images"),
        ("split.refit", "true | false"),
        ("model.weights", "text, or null"),
        ("augment.symmetries", "1 | 4 | 8"),
        ("optimizer.head_lr", "a number, more than 0, or null, or auto"),
        ("schedule.at", "a list"),
        ("loss", "a mapping of keys to values"),
    ],
)
def test_accepted_values_are_in_words(name: str, accepts: str) -> None:
    (found,) = settings.describe_settings(name)
    assert found.accepts == accepts


def test_command_explains_settings_and_sections() -> None:
    text = lookalike_here("train", "--explain", "split.by").stdout
    assert text.startswith("split.by = classes\n    classes | images\n    classes (whole classes")
    facts = json.loads(lookalike_here("train", "--explain", "optimizer", "--json").stdout)
    assert {one["name"].partition(".")[0] for one in facts} == {"optimizer"}
    assert (
        len(lookalike_here("train", "--explain").stdout.splitlines()) == len(settings.describe_settings()) + 1
    )
    for wrong, hint in (("optimizer.lrr", "did you mean 'optimizer.lr'?"), ("loss.margin", "losses NAME")):
        assert hint in lookalike_here("train", "--explain", wrong, code=2).stderr
    assert "Missing option '--out'" in lookalike_here("train", "--data", "digits", code=2).stderr


def test_numbers_in_scientific_notation_and_lists_are_parsed() -> None:
    ours = settings.resolve("digits", None, ["optimizer.lr=1e-4", "schedule.at=[3, 5]", "batch.chunk=8"])
    assert ours.optimizer.lr == 1e-4
    assert ours.schedule.at == (3, 5)
    assert settings.resolve("digits", None, ["batch.chunk=null"]).batch.chunk is None


def test_single_key_of_the_loss_can_be_changed() -> None:
    changed = settings.resolve("digits", None, ["loss.alpha=3e-1"]).loss
    assert changed == {"name": "multi-similarity", "alpha": 0.3}
    assert "alpha" not in settings.resolve("digits", None, []).loss, "the default is left alone"


def test_published_results_are_dropped_for_other_data(tmp_path: Path) -> None:
    recipe = tmp_path / "paper.yaml"
    recipe.write_text("data: digits\npublished: {source: 'a paper, Table 1', recall: {1: 61.7, 10: 90.0}}\n")
    kept = settings.resolve("digits:/somewhere", str(recipe), []).published
    assert kept is not None
    assert kept.recall == {1: 61.7, 10: 90.0}
    assert settings.resolve("folder:/somewhere", str(recipe), []).published is None
