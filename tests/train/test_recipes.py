"""Recipes: every row of the papers' tables resolves, fits its data set and has the published values."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from retrieval import InputError
from train import losses, pretrained_configs, recipes, settings
from train.config import Config
from train.data import KNOWN
from train.models import backbones
from train.recipes import RecipeRow
from train.yaml_files import to_line

ROWS = recipes.all_rows()
ALL = {name: recipes.read_recipe(name) for name in recipes.recipe_names()}
ALL |= {row.name: row.settings for row in ROWS if row.reason is None}

# Names in the transcription of the papers' tables.
PAPER = {"LoOp": "loop", "SCT": "sct", "RAW": "raw", "Symm": "symm", "DCDL": "dcdl"}
DATA = {"CUB-200-2011": "cub200", "In-shop": "inshop", "Hotels-50K": "hotels50k", "STL-10": "stl10"}


def config(name: str) -> Config:
    own = recipes.read_recipe(name).get("data")
    return settings.resolve(own or "folder:shop", name, [])


def distinct(*keys: str) -> list[str]:
    """The first recipe of each combination of settings."""
    found: dict[str, str] = {}
    for name, values in ALL.items():
        found.setdefault(json.dumps([values.get(key) for key in keys]), name)
    return list(found.values())


def published_values(row: RecipeRow) -> dict[str, float]:
    """The values of a row by the column titles of the transcription."""
    if row.published is None:
        return {}
    chain, one = "Chain ", "Instance " if row.data == "hotels50k" else ""
    found = {f"{one}R@{k}": value for k, value in row.published.recall.items()}
    found |= {f"{chain}R@{k}": value for k, value in row.published.coarse_recall.items()}
    named = {"NMI": "nmi", "F1": "f1", "linear-probe accuracy": "accuracy"}
    found |= {title: getattr(row.published, key) for title, key in named.items()}
    return {title: value for title, value in found.items() if value is not None}


def test_published_values_are_those_of_the_papers() -> None:
    """published.csv, transcribed from the papers independently of the recipes, has all their values."""
    theirs: dict[tuple[str, ...], float] = {}
    with (Path(__file__).parent / "published.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            table = line["table"].replace("Table ", "")
            data = DATA.get(line["dataset"], line["dataset"].lower().replace("cifar-", "cifar"))
            key = (PAPER[line["paper"]], table, line["method"], data, line["setting"], line["metric"])
            theirs[key] = float(line["value"])
    ours = {
        (row.paper, row.table, row.row, row.data, row.setting, metric): value
        for row in ROWS
        if row.variant == "paper"
        for metric, value in published_values(row).items()
    }
    assert ours == theirs


def test_names_are_unique_and_a_reason_names_what_cannot_be_run() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    for row in ROWS:
        if row.reason is not None:
            assert len(row.reason) > 10
            with pytest.raises(InputError, match="cannot be run"):
                recipes.read_recipe(row.name)


def test_every_row_resolves_with_its_published_values() -> None:
    for row in ROWS:
        if row.reason is None:
            ours = settings.resolve(f"{row.data}:ROOT", row.name, ["seed=3", "device=cpu"])
            assert ours.published == row.published
            assert ours.data == f"{row.data}:ROOT"


def test_choices_of_ours_are_settings_with_a_reason() -> None:
    known = {one.name for one in settings.describe_settings()}
    for row in ROWS:
        for setting, reason in row.ours.items():
            assert setting in known or setting.startswith("loss."), f"{row.name}: {setting}"
            assert len(reason) > 10


@pytest.mark.parametrize("name", distinct("loss", "batch"))
def test_loss_has_a_finite_gradient_on_a_batch_of_the_recipe(name: str) -> None:
    ours = config(name)
    dim, batch, distill = ours.model.embedding_dim, ours.batch, ours.distill
    weight = None if distill.teacher is None else distill.weight
    loss = losses.build(ours.loss, num_classes=batch.classes, embedding_dim=dim, distillation=weight)
    labels = torch.arange(batch.classes).repeat_interleave(batch.per_class)
    embeddings = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = loss(embeddings, labels, targets=embeddings.detach().flip(0))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()
    assert not (loss.paired and batch.per_class % 2), "alternate pairs need an even number of each class"


@pytest.mark.parametrize("name", distinct("data", "model", "batch", "schedule"))
def test_backbone_exists_and_batch_fits_the_data_set(name: str) -> None:
    ours = config(name)
    backbone = ours.model.backbone
    if backbone.startswith("timm:"):
        import timm

        assert timm.is_model_pretrained(backbone.removeprefix("timm:").partition(".")[0])
    else:
        assert backbone in (*backbones.OWN_BACKBONES, *pretrained_configs.torchvision_names())
    assert all(before < after for before, after in itertools.pairwise((0, *ours.schedule.at, ours.epochs)))
    if ours.data in KNOWN:
        images, classes = KNOWN[ours.data].counts.get("train", (10**9, 10**9))
        symmetries = ours.augment.symmetries
        assert ours.batch.classes <= symmetries * classes
        assert ours.batch.classes * ours.batch.per_class <= symmetries * images


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("seed=5", True),
        ("save_every=7", True),
        ("loader.workers=0", True),
        ("epochs=3", False),
        ("loss.margin=0.3", False),
        ("noise.rate=0.2", False),
        ("optimizer.lr=1e-3", False),
    ],
)
def test_published_values_are_kept_for_the_unaltered_experiment_only(change: str, kept: bool) -> None:
    name = "dcdl/table1/trip-sym01-cifar10"
    ours = settings.resolve("cifar10:ROOT", name, [change])
    assert (ours.published is not None) == kept
    assert bool(settings.altered_settings(name, ours)) != kept
    assert settings.resolve("folder:x", name, []).published is None


def test_table_is_not_a_recipe_and_similar_names_are_suggested() -> None:
    with pytest.raises(InputError, match="a table of many experiments"):
        settings.resolve("cifar10:ROOT", "dcdl/table1", [])
    with pytest.raises(InputError, match="did you mean 'dcdl/table1/trip-sym01-cifar10'"):
        settings.resolve("cifar10:ROOT", "dcdl/table1/trip-sym01-cifar1", [])
    with pytest.raises(InputError, match=r"'head': settings, and no row .*`lookalike train --recipe head "):
        recipes.find_rows("head")


# ---- a table from its file


def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Mapping[str, RecipeRow]:
    values = {
        "paper": "loop",
        "table": "9",
        "title": "a test",
        "source": "Table 9",
        "name": "{method}-{data}@{variant}",
        "settings": {"epochs": 3, "loss": {"name": "triplet", "margin": 0.1}, "batch": {"classes": 4}},
        "parameters": {
            "method": {
                "a": {"label": "A"},
                "b": {"set": {"loss": {"margin": 0.5}}, "ours": {"loss.margin": "not in the paper"}},
                "c": {"set": {"loss": {"name": "sct"}}},
                "d": {"label": "D", "reason": "trains a generator"},
            },
            "data": {"digits": {"set": {"data": "digits"}}, "sop": {"set": {"data": "sop"}}},
            "variant": {"paper": {}, "code": {"set": {"batch": {"per_class": 2}}}},
        },
        "exceptions": [{"where": {"method": ["a", "b"], "data": "sop"}, "set": {"epochs": 9}}],
        "published": [
            {
                "where": {"data": "digits", "variant": "paper"},
                "columns": ["nmi", "R@1", "coarse R@10"],
                "rows": {"a": [1.25, 2, None], "b": [None, None, 3], "d": [4, 5, 6]},
            },
            {
                "where": {"variant": "code"},
                "metric": "accuracy",
                "columns": [{"data": "digits"}, {"data": "sop"}],
                "rows": {"a": [50, 60], "c": [70, 80]},
                "source": "the released code",
                "runs": 5,
            },
            {"where": {"variant": "paper", "data": "sop"}, "rows": {"a": None}},
        ],
        **changes,
    }
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "table9.yaml").write_text(to_line(values))
    monkeypatch.setattr(recipes, "RECIPES", tmp_path)
    return recipes.load_table.__wrapped__("loop/table9").rows


def test_row_has_the_settings_of_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name.removeprefix("loop/table9/"): row for name, row in table(tmp_path, monkeypatch).items()}
    assert list(rows) == [
        *("a-digits@paper", "b-digits@paper", "d-digits@paper"),
        *("a-digits@code", "a-sop@code", "c-digits@code", "c-sop@code", "a-sop@paper"),
    ]
    assert rows["b-digits@paper"].settings["loss"] == {"name": "triplet", "margin": 0.5}
    assert rows["c-sop@code"].settings["loss"] == {"name": "sct"}
    assert rows["a-sop@code"].settings["batch"] == {"classes": 4, "per_class": 2}
    assert [rows[name].settings["epochs"] for name in ("a-digits@code", "a-sop@code", "c-sop@code")] == [
        3,
        9,
        3,
    ]
    assert (rows["a-sop@code"].row, rows["b-digits@paper"].row, rows["a-sop@code"].data) == ("A", "b", "sop")
    assert rows["a-sop@paper"].published is None
    first = rows["a-digits@paper"].published
    assert first is not None
    assert (first.nmi, first.recall, first.coarse_recall, first.source) == (1.25, {1: 2.0}, {}, "Table 9")
    theirs = rows["c-sop@code"].published
    assert theirs is not None
    assert (theirs.accuracy, theirs.source) == (80.0, "the released code")
    assert (rows["c-sop@code"].runs, rows["a-digits@paper"].runs) == (5, 1)
    assert rows["b-digits@paper"].ours == {"loss.margin": "not in the paper"}
    assert rows["d-digits@paper"].reason == "trains a generator"


WHERE = {"data": "sop", "variant": "paper"}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"where": {}, "rows": {"a": [1]}}, "one parameter for the rows"),
        ({"rows": {"a": [1, 2]}}, "expected 1 values, got 2"),
        ({"columns": ["R1"], "rows": {"a": [1]}}, "'R1' is no column"),
        ({"where": {**WHERE, "data": "cub"}, "rows": {"a": [1]}}, "data 'cub' is not defined"),
        ({"row": {}, "rows": {}}, "published.0.row"),
    ],
)
def test_error_in_a_table_names_the_place(
    block: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=message):
        table(tmp_path, monkeypatch, published=[{"where": WHERE, "columns": ["R@1"], **block}])


@pytest.mark.parametrize("name", distinct("precision"))
def test_papers_are_trained_in_fp32(name: str) -> None:
    """A GPU would choose bf16."""
    row = name not in recipes.recipe_names()
    assert config(name).precision == ("fp32" if row else "auto")
