"""Trained baselines that every sweep gets by default: a new loss should be compared with the usual ones."""

from __future__ import annotations

from collections.abc import Mapping

from train.config import Config
from train.settings import Changes

_PROXY_RATE = 1e-2  # of proxies and class weights, as in the code of proxy anchor (Kim et al. 2020)
_LOSSES: Mapping[str, Changes] = {
    # Hermans et al. (2017): all triplets of a batch, the mean of those with a loss.
    "baseline-triplet": {
        "name": "triplet",
        "margin": 0.2,
        "mining": {"positive": "all", "negative": "all"},
        "reduction": "mean-active",
    },
    # FaceNet (CVPR 2015).
    "baseline-semi-hard": {
        "name": "triplet",
        "margin": 0.2,
        "squared": True,
        "mining": {"positive": "all", "negative": "semi-hard"},
    },
    # Zhai and Wu (BMVC 2019).
    "baseline-softmax": {"name": "normalized-softmax"},
    # Kim et al. (CVPR 2020).
    "baseline-proxy-anchor": {"name": "proxy-anchor"},
}
_WITH_PROXIES = ("baseline-softmax", "baseline-proxy-anchor")


def baseline_changes(shared: Config) -> dict[str, Changes]:
    """Return the baselines by name, each with the settings that it changes.

    Losses with proxies get a learning rate for these, unless the shared settings have one.

    Args:
        shared: Settings that all variants share.
    """
    found: dict[str, Changes] = {}
    for name, loss in _LOSSES.items():
        found[name] = {"loss": loss}
        if name in _WITH_PROXIES and shared.optimizer.loss_lr is None:
            found[name] = {"loss": loss, "optimizer.loss_lr": _PROXY_RATE}
    return found
