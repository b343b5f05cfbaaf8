"""Registry: complete listings, and error messages with suggestions."""

import re
from typing import Any

import pytest
import torch

from train import losses
from train.losses import registry

NAMES = {
    "triplet", "triplet-nca", "triplet-cosine", "sct", "hphn-triplet", "lifted-hard", "lifted",
    "lifted-generalized", "contrastive", "binomial-deviance", "raw", "multi-similarity", "equal-weight",
    "n-pair", "angular", "angular-n-pair", "margin", "proxy-nca", "proxy-anchor", "soft-triple",
    "normalized-softmax", "histogram", "fast-ap", "recall-at-k", "smooth-ap",
    "supcon", "info-nce", "circle", "siglip", "cosent",
}  # fmt: skip
REGULARIZERS = {"wasserstein", "mmd-laplacian", "mmd-gaussian", "energy", "cross-entropy", "spread-out"}
MINERS = {"triplet", "vthm", "rand-disjoint"}
SOURCES = {"optimal", "optimal-segment", "symmetric", "interpolated"}


def test_all_losses_are_listed() -> None:
    assert set(losses.names()) == NAMES
    assert set(losses.names("regularizer")) == REGULARIZERS
    assert set(losses.names("negatives")) == SOURCES
    assert set(losses.names("mining")) == MINERS
    text = losses.describe()
    for name in NAMES | REGULARIZERS | SOURCES | MINERS - {"triplet"}:
        assert f"\n{name}: " in text


def test_named_entries_are_described_in_detail() -> None:
    """The published forms of the triplet loss, and which of them is the default."""
    text = losses.describe("triplet", "rand-disjoint")
    assert "negative_reduction: min" in text
    assert "only with\n      `squared: true`" in text
    assert "every sample occurs at most once" in text
    assert "Args:" not in losses.describe()
    assert "binomial" not in text


@pytest.mark.parametrize("kind", ["loss", "negatives", "mining", "regularizer"])
def test_entries_are_complete(kind: Any) -> None:
    for name, entry in losses.names(kind).items():
        assert entry.name == name
        assert "\n" not in entry.summary
        assert entry.summary.endswith(".")
        assert entry.source
        words = set(re.findall(r"\\text\{([^}]*)\}", entry.formula))
        assert {word.replace("\\_", "_") for word in words} <= set(entry.parameters), name
        greek = set(re.findall(r"\\(alpha|beta|gamma|epsilon|sigma)\b", entry.formula))
        assert greek <= set(entry.parameters), name
        for key, parameter in entry.parameters.items():
            assert registry.check_parameters(entry, {key: parameter.default}), key
        if kind == "loss":
            takes_all = set(entry.negatives) == SOURCES | {"batch"} and set(entry.mining) == MINERS
            assert entry.refusal or takes_all


