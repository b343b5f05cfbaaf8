"""Every variant equals its loop-based float64 reference, and the references equal a peer library."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as pml

from train import losses

from .oracle import (
    contrast,
    geometry,
    hardest,
    other_losses,
    ranks,
    symmetrical,
    transport,
    triplets,
    weighted,
)
from .oracle.batches import BATCHES, CLOSED_SET, Batch, make_batch
from .oracle.combinations import COMBINATIONS
from .oracle.pairs import negatives, ordered, positives
from .oracle.registry import TRANSPORT, VARIANTS, Variant

CLASSES = 4


def value(spec: dict[str, Any], batch: Batch, dtype: torch.dtype = torch.float64) -> float:
    """Return the value of losses.build(spec) on the batch."""
    loss = losses.build(spec, num_classes=CLASSES, embedding_dim=batch.x.shape[1])
    return float(loss(torch.tensor(batch.x, dtype=dtype), torch.tensor(batch.y)))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("variant", [*VARIANTS, *COMBINATIONS], ids=lambda v: v.label)
def test_equals_reference(variant: Variant, batch: Batch) -> None:
    expected = variant.function(batch.x, batch.y)
    assert value(variant.spec, batch) == pytest.approx(expected, rel=1e-9, abs=1e-11)
    # The same up to the rounding of its inputs: a similarity off by 1e-7 moves e^{50 s} by 5e-6.
    assert value(variant.spec, batch, torch.float32) == pytest.approx(expected, rel=2e-4, abs=2e-5)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from([*VARIANTS, *COMBINATIONS]),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from([5, 16]),
    st.sampled_from([None, 0.1, 0.5, 1.5]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_equals_reference_on_any_batch(
    variant: Variant, sizes: list[int], dim: int, spread: float | None, raw: bool, seed: int
) -> None:
    """Any class sizes. In three dimensions and fewer arcs touch, and the root of a rounded 0 is 1e-8."""
    batch = make_batch(seed, sizes, dim=dim, spread=spread, raw=raw)
    expected = variant.function(*batch)
    assert value(variant.spec, batch) == pytest.approx(expected, rel=1e-9, abs=2e-11)


@pytest.mark.parametrize("batch", ["regular-clustered-raw", "irregular-iid-raw", "tight-unit"])
@pytest.mark.parametrize("variant", TRANSPORT, ids=lambda v: v.label)
def test_transport_equals_converged_reference(variant: Variant, batch: str) -> None:
    """Both solvers are iterative: the reference to a marginal error of 1e-11, ours by default to 1e-10.

    Mass of that size carried over costs within [0, 2] moves a class by less than 1e-9; float32 stops at
    1e-5, and 1e-4 is left for its rounding.
    """
    expected = variant.function(*BATCHES[batch])
    assert value(variant.spec, BATCHES[batch]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert value(variant.spec, BATCHES[batch], torch.float32) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_similarity_mixup_equals_mixed_points(batch: Batch) -> None:
    """The points themselves are mixed in the reference, their similarities in the loss."""
    y = np.array(batch.y)
    pairs = sum(math.comb(size, 2) for size in np.unique(y, return_counts=True)[1])
    torch.manual_seed(4)
    found = value({"name": "recall-at-k", "mixup": True}, batch)
    torch.manual_seed(4)
    points = ranks.with_mixtures(*batch, torch.rand(pairs, dtype=torch.float64).tolist())
    assert found == pytest.approx(ranks.recall_at_k(*points, normalized=True), rel=1e-9)
    assert len(points[0]) > len(y)


@pytest.mark.parametrize("batch", CLOSED_SET.values(), ids=CLOSED_SET)
@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ({"name": "proxy-nca"}, lambda x, y, p: other_losses.proxy_nca(x, y, p, scale=3)),
        ({"name": "proxy-nca", "scale": 1.0}, lambda x, y, p: other_losses.proxy_nca(x, y, p)),
        (
            {"name": "proxy-nca", "include_positive": True},
            lambda x, y, p: other_losses.proxy_nca(x, y, p, scale=3, include_positive=True),
        ),
        ({"name": "proxy-anchor"}, other_losses.proxy_anchor),
        ({"name": "soft-triple", "centers": 3}, lambda x, y, p: other_losses.soft_triple(x, y, p)),
        ({"name": "normalized-softmax"}, lambda x, y, p: other_losses.normalized_softmax(x, y, p, 20)),
        (
            {"name": "normalized-softmax", "scale": 8.0, "margin": 0.35},
            lambda x, y, p: other_losses.normalized_softmax(x, y, p, 8, cosine_margin=0.35),
        ),
        (
            {"name": "normalized-softmax", "scale": 8.0, "margin": 0.3, "margin_type": "angle"},
            lambda x, y, p: other_losses.normalized_softmax(x, y, p, 8, angular_margin=0.3),
        ),
    ],
    ids=lambda v: " ".join(map(str, v.values())) if isinstance(v, dict) else "",
)
def test_proxies_equal_reference(spec: dict[str, Any], reference: Callable[..., float], batch: Batch) -> None:
    torch.manual_seed(0)
    loss = losses.build(spec, num_classes=CLASSES, embedding_dim=batch.x.shape[1]).double()
    (proxies,) = [p.detach().numpy() for p in loss.parameters()]
    if spec["name"] == "soft-triple":  # one row per centre: those of a class stand together
        proxies = proxies.reshape(CLASSES, spec["centers"], -1)
    expected = reference(batch.x, batch.y, proxies)
    assert float(loss(torch.tensor(batch.x), torch.tensor(batch.y))) == pytest.approx(expected, rel=1e-9)


def test_cross_entropy_equals_reference() -> None:
    batch = CLOSED_SET["irregular-raw"]
    spec = {"name": "triplet", "regularizers": [{"name": "cross-entropy", "weight": 0.25}]}
    loss = losses.build(spec, num_classes=CLASSES, embedding_dim=batch.x.shape[1]).double()
    parameters = {p.ndim: p.detach().numpy() for p in loss.parameters()}
    head = other_losses.linear_cross_entropy(batch.x, batch.y, parameters[2], parameters.get(1))
    expected = triplets.over_pairs(*batch, term=triplets.hinge()) + 0.25 * head
    assert float(loss(torch.tensor(batch.x), torch.tensor(batch.y))) == pytest.approx(expected, rel=1e-9)


# What the diagnostics count.

DIAGNOSED = BATCHES["irregular-iid-raw"]


def diagnosed(spec: dict[str, Any]) -> dict[str, float]:
    """Return the diagnostics of one call."""
    loss = losses.build(spec)
    loss(torch.tensor(DIAGNOSED.x), torch.tensor(DIAGNOSED.y))
    return {name: float(number) for name, number in loss.diagnostics.items()}


@pytest.mark.parametrize(
    ("spec", "term", "found"),
    [
        (
            {"name": "triplet", "margin": 0.05, "mining": {"positive": p, "negative": n}},
            triplets.hinge(0.05),
            triplets.mine(geometry.unit_rows(DIAGNOSED.x), DIAGNOSED.y, p, n),
        )
        for p, n in [("easy", "hard"), ("hard", "semi-hard"), ("all", "all")]
    ]
    + [
        (
            {"name": "triplet", "margin": 0.05, "negatives": "optimal", "mining": {"negative": "all"}},
            triplets.hinge(0.05),
            triplets.mine_pairs(geometry.unit_rows(DIAGNOSED.x), DIAGNOSED.y, "optimal", "all"),
        )
    ],
    ids=["easy-hard", "hard-semi-hard", "all-all", "optimal"],
)
def test_diagnostics_count_the_triplets(spec: dict[str, Any], term: Any, found: list[Any]) -> None:
    """Shares of active and of hard triplets, and the mean similarities of all pairs."""
    diagnostics = diagnosed(spec)
    active = sum(term(ap, an) > 0 for ap, an in found) / len(found)
    hard = sum(an < ap for ap, an in found) / len(found)
    assert diagnostics["active_share"] == pytest.approx(active, abs=1e-6)
    assert diagnostics["hard_share"] == pytest.approx(hard, abs=1e-6)
    s = weighted.similarities(DIAGNOSED.x)
    near = [s[i][j] for i, j in ordered(DIAGNOSED.y)]
    far = [s[i][k] for i in range(len(DIAGNOSED.y)) for k in negatives(DIAGNOSED.y, i)]
    assert diagnostics["mean_positive"] == pytest.approx(np.mean(near), rel=1e-6)
    assert diagnostics["mean_negative"] == pytest.approx(np.mean(far), rel=1e-6)


# The references themselves, against pytorch-metric-learning where both define the same quantity.

COSINE = {"distance": distances.CosineSimilarity()}
SQUARED = {"distance": distances.LpDistance(power=2)}
MEAN = {"reducer": reducers.MeanReducer()}


def peer(batch: Batch, loss: torch.nn.Module, miner: torch.nn.Module | None = None) -> float:
    """Return the value of a pytorch-metric-learning loss."""
    x, y = torch.tensor(batch.x), torch.tensor(batch.y)
    return float(loss(x, y, miner(x, y)) if miner else loss(x, y))


def nca_peer(rule: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """softplus(s_an − s_ap) over the easy positive and the negative of the rule."""
    return (
        pml.TripletMarginLoss(margin=0, smooth_loss=True, **COSINE, **MEAN),
        miners.BatchEasyHardMiner("easy", rule, distance=distances.CosineSimilarity()),
    )


def raw_peer(positive: str, negative: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """RAW on the pairs of mined triplets, each pair counted once."""
    miner = miners.BatchEasyHardMiner(positive, negative, distance=distances.CosineSimilarity())
    return pml.MultiSimilarityLoss(2, 50, 0.5), miner


PEERS: dict[str, tuple[Callable[..., float], Callable[[], tuple[Any, ...]]]] = {
    "triplet-cosine": (
        lambda x, y: triplets.mined(x, y, triplets.cosine_hinge(0.1), positive="all", negative="all"),
        lambda: (pml.TripletMarginLoss(0.1, **COSINE, **MEAN),),
    ),
    "triplet-all": (
        lambda x, y: triplets.mined(x, y, triplets.hinge(0.5, True), positive="all", negative="all"),
        lambda: (pml.TripletMarginLoss(0.5, **SQUARED, **MEAN),),
    ),
    "triplet-all-active": (
        lambda x, y: triplets.mined(
            x, y, triplets.hinge(0.5, True), reduction="mean-active", positive="all", negative="all"
        ),
        lambda: (pml.TripletMarginLoss(0.5, **SQUARED),),
    ),
    "nca-hard": (lambda x, y: triplets.mined(x, y, triplets.nca()), lambda: nca_peer("hard")),
    "nca-semi-hard": (
        lambda x, y: triplets.mined(x, y, triplets.nca(), negative="semi-hard"),
        lambda: nca_peer("semihard"),
    ),
    "batch-hard": (
        lambda x, y: triplets.mined(x, y, triplets.hinge(), positive="hard", negative="hard"),
        lambda: (pml.TripletMarginLoss(0.2, **MEAN), miners.BatchHardMiner()),
    ),
    "raw": (
        lambda x, y: weighted.raw(x, y, mining=None),
        lambda: (pml.MultiSimilarityLoss(2, 50, 0.5),),
    ),
    "raw-vthm": (
        weighted.raw,
        lambda: (pml.MultiSimilarityLoss(2, 50, 0.5), miners.MultiSimilarityMiner(0.1)),
    ),
    **{
        f"raw-{positive}-{negative}": (
            partial(weighted.raw, mining={"positive": positive, "negative": rule}),
            partial(raw_peer, positive, negative),
        )
        for positive, negative, rule in [
            ("easy", "semihard", "semi-hard"),
            ("hard", "hard", "hard"),
        ]
    },
    "lifted": (symmetrical.lifted, lambda: (pml.LiftedStructureLoss(neg_margin=1, pos_margin=0),)),
    "fast-ap": (other_losses.fast_ap, lambda: (pml.FastAPLoss(10),)),
    "histogram": (other_losses.histogram, lambda: (pml.HistogramLoss(100),)),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", PEERS)
def test_reference_equals_peer(name: str, batch: Batch) -> None:
    reference, build = PEERS[name]
    tolerance = 1e-5 if name == "histogram" else 1e-9  # the peer places its bins in float32
    assert reference(*batch) == pytest.approx(peer(batch, *build()), rel=tolerance)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_reference_equals_peer_after_normalisation(batch: Batch) -> None:
    """If the peer averages over other counts, known counts relate the two."""
    x, y = batch
    size = len(y)
    pairs, others = len(ordered(y)), sum(len(negatives(y, i)) for i in range(size))
    near = peer(batch, pml.ContrastiveLoss(pos_margin=1, neg_margin=2, **COSINE, **MEAN))
    both = peer(batch, pml.ContrastiveLoss(pos_margin=1, neg_margin=0.5, **COSINE, **MEAN))
    expected = (pairs * near + others * (both - near)) / size
    assert weighted.contrastive(x, y, offset=1) == pytest.approx(expected, rel=1e-9)

    count = sum(len(positives(y, i)) * len(negatives(y, i)) for i in range(size))
    mean = peer(batch, pml.TripletMarginLoss(0.2, **SQUARED, **MEAN))
    total = triplets.over_pairs(x, y, triplets.hinge(0.2, True), pairs="ordered")
    assert total == pytest.approx(mean * count / pairs, rel=1e-9)

    lonely = [i for i in range(size) if not positives(y, i)]
    if not lonely:
        expected = peer(batch, pml.GeneralizedLiftedStructureLoss(neg_margin=-0.5, pos_margin=0, **COSINE))
        assert weighted.generalized_lifted(x, y) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_references_of_contrast_equal_peers(batch: Batch) -> None:
    """The peers average over the anchors, or the pairs, that have a positive."""
    x, y = batch
    paired = [i for i in range(len(y)) if positives(y, i)]
    of_anchors = len(paired) / len(y)
    assert contrast.supcon(x, y) == pytest.approx(of_anchors * peer(batch, pml.SupConLoss(0.1)), rel=1e-9)
    circle = peer(batch, pml.CircleLoss(m=0.4, gamma=80, **MEAN))
    assert contrast.circle(x, y) == pytest.approx(circle, rel=1e-9)
    if len({len(positives(y, i)) for i in range(len(y))}) == 1:
        assert contrast.info_nce(x, y) == pytest.approx(peer(batch, pml.NTXentLoss(0.1, **MEAN)), rel=1e-9)


def test_info_nce_and_supcon_are_one_loss_of_pairs() -> None:
    batch = make_batch(13, (2, 2, 2, 2), raw=True)
    assert value({"name": "info-nce"}, batch) == pytest.approx(value({"name": "supcon"}, batch), rel=1e-12)


def test_reference_smooth_ap_equals_peer() -> None:
    """The peer counts the anchor among its positives.

    It wants classes of one size, in order, and takes that size for their number: so three classes of three.
    """
    batch = make_batch(12, (3, 3, 3), spread=1.0, raw=True, shuffle=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "zeros", partial(torch.zeros, dtype=torch.float64))  # it collects in float32
        expected = peer(batch, pml.SmoothAPLoss(0.05, **MEAN))
    found = ranks.smooth_ap(*batch, temperature=0.05, own_positive=True)
    assert found == pytest.approx(expected, rel=1e-9)


def test_reference_n_pair_equals_peer() -> None:
    """One pair per class, raw dot products."""
    batch = make_batch(11, (2, 2, 2, 2), raw=True)
    loss = pml.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False))
    assert symmetrical.n_pair(*batch, candidates="positives") == pytest.approx(peer(batch, loss), rel=1e-9)


# Facts about the references that need no other implementation.


def test_mirrored_points() -> None:
    """Symm section 3.1: lengths and the distance to the axis are kept; the angles become 2θ and 3θ."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=(2, 5))
        a, b = a, b * np.sign(a @ b)  # an acute angle, so that 3θ needs no wrapping below 60°
        image, other = geometry.mirror(a, b), geometry.mirror(b, a)
        assert image @ image == pytest.approx(a @ a)
        assert image @ b == pytest.approx(a @ b)
        assert geometry.distance(image, b) == pytest.approx(geometry.distance(a, b))

        def angle(u: np.ndarray, v: np.ndarray) -> float:
            return math.acos(max(-1.0, min(1.0, float(geometry.unit(u) @ geometry.unit(v)))))

        theta = angle(a, b)
        assert math.cos(angle(a, image)) == pytest.approx(math.cos(2 * theta))
        assert math.cos(angle(image, other)) == pytest.approx(math.cos(3 * theta))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_transport_forms(batch: Batch) -> None:
    """KL form = eq. 11 + ε (ln n + ln m + 1); sharp ≤ KL; twice the energy is MMD² with the kernel −D."""
    z = geometry.unit_rows(batch.x)
    inside = [i for i, c in enumerate(batch.y) if c == batch.y[0]]
    outside = [i for i, c in enumerate(batch.y) if c != batch.y[0]]
    u, v = z[inside], z[outside]
    kl, entropic = transport.transport(u, v, "kl"), transport.transport(u, v, "entropic")
    shift = transport.EPSILON * (math.log(len(u)) + math.log(len(v)) + 1)
    assert kl == pytest.approx(entropic + shift, rel=1e-9)
    assert 0 <= transport.transport(u, v, "sharp") <= kl + 1e-12
    half = 0.5 * transport.mmd(u, v, lambda d: -0.5 * d * d)
    assert transport.energy(u, v) == pytest.approx(half, rel=1e-9)
    assert hardest.hphn_triplet(*batch) >= hardest.lifted_hard(*batch)
