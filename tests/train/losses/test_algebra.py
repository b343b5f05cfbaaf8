"""All combinations of loss, source of negatives, miner, regularizers and memory, and invalid ones."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train import losses
from train.losses.mining import TripletMiner

from .oracle import triplets, weighted
from .oracle.batches import make_batch
from .oracle.matrix import CLASSES, DIM, MATRIX, REFUSED, Combination, build, has_parameters

BATCH = make_batch(31, (3, 4, 2, 3), dim=DIM, spread=1.0, raw=True)
Y = torch.tensor(BATCH.y)
REGULARIZERS = list(losses.names("regularizer"))
FREE = [c for c in MATRIX if not c.random and not has_parameters(build(c.spec))]
every_combination = pytest.mark.parametrize("combination", MATRIX, ids=lambda c: c.label)


def evaluate(module: torch.nn.Module, x: np.ndarray, y: torch.Tensor) -> tuple[float, np.ndarray]:
    """Return value and gradient, with a fixed seed for random miners."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes 1 ms where CUDA is not in use
    leaf = torch.tensor(x, requires_grad=True)
    value = module(leaf, y)
    value.backward()
    assert leaf.grad is not None
    return float(value), leaf.grad.numpy()


@functools.cache
def first(label: str) -> tuple[Any, float, np.ndarray]:
    """Return the module of a combination with the value and the gradient of its first batch."""
    (combination,) = (one for one in MATRIX if one.label == label)
    module = build(combination.spec)
    return module, *evaluate(module, BATCH.x, Y)


def test_accepted_combinations_build() -> None:
    """All sources and miners in losses.names() are accepted, except distance weighting off the sphere."""
    assert set(REFUSED) <= {"triplet optimal-segment distance-weighted"}


def test_invalid_combinations_are_refused_by_build() -> None:
    """An invalid recipe fails before training starts, not at the first step."""
    assert set(REFUSED.values()) <= {"build"}


@every_combination
def test_value_and_gradient(combination: Combination) -> None:
    """Finite, with a nonzero gradient; diagnostics are detached scalars."""
    module, value, gradient = first(combination.label)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 1e-6
    diagnostics = module.diagnostics
    assert diagnostics
    for name, number in diagnostics.items():
        scalar = torch.as_tensor(number)
        assert scalar.ndim == 0, name
        assert not scalar.requires_grad, name
        assert torch.isfinite(scalar.double()), name


