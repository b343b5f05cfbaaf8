"""Settings: recipes, overrides, and refusing what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from retrieval import InputError
from train import settings


def test_resolved_configuration_survives_yaml() -> None:
    ours = settings.resolve("digits", "demo", ["optimizer.lr=0.5", "preprocess.mean=[0.1, 0.2, 0.3]"])
    assert ours.optimizer.lr == 0.5
    assert ours.preprocess.mean == (0.1, 0.2, 0.3)
    assert settings.parse(yaml.safe_load(ours.to_yaml())) == ours


def test_overrides_win_over_the_recipe_and_data_over_both() -> None:
    ours = settings.resolve("folder:x", "demo", ["batch.per_class=3", "loss={name: n-pair}", "seed=7"])
    assert (ours.data, ours.batch.per_class, ours.loss, ours.seed) == ("folder:x", 3, {"name": "n-pair"}, 7)


@pytest.mark.parametrize("recipe", sorted(settings.RECIPES.rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_is_valid(recipe: Path) -> None:
    assert settings.resolve("digits", str(recipe), [])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epoch=3", "did you mean 'epochs'"),
        ("optimizer.learning=3", "known: lr"),
        ("model.backbon=x", "did you mean 'backbone'"),
        ("epochs=many", "expected int, got 'many'"),
        ("epochs=true", "expected int"),
        ("epochs", "expected key=value"),
        ("epochs.a=1", "epochs: expected int"),
        ("augment.flip=1", "expected bool"),
        ("model=conv4", "expected keys and values"),
        ("epochs=-1", "epochs: expected 0 or more"),
        ("batch.classes=1", "batch.classes: expected 2 or more"),
        ("model.pooling=max", "mean or spatial"),
        ("augment.symmetries=3", "1, 4 or 8"),
        ("validation=1.0", "share of the classes"),
        ("preprocess.size=0", "size"),
        ("loss={", "not valid YAML"),
    ],
)
def test_wrong_settings_name_the_right_ones(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settings.resolve("digits", None, [override])


def test_unknown_recipe_names_those_there_are() -> None:
    with pytest.raises(InputError, match="demo"):
        settings.resolve("digits", "dmeo", [])
    with pytest.raises(InputError, match="--data"):
        settings.resolve(None, None, [])
