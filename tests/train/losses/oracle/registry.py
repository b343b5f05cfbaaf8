"""Every published variant: its label, the specification that builds it, and its reference."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import contrast, hardest, other_losses, ranks, symmetrical, transport, triplets, weighted
from .pairs import Labels

Reference = Callable[[np.ndarray, Labels], float]


class Variant(NamedTuple):
    """A specification for losses.build and the function (embeddings, labels) -> value it must equal."""

    label: str
    spec: dict[str, Any]
    function: Reference


def _regularizer(phi: Callable[..., float], weight: float = 1.0) -> Reference:
    return lambda x, y: weight * transport.classwise(x, y, phi)


def _sum(*parts: Reference) -> Reference:
    return lambda x, y: sum(part(x, y) for part in parts)


def _with(spec: dict[str, Any], regularizer: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "regularizers": [regularizer]}


_easy_hard: dict[str, Any] = {"positive": "easy", "negative": "hard"}
_farthest: dict[str, Any] = {"positive": "all", "negative": "semi-hard", "fallback": "farthest"}
_vthm = {"name": "vthm", "margin": 0.1}
_ms_vthm = {"name": "vthm", "margin": -0.02}
_ms = {"name": "multi-similarity", "threshold": 0.5, "mining": _ms_vthm}
_trip_semihard = {"name": "triplet", "squared": True, "margin": 0.5, "mining": _farthest}
_trip_semihard_value = partial(triplets.mined, term=triplets.hinge(0.5, squared=True), **_farthest)
_hinge, _squared = triplets.hinge(0.2), triplets.hinge(0.2, squared=True)
_nca01 = triplets.nca(0.1)

LOOP = [
    Variant(
        "loop_triplet_base", {"name": "triplet", "margin": 0.2}, partial(triplets.over_pairs, term=_hinge)
    ),
    Variant(
        "loop_triplet",
        {"name": "triplet", "negatives": "optimal", "margin": 0.2},
        partial(triplets.over_pairs, term=_hinge, source="optimal"),
    ),
    Variant(
        "loop_triplet_negmean",
        {"name": "triplet", "negatives": "optimal", "margin": 0.2, "negative_reduction": "mean"},
        partial(triplets.over_pairs, term=_hinge, source="optimal", negative_reduction="mean"),
    ),
    *(
        Variant(
            f"loop_triplet_min_{source}",  # Algorithm 1, line 7
            {"name": "triplet", "negatives": source, "margin": 0.2, "negative_reduction": "min"},
            partial(triplets.over_pairs, term=_hinge, source=source, negative_reduction="min"),
        )
        for source in ("batch", "optimal")
    ),
    Variant(
        "loop_triplet_degenerate",
        {"name": "triplet", "negatives": "optimal", "margin": 0.2, "leftover": "degenerate"},
        partial(triplets.over_pairs, term=_hinge, source="optimal", degenerate=True),
    ),
    Variant(
        "loop_triplet_seg",
        {"name": "triplet", "negatives": "optimal-segment", "margin": 0.2},
        partial(triplets.over_pairs, term=_hinge, source="optimal-segment"),
    ),
    *(
        Variant(
            label,
            {"name": "hphn-triplet", "negatives": source, "margin": 0.2},
            partial(hardest.hphn_triplet, source=source),
        )
        for label, source in [
            ("loop_hphn_base", "batch"),
            ("loop_hphn", "optimal"),
            ("loop_hphn_seg", "optimal-segment"),
        ]
    ),
    *(
        Variant(
            label,
            {"name": "lifted-hard", "negatives": source, "margin": 0.2},
            partial(hardest.lifted_hard, source=source),
        )
        for label, source in [("loop_ls_base", "batch"), ("loop_ls", "optimal")]
    ),
    Variant(
        "loop_ls_lse",
        {"name": "lifted-hard", "negatives": "optimal", "margin": 0.2, "pooling": "logsumexp"},
        partial(hardest.lifted_hard, source="optimal", pooling="logsumexp"),
    ),
    Variant("loop_ms_base", _ms, partial(weighted.raw, mining=-0.02)),
    Variant("loop_ms", {**_ms, "negatives": "optimal"}, weighted.multi_similarity_pairs),
    Variant(
        "loop_ms_plainpos",
        {**_ms, "negatives": "optimal", "positive_rule": "batch"},
        partial(weighted.multi_similarity_pairs, positive_rule="batch"),
    ),
]

SCT = [
    *(
        Variant(
            label,
            {"name": "triplet-nca", "mining": {"positive": positive, "negative": negative}},
            partial(triplets.mined, term=triplets.nca(), positive=positive, negative=negative),
        )
        for label, positive, negative in [
            ("nca_hn", "easy", "hard"),
            ("nca_shn", "easy", "semi-hard"),
            ("nca_hphn", "hard", "hard"),
            ("nca_allhn", "all", "hard"),
        ]
    ),
    Variant(
        "nca_hn_T01",
        {"name": "triplet-nca", "temperature": 0.1, "mining": {**_easy_hard, "duplicate_above": 0.9999}},
        partial(triplets.mined, term=_nca01, duplicate_above=0.9999),
    ),
    Variant(
        "margin_sq_hn",
        {"name": "triplet", "squared": True, "margin": 0.2, "mining": _easy_hard},
        partial(triplets.mined, term=_squared),
    ),
    *(
        Variant(
            label,
            {"name": "sct", "weight": weight},
            partial(triplets.mined, term=triplets.selectively_contrastive(triplets.nca(), weight)),
        )
        for label, weight in [("sct", 1.0), ("sct_lam01", 0.1)]
    ),
    Variant(
        "sct_code",
        {
            "name": "sct",
            "temperature": 0.1,
            "gate": 0.8,
            "mining": {**_easy_hard, "duplicate_above": 0.9999},
        },
        partial(
            triplets.mined, term=triplets.selectively_contrastive(_nca01, 1.0, 0.8), duplicate_above=0.9999
        ),
    ),
    Variant(
        "sct_margin",
        {"name": "sct", "base": "margin", "margin": 0.2},
        partial(triplets.mined, term=triplets.selectively_contrastive(_squared)),
    ),
]

RAW = [
    *(
        Variant(
            label,
            {"name": "contrastive", "threshold": 0.5, "positive_offset": offset},
            partial(weighted.contrastive, offset=offset),
        )
        for label, offset in [("contrastive_cos", 0), ("contrastive_cos_1ms", 1)]
    ),
    Variant(
        "triplet_cos",
        {"name": "triplet-cosine", "margin": 0.1},
        partial(triplets.mined, term=triplets.cosine_hinge(0.1), positive="all", negative="all"),
    ),
    Variant("gen_lifted", {"name": "lifted-generalized", "margin": 0.5}, weighted.generalized_lifted),
    *(  # as printed it is 0 on ordinary batches; a margin far below 0 shows its shape
        Variant(
            f"gen_lifted_printed_{margin}",
            {"name": "lifted-generalized", "margin": margin, "form": "printed"},
            partial(weighted.generalized_lifted, margin=margin, printed=True),
        )
        for margin in (0.5, -3.0)
    ),
    *(
        Variant(
            label,
            {"name": "binomial-deviance", "reduction": reduction},
            partial(weighted.binomial_deviance, reduction=reduction),
        )
        for label, reduction in [("binomial", "sum"), ("binomial_mean", "mean")]
    ),
    Variant(
        "binomial_normalized",
        {"name": "binomial-deviance", "slopes": "normalized", "alpha": 3.0},
        partial(weighted.binomial_deviance, normalized=True, alpha=3.0),
    ),
    Variant(
        "binomial_vthm",
        {"name": "binomial-deviance", "mining": _vthm},
        partial(weighted.binomial_deviance, mining=0.1),
    ),
    Variant("raw_vthm", {"name": "raw", "mining": _vthm}, weighted.raw),
    Variant("raw_default", {"name": "raw"}, weighted.raw),
    Variant("raw", {"name": "raw", "mining": None}, partial(weighted.raw, mining=None)),
    Variant("vthm_equal", {"name": "equal-weight", "mining": _vthm}, weighted.equal_weight),
]

SYMM = [
    Variant(
        "triplet_sq",
        {"name": "triplet", "squared": True, "margin": 0.2},
        partial(triplets.over_pairs, term=_squared),
    ),
    Variant(
        "triplet_semihard_sq",
        {"name": "triplet", "squared": True, "margin": 0.2, "mining": _farthest},
        partial(triplets.mined, term=_squared, **_farthest),
    ),
    Variant(
        "symm_triplet",
        {"name": "triplet", "squared": True, "negatives": "symmetric", "margin": 0.2},
        partial(triplets.over_pairs, term=_squared, source="symmetric"),
    ),
    Variant(
        "symm_triplet_semihard",
        {
            "name": "triplet",
            "squared": True,
            "negatives": "symmetric",
            "margin": 0.2,
            "mining": {"negative": "semi-hard", "fallback": "farthest"},
        },
        partial(triplets.mined, term=_squared, source="symmetric", negative="semi-hard", fallback="farthest"),
    ),
    *(
        Variant(
            label,
            {"name": "lifted", "margin": 1.0, "negatives": source},
            partial(symmetrical.lifted, source=source),
        )
        for label, source in [("lifted", "batch"), ("symm_lifted", "symmetric")]
    ),
    *(
        Variant(
            label,
            {"name": "n-pair", "candidates": candidates},
            partial(symmetrical.n_pair, candidates=candidates),
        )
        for label, candidates in [("npair", "all"), ("npair_mc", "positives")]
    ),
    Variant(
        "npair_mc_reg",
        {"name": "n-pair", "candidates": "positives", "l2_reg": 0.002},
        partial(symmetrical.n_pair, candidates="positives", l2_reg=0.002),
    ),
    Variant("symm_npair", {"name": "n-pair", "negatives": "symmetric"}, symmetrical.symm_n_pair),
    Variant(
        "symm_npair_code",
        {"name": "n-pair", "negatives": "symmetric", "combinations": "released"},
        symmetrical.symm_n_pair_released,
    ),
    Variant("angular", {"name": "angular", "angle": 45, "negatives": "batch"}, symmetrical.angular),
    Variant(
        "angular_mc",
        {"name": "angular", "angle": 45, "candidates": "positives"},
        partial(symmetrical.angular, candidates="positives"),
    ),
    Variant(
        "symm_angular",
        {"name": "angular", "angle": 45, "negatives": "symmetric"},
        symmetrical.symm_angular,
    ),
    Variant(
        "symm_angular_code",
        {"name": "angular", "angle": 45, "negatives": "symmetric", "combinations": "released"},
        symmetrical.symm_angular_released,
    ),
]

_anchors = {"normalize": True, "anchors": "both"}

DCDL = [
    Variant("np", {"name": "n-pair", **_anchors}, partial(symmetrical.n_pair, **_anchors)),  # type: ignore[arg-type]
    Variant(
        "ang30",
        {"name": "angular", "angle": 30, **_anchors},
        partial(symmetrical.angular, angle=30, **_anchors),  # type: ignore[arg-type]
    ),
    Variant(
        "ang_np",
        {"name": "angular-n-pair", "angle": 45, "angular_weight": 2.0, **_anchors},
        partial(symmetrical.angular_n_pair, **_anchors),  # type: ignore[arg-type]
    ),
    Variant(
        "trip_all",
        {"name": "triplet", "squared": True, "margin": 0.5, "mining": {"positive": "all", "negative": "all"}},
        partial(triplets.mined, term=triplets.hinge(0.5, squared=True), positive="all", negative="all"),
    ),
    Variant("trip_semihard", _trip_semihard, _trip_semihard_value),
]

MMD = [
    *(
        Variant(label, {"regularizers": [{"name": name, "weight": 1.0}]}, _regularizer(phi))
        for label, name, phi in [
            ("dcdl_laplacian", "mmd-laplacian", transport.mmd_laplacian),
            ("dcdl_gaussian", "mmd-gaussian", transport.mmd_gaussian),
            ("dcdl_energy", "energy", transport.energy),
        ]
    ),
    *(
        Variant(f"{name}_{key}", {"regularizers": [{"name": name, key: setting}]}, reference)
        for name, key, setting, reference in [
            ("energy", "power", 1, _regularizer(partial(transport.energy, power=1))),
            ("mmd-laplacian", "half", True, _regularizer(transport.mmd_laplacian, 0.5)),
            ("mmd-gaussian", "sigma", 0.5, _regularizer(partial(transport.mmd_gaussian, sigma=0.5))),
            ("mmd-laplacian", "sigma", 0.5, _regularizer(partial(transport.mmd_laplacian, sigma=0.5))),
        ]
    ),
    *(
        Variant(
            f"{name}_widths",
            {"regularizers": [{"name": name, "sigma": [0.05, 0.3, 2]}]},
            _regularizer(partial(transport.mmd_of_widths, sigmas=[0.05, 0.3, 2], power=power)),
        )
        for name, power in [("mmd-laplacian", 1), ("mmd-gaussian", 2)]
    ),
    Variant(
        "train_trip_l",
        _with(_trip_semihard, {"name": "mmd-laplacian", "weight": 0.2}),
        _sum(_trip_semihard_value, _regularizer(transport.mmd_laplacian, 0.2)),
    ),
]

# Compared with the converged plan, so to the solver's tolerance instead of rounding.
TRANSPORT = [
    *(
        Variant(
            label,
            {"regularizers": [{"name": "wasserstein", "weight": 1.0, "form": form}]},
            _regularizer(partial(transport.transport, form=form)),
        )
        for label, form in [("dcdl_eq11", "entropic"), ("dcdl_kl", "kl"), ("dcdl_sharp", "sharp")]
    ),
    Variant(
        "dcdl_default",
        {"regularizers": [{"name": "wasserstein", "weight": 1.0}]},
        _regularizer(transport.transport),
    ),
    Variant(
        "dcdl_sd",
        {"regularizers": [{"name": "wasserstein", "weight": 1.0, "debias": True}]},
        _regularizer(transport.debiased_transport),
    ),
    Variant(
        "train_trip_w",
        _with(_trip_semihard, {"name": "wasserstein", "weight": 0.5, "form": "entropic"}),
        _sum(_trip_semihard_value, _regularizer(partial(transport.transport, form="entropic"), 0.5)),
    ),
]

NEIGHBOURS = [
    Variant("histogram", {"name": "histogram"}, other_losses.histogram),
    Variant("histogram_7", {"name": "histogram", "bins": 7}, partial(other_losses.histogram, cells=7)),
    Variant("fast_ap", {"name": "fast-ap"}, other_losses.fast_ap),
    Variant("fast_ap_25", {"name": "fast-ap", "bins": 25}, partial(other_losses.fast_ap, cells=25)),
    Variant("recall_at_k", {"name": "recall-at-k"}, ranks.recall_at_k),
    Variant(
        "recall_at_k_released",
        {"name": "recall-at-k", "form": "released"},
        partial(ranks.recall_at_k, released=True),
    ),
    Variant(
        "recall_at_k_options",
        {"name": "recall-at-k", "ks": [2, 3], "temperature": 0.1, "rank_temperature": 0.4},
        partial(ranks.recall_at_k, ks=(2, 3), temperature=0.1, rank_temperature=0.4),
    ),
    Variant("smooth_ap", {"name": "smooth-ap"}, ranks.smooth_ap),
    Variant(
        "smooth_ap_warm",
        {"name": "smooth-ap", "temperature": 0.2},
        partial(ranks.smooth_ap, temperature=0.2),
    ),
    Variant("spread_out", {"regularizers": [{"name": "spread-out"}]}, other_losses.spread_out),
    *(
        Variant(
            f"margin_{positive}_{negative}",
            {"name": "margin", "mining": {"positive": positive, "negative": negative}},
            partial(other_losses.margin, positive=positive, negative=negative),
        )
        for positive, negative in [("all", "hard"), ("all", "semi-hard"), ("hard", "all")]
    ),
    Variant(
        "margin_boundary",
        {
            "name": "margin",
            "margin": 0.1,
            "boundary": 0.9,
            "mining": {"positive": "all", "negative": "hard"},
        },
        partial(other_losses.margin, margin=0.1, boundary=0.9),
    ),
]

CONTRAST = [
    *(
        Variant(name.replace("-", "_"), {"name": name}, function)
        for name, function in [
            ("supcon", contrast.supcon),
            ("info-nce", contrast.info_nce),
            ("circle", contrast.circle),
            ("siglip", contrast.siglip),
            ("cosent", contrast.cosent),
        ]
    ),
    Variant("cosent_scale", {"name": "cosent", "scale": 3.0}, partial(contrast.cosent, scale=3.0)),
    *(
        Variant(
            f"{function.__name__}_guard_{guard}",
            {"name": name, "temperature": 0.2, "guard": guard},
            partial(function, temperature=0.2, guard=guard),
        )
        for name, function in [("supcon", contrast.supcon), ("info-nce", contrast.info_nce)]
        for guard in (0.1, -0.2)
    ),
    Variant(
        "circle_options",
        {"name": "circle", "margin": 0.25, "scale": 16.0},
        partial(contrast.circle, margin=0.25, scale=16.0),
    ),
    Variant(
        "siglip_options",
        {"name": "siglip", "scale": 5.0, "bias": -1.0},
        partial(contrast.siglip, scale=5.0, bias=-1.0),
    ),
    *(
        Variant(f"{name}_vthm", {"name": name, "mining": _vthm}, partial(function, mining=0.1))
        for name, function in [
            ("supcon", contrast.supcon),
            ("info-nce", contrast.info_nce),
            ("circle", contrast.circle),
            ("siglip", contrast.siglip),
        ]
    ),
]

VARIANTS = [*LOOP, *SCT, *RAW, *SYMM, *DCDL, *MMD, *NEIGHBOURS, *CONTRAST]
