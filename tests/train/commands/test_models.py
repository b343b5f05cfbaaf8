"""`lookalike model`: the curated list, all names of timm, and one backbone."""

from __future__ import annotations

import json

import pytest
import timm

from retrieval.model.licenses import PERMISSIVE
from tests.conftest import lookalike_here
from train.curated_backbones import RETRIEVAL, curated_backbones
from train.models.backbones import build_backbone
from train.pretrained_configs import native_size, published_preprocess
from train.weights_origin import weights_origin


def test_curated_backbones_are_as_their_library_states() -> None:
    """Names, sizes, dimensions, parameters and licences; the times are in order."""
    rows = curated_backbones()
    assert len(rows) >= 12
    published = {f"timm:{name}" for name in timm.list_models(pretrained=True)}
    for row in rows:
        preprocess = published_preprocess(row.name, "imagenet")
        assert preprocess is not None
        assert row.name in published
        assert (row.size, row.license) == (preprocess.size, weights_origin(row.name, "imagenet").license)
        assert row.license in PERMISSIVE
        assert (row.dim, row.parameters) == native_size(row.name)
    assert [row.speed for row in rows] == sorted(
        (row.speed for row in rows), key=("fast", "medium", "slow").index
    )


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("timm:vit_base_patch16_clip_224.openai:depth=1,embed_dim=48,num_heads=2", 64),
        ("timm:vit_base_patch16_siglip_224:depth=1,embed_dim=48,num_heads=2", 64),
        ("timm:mobilenetv4_conv_small_035", 64),
        ("timm:deit_tiny_distilled_patch16_224:depth=1", 64),
        ("squeezenet1_1", 64),
        ("mobilenet_v3_small", 64),
        ("googlenet", 64),
    ],
)
def test_size_without_weights_is_that_of_the_network(name: str, size: int) -> None:
    backbone = build_backbone(name, None, size, native=True)
    dim, parameters = native_size(name)
    assert dim == backbone.channels
    resized = "patch" in name  # position embeddings are those of the published size
    if not resized:
        assert parameters == sum(parameter.numel() for parameter in backbone.parameters())


def test_list_is_filtered_and_has_a_json_form() -> None:
    rows = json.loads(lookalike_here("model", "list", "siglip", "--json").stdout)
    assert [row["name"] for row in rows] == ["timm:vit_base_patch16_siglip_224.v2_webli"]
    assert rows[0]["dim"] == 768
    text = lookalike_here("model", "list").stdout.splitlines()
    assert max(map(len, text)) <= 100
    assert [line.split()[0] for line in text if line.startswith("timm:")] == [
        row.name for row in curated_backbones()
    ]
    every = lookalike_here("model", "list", "--all", "*small*dinov3.*").stdout
    assert "timm:vit_small_patch16_dinov3.lvd1689m" in every
    assert "dinov3-license: has terms of its own" in every
    failed = lookalike_here("model", "list", "no-such-name", code=2)
    assert "--all searches all of timm" in failed.stderr


def test_every_figure_of_quality_has_its_source() -> None:
    """Published accuracies name a document; what was measured here has an interval over classes around it."""
    for row in curated_backbones():
        assert row.imagenet == "-" or float(row.imagenet.split()[0]) > 40
        for one in row.quality:
            measured = one.metric in RETRIEVAL
            assert measured == (one.source == "measured here") == (one.interval is not None)
            if one.interval is not None:
                assert one.interval[0] < one.percent < one.interval[1]
    name = "timm:tf_efficientnet_lite0.in1k"
    (lite0,) = json.loads(lookalike_here("model", "list", name, "--json").stdout)
    assert {one["metric"] for one in lite0["quality"]} == {"top-1", *RETRIEVAL}
    listed, described = (lookalike_here("model", word, name).stdout for word in ("list", "info"))
    assert "MAP@R" in listed
    assert "results-imagenet.csv" in described


def test_info_describes_a_backbone() -> None:
    found = json.loads(
        lookalike_here("model", "info", "timm:vit_base_patch16_clip_224.openai", "--json").stdout
    )
    assert found["embedding"] == {"dim": 512, "projection": True}
    assert found["address"] == "https://huggingface.co/timm/vit_base_patch16_clip_224.openai"
    assert found["preprocess"]["size"] == 224
    text = lookalike_here("model", "info", "vit_b_16").stdout
    assert "768 dimensions" in text
    assert "https://download.pytorch.org/" in text
    failed = lookalike_here("model", "info", "timm:vit_bas_patch16_224", code=2)
    assert "did you mean 'timm:vit_base_patch16_224'" in failed.stderr