@every_combination
def test_value_does_not_depend_on_the_order_of_the_batch(combination: Combination) -> None:
    """Interleaving classes differently changes nothing, nor does any order if no pairs are formed."""
    if combination.random:
        pytest.skip("another order is another draw")
    module, value, gradient = first(combination.label)
    rng = np.random.default_rng(0)
    for _ in range(2):
        order = rng.permutation(len(BATCH.y))
        if combination.alternate:  # put the samples of every class back in their order
            labels = np.array(BATCH.y)[order]
            for c in set(BATCH.y):
                order[labels == c] = np.sort(order[labels == c])
        moved, moved_gradient = evaluate(module, BATCH.x[order], Y[order])
        assert moved == pytest.approx(value, rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(moved_gradient, gradient[order], rtol=1e-7, atol=1e-9)


@every_combination
def test_rotation_invariance(combination: Combination) -> None:
    """An orthogonal map of all embeddings keeps the value and rotates the gradient."""
    module, value, gradient = first(combination.label)
    if has_parameters(module):
        pytest.skip("proxies would have to turn too")
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, DIM)))[0]
    turned, turned_gradient = evaluate(module, BATCH.x @ rotation, Y)
    assert turned == pytest.approx(value, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(turned_gradient, gradient @ rotation, rtol=1e-6, atol=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_value_does_not_depend_on_label_values(data: st.DataObject) -> None:
    """Any injective renaming of the classes, negative and huge labels included, changes nothing."""
    combination = data.draw(st.sampled_from(FREE))
    names = data.draw(st.lists(st.integers(-(2**62), 2**62), min_size=CLASSES, max_size=CLASSES, unique=True))
    module = build(combination.spec)
    expected = evaluate(module, BATCH.x, Y)[0]
    assert evaluate(module, BATCH.x, torch.tensor(names)[Y])[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "regularizer"),
    [
        *zip(losses.names(), itertools.cycle(REGULARIZERS), strict=False),
        *itertools.product(["triplet", "proxy-nca"], REGULARIZERS),
    ],
)
def test_regularizer_is_added_to_every_loss(name: str, regularizer: str) -> None:
    """The value is linear in its weight, with a nonzero slope."""

    def value(weight: float) -> float:
        torch.manual_seed(5)
        return evaluate(
            build({"name": name, "regularizers": [{"name": regularizer, "weight": weight}]}), BATCH.x, Y
        )[0]

    none, one, three = value(0.0), value(1.0), value(3.0)
    assert three - none == pytest.approx(3 * (one - none), rel=1e-7)
    assert one != none
    alone = build({"name": name})
    if not has_parameters(alone):
        assert none == pytest.approx(evaluate(alone, BATCH.x, Y)[0], rel=1e-12)


@pytest.mark.parametrize(
    "chosen", [*itertools.combinations(REGULARIZERS, 2), tuple(REGULARIZERS)], ids="+".join
)
def test_several_regularizers_are_summed(chosen: tuple[str, ...]) -> None:
    """With separate weights, including cross-entropy, and also without a loss."""
    weights = [0.3 + 0.2 * k for k in range(len(chosen))]
    parts = [{"name": n, "weight": w} for n, w in zip(chosen, weights, strict=True)]

    def value(spec: dict[str, Any]) -> float:
        torch.manual_seed(5)
        return evaluate(build(spec), BATCH.x, Y)[0]

    base = {"name": "triplet", "negatives": "optimal"}
    separate = [value({"regularizers": [part]}) for part in parts]
    assert value({"regularizers": parts}) == pytest.approx(sum(separate), rel=1e-9)
    together = value({**base, "regularizers": parts})
    assert together == pytest.approx(value(base) + sum(separate), rel=1e-9)


# References and memory.


def split(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch and references of the same classes."""
    batch = make_batch(seed, (4, 4, 4), dim=DIM, spread=1.0)
    x, y = torch.tensor(batch.x), torch.tensor(batch.y)
    return x[:7], y[:7], x[7:], y[7:]


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ({"name": "contrastive"}, weighted.contrastive),
        ({"name": "binomial-deviance"}, weighted.binomial_deviance),
        ({"name": "raw"}, weighted.raw),
        (
            {"name": "raw", "mining": None},
            lambda x, y, anchors: weighted.raw(x, y, mining=None, anchors=anchors),
        ),
        (
            {"name": "triplet-nca"},
            lambda x, y, anchors: triplets.mined(x, y, triplets.nca(), anchors=anchors),
        ),
        (
            {"name": "triplet", "mining": {"positive": "all", "negative": "semi-hard"}},
            lambda x, y, anchors: triplets.mined(
                x, y, triplets.hinge(), positive="all", negative="semi-hard", anchors=anchors
            ),
        ),
    ],
    ids=["contrastive", "binomial", "raw", "raw-unmined", "nca", "triplet"],
)
def test_references_add_positives_and_negatives(spec: dict[str, Any], reference: Any) -> None:
    """Anchors come from the batch, candidates from batch and references."""
    for seed in range(4):
        x, y, ref, ref_y = split(seed)
        value = build(spec)(x, y, ref_embeddings=ref, ref_labels=ref_y)
        everything = torch.cat([x, ref]).numpy(), torch.cat([y, ref_y]).tolist()
        assert float(value) == pytest.approx(reference(*everything, anchors=len(y)), rel=1e-9)


WITHOUT_MEMORY = {"proxy-nca", "proxy-anchor", "soft-triple", "normalized-softmax"}
PAIRED = [n for n in losses.names() if n not in WITHOUT_MEMORY]


@pytest.mark.parametrize("name", PAIRED)
def test_memory_equals_past_batches_as_references(name: str) -> None:
    x, y, past, past_y = split(3)
    remembering = build({"name": name, "memory": len(past)})
    remembering(past, past_y)
    assert not torch.isnan(remembering(x, y))
    torch.manual_seed(0)
    fresh = build({"name": name, "memory": len(past)})
    fresh(past.requires_grad_(), past_y)
    torch.manual_seed(1)
    value = fresh(x.requires_grad_(), y)
    torch.manual_seed(1)
    expected = build({"name": name})(x, y, ref_embeddings=past.detach(), ref_labels=past_y)
    assert float(value) == pytest.approx(float(expected), rel=1e-9)
    value.backward()
    assert past.grad is None  # the memory is detached


def test_memory_drops_the_oldest_first() -> None:
    spec = {"name": "contrastive", "memory": 8}
    module = build(spec)
    x = torch.tensor(make_batch(1, (4, 4, 4, 6), dim=DIM).x)
    y = torch.tensor(make_batch(1, (4, 4, 4, 6), dim=DIM).y)
    for start in (0, 6):
        module(x[start : start + 6], y[start : start + 6])
    value = module(x[12:], y[12:])
    expected = build({"name": "contrastive"})(x[12:], y[12:], ref_embeddings=x[4:12], ref_labels=y[4:12])
    assert float(value) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("name", PAIRED)
def test_resumed_memory_continues(name: str) -> None:
    """All state is in the state dict."""
    x, y, past, past_y = split(4)
    module, resumed = (build({"name": name, "memory": 9}) for _ in range(2))
    module(past, past_y)
    resumed.load_state_dict(module.state_dict())
    for batch, labels in ((x, y), (past, past_y)):
        values = []
        for each in (module, resumed):
            torch.manual_seed(2)
            values.append(float(each(batch, labels)))
        assert values[0] == values[1]


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_memory_source_miner_and_regularizer_together(regularizer: str) -> None:
    module = build(
        {
            "name": "triplet",
            "negatives": "optimal",
            "mining": {"negative": "hard"},
            "memory": 16,
            "regularizers": [{"name": regularizer, "weight": 0.5}, {"name": "cross-entropy", "weight": 0.1}],
        }
    )
    for _ in range(3):
        value, gradient = evaluate(module, BATCH.x, Y)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


# Refusals.


def refusal(spec: Any) -> str:
    """Return the error message of build."""
    with pytest.raises(ValueError) as error:  # noqa: PT011 - every caller looks at the message
        losses.build(spec, num_classes=CLASSES, embedding_dim=DIM)
    return str(error.value)


@pytest.mark.parametrize("name", sorted(WITHOUT_MEMORY))
def test_memory_of_a_proxy_loss_is_refused(name: str) -> None:
    assert len(refusal({"name": name, "memory": 8}).split()) >= 6


@pytest.mark.parametrize(
    "spec",
    [
        {"name": None},
        {"name": "triplet", "margin": float("nan")},
        {"name": "triplet", "squared": 3},
        {"name": "triplet", "reduction": "median"},
        {"name": "triplet", "memory": -1},
        {"name": "triplet", "memory": 2.5},
        {"name": "histogram", "bins": 0},
        {"name": "angular", "angle": 90},
        {"name": "triplet", "negatives": {"name": "interpolated", "points": -1}},
        {"name": "triplet", "regularizers": [{"name": "wasserstein", "epsilon": 0}]},
        {"name": "triplet", "regularizers": [{"name": "wasserstein", "weight": "heavy"}]},
        {"name": "triplet", "regularizers": [{"weight": 1.0}]},
        {"name": "triplet", "regularizers": "wasserstein"},
        {"name": "triplet", "mining": "hard"},
        {"name": "triplet", "negatives": "optimal", "normalize": False},
        {"name": "n-pair", "negatives": "optimal-segment", "normalize": False},
    ],
    ids=str,
)
def test_invalid_values_are_refused(spec: dict[str, Any]) -> None:
    assert refusal(spec)


# Random miners: their draws from a batch with one anchor.


def drawn(negative: str, cosines: np.ndarray, dim: int, draws: int) -> np.ndarray:
    """Return how often each negative, at a given cosine from the only anchor, is drawn."""
    anchor = torch.zeros(1, dim, dtype=torch.float64)
    anchor[0, 0] = 1
    others = torch.zeros(len(cosines), dim, dtype=torch.float64)
    others[:, 0] = torch.tensor(cosines)
    others[:, 1] = (1 - others[:, 0] ** 2).sqrt()
    references = torch.cat([anchor, others])
    labels = torch.tensor([0, *range(1, len(cosines) + 1)])
    loss = losses.build({"name": "triplet-cosine", "margin": 4.0, "mining": {"negative": negative}})
    torch.manual_seed(0)
    counts = np.zeros(len(cosines))
    for _ in range(draws):
        value = loss(anchor, labels[:1], ref_embeddings=references, ref_labels=labels)
        counts[np.abs(cosines - (float(value) + 1 - 4)).argmin()] += 1
    return counts


def test_random_negatives_are_uniform() -> None:
    counts = drawn("random", np.array([0.9, 0.5, 0.2, -0.3, -0.8]), 6, 1500)
    assert ((counts - 300) ** 2 / 300).sum() < 18.5  # χ² with 4 degrees of freedom: 1 in 1000


def test_distance_weighted_negatives_follow_their_density() -> None:
    dim, cosines = 8, np.array([0.97, 0.8, 0.5, 0.1, -0.5])
    expected = 1500 * density_of_draws(cosines, dim)
    counts = drawn("distance-weighted", cosines, dim, 1500)
    assert counts[4] == 0
    assert ((counts - expected)[:4] ** 2 / expected[:4]).sum() < 16.3  # χ² with 3 degrees: 1 in 1000


def density_of_draws(cosines: np.ndarray, dim: int) -> np.ndarray:
    """p ∝ 1/q(d), q the density of distances on the sphere, d no less than 0.5, none beyond 1.4 (Wu 2017)."""
    d = np.maximum(np.sqrt(2 - 2 * cosines), 0.5)
    log_q = (dim - 2) * np.log(d) + (dim - 3) / 2 * np.log(1 - d**2 / 4)
    weight = np.where(d <= 1.4, np.exp(-log_q), 0)
    return np.asarray(weight / weight.sum())


def test_pair_losses_count_a_negative_that_several_positives_draw_once() -> None:
    """Three positives draw one negative each: negative k counts with probability 1 - (1 - p_k)³."""
    dim, draws, cosines = 8, 2000, np.array([0.97, 0.8, 0.5, 0.1, -0.5])
    near = torch.tensor([0.9, 0.8, 0.7, *[0.0] * 5]).double().expand(draws, 8)  # an anchor for each draw
    far = torch.tensor([0.0, 0.0, 0.0, *cosines]).double().expand(draws, 8)
    positive = (torch.arange(8) < 3).expand(draws, 8)
    torch.manual_seed(0)
    kept, drawn = TripletMiner(negative="distance-weighted").select(near, positive, far, ~positive, dim=dim)
    assert torch.equal(kept, positive)
    assert set(drawn.sum(1).tolist()) == {1, 2, 3}
    counts = drawn[:, 3:].sum(0).numpy()
    expected = 1 - (1 - density_of_draws(cosines, dim)) ** 3
    spread = np.sqrt(expected * (1 - expected) / draws)
    assert np.all(np.abs(counts / draws - expected) <= 4 * spread)
    assert np.ptp(expected) > 0.3


RAW_TABLE_1: dict[str, dict[str, Any]] = {
    "Binomial": {"name": "binomial-deviance"},
    "RAW": {"name": "raw", "mining": None},
    "VTHM": {"name": "equal-weight", "mining": {"name": "vthm", "margin": 0.1}},
    "Binomial+VTHM": {"name": "binomial-deviance", "mining": {"name": "vthm", "margin": 0.1}},
    "RAW+DW": {"name": "raw", "mining": {"positive": "all", "negative": "distance-weighted"}},
    "RAW+SemiHard": {"name": "raw", "mining": {"positive": "all", "negative": "semi-hard"}},
    "RAW+VTHM": {"name": "raw", "mining": {"name": "vthm", "margin": 0.1}},
}


def test_rows_of_the_raw_ablation_are_seven_losses() -> None:
    """RAW, table 1: every row builds, and no two rows are the same loss."""
    values = [evaluate(build(spec), BATCH.x, Y)[0] for spec in RAW_TABLE_1.values()]
    assert len({round(value, 9) for value in values}) == 7


@pytest.mark.parametrize("negative", ["random", "distance-weighted"])
def test_random_miners_are_bounded_by_easiest_and_hardest(negative: str) -> None:
    """Every draw is between the easiest and the hardest triplets, and draws differ."""
    bounds = [
        triplets.mined(BATCH.x, BATCH.y, triplets.nca(), positive=p, negative=n)
        for p, n in (("hard", "hard"), ("easy", "hard"))
    ]
    module = build({"name": "triplet-nca", "mining": {"positive": "random", "negative": negative}})
    values = [float(module(torch.tensor(BATCH.x), Y)) for _ in range(30)]
    assert len({round(v, 12) for v in values}) > 5
    assert max(values) <= bounds[0] + 1e-12
    assert np.mean(values) < bounds[0]