def test_every_source_and_miner_is_accepted_or_refused_with_a_reason() -> None:
    """names() and build() agree, in both directions."""
    for name, entry in losses.names().items():
        for part, kind in (("negatives", "negatives"), ("mining", "mining")):
            for choice in losses.names(kind):
                value: Any = choice if part == "negatives" else {"name": choice}
                spec = {"name": name, part: value}
                if choice in getattr(entry, part):
                    losses.build(spec, num_classes=3, embedding_dim=4)
                else:
                    with pytest.raises(ValueError, match=r"does not take") as refusal:
                        losses.build(spec, num_classes=3, embedding_dim=4)
                    assert entry.refusal in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"name": "tripelt"}, "'triplet'"),
        ({"name": "multisimilarity"}, "'multi-similarity'"),
        ({"name": "triplet", "magrin": 1}, "'margin'"),
        ({"name": "triplet", "negative": "optimal"}, "'negatives'"),
        ({"name": "triplet", "regularizer": []}, "'regularizers'"),
        ({"name": "triplet", "memori": 3}, "'memory'"),
        ({"name": "triplet", "negatives": "optimal-segments"}, "'optimal-segment'"),
        ({"name": "triplet", "negatives": "interpolated", "point": 3}, "'points'"),
        ({"name": "triplet", "negatives": {"name": "interpolated", "point": 3}}, "'points'"),
        ({"name": "triplet", "mining": {"negative": "semihard"}}, "'semi-hard'"),
        ({"name": "triplet", "mining": {"negativ": "hard"}}, "'negative'"),
        ({"name": "raw", "mining": {"name": "vhtm"}}, "'vthm'"),
        ({"name": "raw", "mining": "vthm"}, "mapping"),
        ({"name": "n-pair", "candidates": "positive"}, "'positives'"),
        ({"name": "angular", "negatives": "symmetric", "candidates": "positives"}, "leave out candidates"),
        ({"name": "triplet", "margin": "wide"}, "number"),
        ({"name": "triplet", "margin": True}, "number"),
        ({"name": "triplet", "squared": 1}, "true or false"),
        ({"name": "triplet", "negatives": "interpolated", "points": 2.5}, "whole number"),
        ({"name": "triplet-nca", "temperature": 0}, "above 0"),
        ({"name": "recall-at-k", "ks": [1, 0.5]}, "list of whole numbers"),
        ({"name": "recall-at-k", "ks": []}, "from 1"),
        ({"name": "recall-at-k", "form": "release"}, "'released'"),
        ({"name": "recall-at-k", "form": "released", "rank_temperature": 2.0}, "no effect"),
        ({"name": "wasserstein"}, "regularizer"),
        ({"name": "optimal"}, "source of negatives"),
        ({"regularizers": [{"name": "waserstein"}]}, "'wasserstein'"),
        ({"regularizers": [{"name": "wasserstein", "epsilom": 1}]}, "'epsilon'"),
        ({"regularizers": [{"name": "wasserstein", "weight": "high"}]}, "number"),
        ({"regularizers": {"name": "wasserstein"}}, "list"),
        ({"regularizers": ["wasserstein"]}, "mapping"),
        ({"margin": 0.2}, "name"),
        ({}, "loss or a regularizer"),
        *(({"name": name}, "num_classes") for name in ("proxy-nca", "soft-triple")),
        ({"name": "proxy-anchor"}, "pass num_classes and embedding_dim to build"),
        ({"name": "normalized-softmax"}, "num_classes"),
        ({"regularizers": [{"name": "cross-entropy"}]}, "num_classes"),
        ({"name": "margin", "learn": "per-class"}, "num_classes"),
    ],
    ids=str,
)
def test_misspelled_names_get_suggestions(spec: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  (the hint is compared below)
        losses.build(spec)
    assert hint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_specification_is_a_mapping_and_is_not_modified() -> None:
    with pytest.raises(TypeError, match=r"mapping, not by str: \{'name': 'triplet'\}"):
        losses.build("triplet")  # type: ignore[arg-type]
    spec = {
        "name": "triplet",
        "negatives": {"name": "interpolated", "points": 3},
        "mining": {"negative": "hard"},
    }
    spec |= {"regularizers": [{"name": "wasserstein", "weight": 0.5}]}
    before = repr(spec)
    losses.build(spec)
    assert repr(spec) == before


def test_source_parameters_are_accepted_beside_or_nested() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 2), torch.arange(20).repeat_interleave(2)
    beside = losses.build({"name": "triplet", "negatives": "interpolated", "points": 5})
    inside = losses.build({"name": "triplet", "negatives": {"name": "interpolated", "points": 5}})
    assert torch.equal(beside(x, y), inside(x, y))
    assert not torch.equal(beside(x, y), losses.build({"name": "triplet", "negatives": "interpolated"})(x, y))


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ({"name": "proxy-nca"}, [(5, 4)]),
        ({"name": "soft-triple", "centers": 3}, [(15, 4)]),
        ({"name": "margin", "learn": "per-class"}, [(5,)]),
        ({"name": "siglip"}, [(), ()]),
        ({"name": "margin", "learn": "shared"}, [(1,)]),
        ({"name": "margin"}, []),
        ({"name": "triplet", "regularizers": [{"name": "cross-entropy"}]}, [(5, 4), (5,)]),
    ],
    ids=str,
)
def test_learnable_parameters_are_module_parameters(spec: dict[str, Any], shapes: list[Any]) -> None:
    """They are trained, stay float32 under autocast, and are in the state dict."""
    torch.manual_seed(0)
    module = losses.build(spec, num_classes=5, embedding_dim=4)
    assert [tuple(p.shape) for p in module.parameters()] == shapes
    x, y = torch.randn(10, 4), torch.arange(5).repeat(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x.bfloat16(), y).backward() if shapes else None
    for name, parameter in module.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0, name
        assert name in module.state_dict()
