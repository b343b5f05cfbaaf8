"""Recipes: settings, published numbers and the commands `recipes list` and `recipes show`."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys

import pytest
import torch
import yaml
from click.testing import CliRunner

from train import losses, settings
from train.commands.recipes import recipes
from train.config import Config
from train.data import KNOWN
from train.models import backbones, library_backbones

ALL = settings.recipe_names()
PUBLISHED = [name for name in ALL if settings.read_recipe(name).get("published")]


def config(name: str) -> Config:
    own = settings.read_recipe(name).get("data")
    return settings.resolve(own or "folder:shop", name, [])


@pytest.mark.parametrize("name", ALL)
def test_loss_has_a_finite_gradient_on_a_batch_of_the_recipe(name: str) -> None:
    ours = config(name)
    dim, batch = ours.model.embedding_dim, ours.batch
    loss = losses.build(ours.loss, num_classes=batch.classes, embedding_dim=dim)
    labels = torch.arange(batch.classes).repeat_interleave(batch.per_class)
    embeddings = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = loss(embeddings, labels)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.any(), "the gradient of this batch is zero"
    assert not (loss.paired and batch.per_class % 2), "alternate pairs need an even number of each class"


@pytest.mark.parametrize("name", ALL)
def test_backbone_exists_and_batch_fits_the_data_set(name: str) -> None:
    ours = config(name)
    backbone = ours.model.backbone
    if backbone.startswith("timm:"):
        import timm

        assert timm.is_model_pretrained(backbone.removeprefix("timm:").partition(".")[0])
    else:
        assert backbone in (*backbones.OWN_BACKBONES, *library_backbones.torchvision_names())
    assert all(before < after for before, after in itertools.pairwise((0, *ours.schedule.at, ours.epochs)))
    if "data" in settings.read_recipe(name):
        images, classes = KNOWN[ours.data].counts.get("train", (10**9, 10**9))
        symmetries = ours.augment.symmetries
        assert ours.batch.classes <= symmetries * classes
        assert ours.batch.classes * ours.batch.per_class <= symmetries * images


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_are_plausible(name: str) -> None:
    theirs = config(name).published
    assert theirs is not None
    assert theirs.source
    assert 1 in theirs.recall
    ks = sorted(theirs.recall)
    assert all(0 < theirs.recall[k] < 100 for k in ks)
    assert all(theirs.recall[a] < theirs.recall[b] for a, b in itertools.pairwise(ks)), "recall grows with K"


@pytest.mark.parametrize(("family", "rounds"), [("sct", 5), ("loop", 10)])
def test_epochs_are_as_long_as_in_the_released_code(family: str, rounds: int) -> None:
    """The released code counts images of each class, the recipes count batches."""
    checked = 0
    for ours in (config(name) for name in ALL if name.startswith(f"{family}/")):
        counts = KNOWN[ours.data].counts.get("train")
        if ours.batch.per_epoch is not None and counts is not None:
            assert ours.batch.per_epoch == rounds * counts[1] // ours.batch.classes
            checked += 1
    assert checked


def test_list_has_every_recipe_with_published_recall() -> None:
    done = CliRunner().invoke(recipes, ["list", "--json"])
    facts = {fact["name"]: fact for fact in json.loads(done.output)}
    assert sorted(facts) == ALL
    theirs = facts["loop/cars196-triplet"]
    assert (theirs["data"], theirs["loss"], theirs["recall_at_1"]) == ("cars196", "triplet, optimal", 61.7)
    assert facts["catalogue"]["recall_at_1"] is None
    text = CliRunner().invoke(recipes, ["list"]).output.splitlines()
    assert [line.split()[0] for line in text] == ["recipe", *ALL]
    assert max(map(len, text)) <= 132


@pytest.mark.parametrize("name", ALL)
def test_show_prints_settings_and_a_working_command(name: str) -> None:
    text = CliRunner().invoke(recipes, ["show", name]).output
    assert yaml.safe_load(text) == settings.read_recipe(name)
    words = shlex.split(text.splitlines()[-1].partition(": ")[2])
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert settings.resolve(options["--data"], options["--recipe"], []).published == config(name).published


def test_listing_needs_no_torch() -> None:
    program = (
        "import sys; from retrieval.cli import cli; "
        "cli.main(['recipes', 'list', '--json'], standalone_mode=False); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
