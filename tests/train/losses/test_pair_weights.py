"""Pair weights against the closed forms of RAW (eqs. 6, 8, 10, 11, 13-16), computed entry by entry."""

import math

import numpy as np
import pytest
import torch

from train import losses
from train.losses.mining import TripletMiner

Y = [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
B = len(Y)


@pytest.fixture(scope="module")
def s() -> np.ndarray:
    """Cosines of loose clusters, so that every threshold has entries on both sides."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 5))[Y] + 1.2 * rng.normal(size=(B, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def positives(i: int) -> list[int]:
    return [j for j in range(B) if Y[j] == Y[i] and j != i]


def negatives(i: int) -> list[int]:
    return [k for k in range(B) if Y[k] != Y[i]]


def found(spec: dict[str, object], s: np.ndarray) -> np.ndarray:
    module = losses.build(spec)
    return losses.pair_weights(module, torch.tensor(s), torch.tensor(Y)).numpy()


def test_contrastive(s: np.ndarray) -> None:
    """Eq. 6: every positive 1, every negative above the threshold 1."""
    expected = np.zeros((B, B))
    for i in range(B):
        for j in positives(i):
            expected[i, j] = 1
        for k in negatives(i):
            expected[i, k] = s[i, k] > 0.5
    np.testing.assert_allclose(found({"name": "contrastive", "threshold": 0.5}, s), expected, atol=1e-12)
    assert 0 < expected[0, negatives(0)].sum() < len(negatives(0))


def test_triplet(s: np.ndarray) -> None:
    """Eq. 8: the weight of a pair is the number of violated triplets that contain it."""
    margin = 0.1
    expected = np.zeros((B, B))
    for i in range(B):
        for j in positives(i):
            for k in negatives(i):
                if s[i, k] - s[i, j] + margin > 0:
                    expected[i, j] += 1
                    expected[i, k] += 1
    triplets = sum(len(positives(i)) * len(negatives(i)) for i in range(B))
    weights = found({"name": "triplet-cosine", "margin": margin}, s) * triplets / B
    np.testing.assert_allclose(weights, expected, atol=1e-12)


def test_generalized_lifted(s: np.ndarray) -> None:
    """Eqs. 10 and 11 where the hinge is active; both forms of eq. 10, and eq. 11 as its negatives' mirror."""
    expected = np.zeros((B, B))
    for i in range(B):
        pull = math.log(sum(math.exp(-s[i, j]) for j in positives(i)))
        push = math.log(sum(math.exp(0.5 + s[i, k]) for k in negatives(i)))
        if pull + push <= 0:
            continue
        for j in positives(i):
            expected[i, j] = 1 / sum(math.exp(s[i, j] - s[i, k]) for k in positives(i))
        for j in negatives(i):
            expected[i, j] = 1 / sum(math.exp(s[i, k] - s[i, j]) for k in negatives(i))
    weights = found({"name": "lifted-generalized", "margin": 0.5}, s)
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    assert expected.any()


def test_printed_lifted_pushes_the_easiest(s: np.ndarray) -> None:
    """With the sign that eq. 9 is printed with, the farthest negative weighs most: the opposite of eq. 11."""
    weights = found({"name": "lifted-generalized", "margin": -3.0, "form": "printed"}, s)
    corrected = found({"name": "lifted-generalized", "margin": 0.5}, s)
    for i in range(B):
        hardest = max(negatives(i), key=lambda k: s[i, k])
        easiest = min(negatives(i), key=lambda k: s[i, k])
        assert corrected[i, hardest] > corrected[i, easiest]
        if weights[i].any():
            assert weights[i, easiest] > weights[i, hardest]
    assert weights.any()


@pytest.mark.parametrize("slopes", ["printed", "normalized"])
def test_binomial(s: np.ndarray, slopes: str) -> None:
    """Eqs. 13 and 14; normalized slopes divide them by alpha / 2 and by beta / 2."""
    alpha, beta, gamma = 2.0, 50.0, 0.5
    expected = np.zeros((B, B))
    for i in range(B):
        for j in positives(i):
            e = math.exp(alpha * (gamma - s[i, j]))
            expected[i, j] = alpha * e / (1 + e) / len(positives(i))
        for k in negatives(i):
            e = math.exp(beta * (s[i, k] - gamma))
            expected[i, k] = beta * e / (1 + e) / len(negatives(i))
    if slopes == "normalized":
        same = np.equal.outer(Y, Y)
        expected = np.where(same, expected / (alpha / 2), expected / (beta / 2))
    weights = found({"name": "binomial-deviance", "slopes": slopes}, s)
    np.testing.assert_allclose(weights, expected, rtol=1e-10, atol=1e-14)


def test_slopes_decide_between_pulling_and_pushing(s: np.ndarray) -> None:
    """At the threshold eqs. 13 and 14 are alpha / 2 and beta / 2 over the counts: 1 to 25, or 1 to 1."""
    at_threshold = np.where(np.eye(B) > 0, 1.0, 0.5)
    for slopes, push in (("printed", 25.0), ("normalized", 1.0)):
        weights = found({"name": "binomial-deviance", "slopes": slopes}, at_threshold)
        for i in range(B):
            assert weights[i, positives(i)].sum() == pytest.approx(1)
            assert weights[i, negatives(i)].sum() == pytest.approx(push)


def test_raw(s: np.ndarray) -> None:
    """Eqs. 15 and 16."""
    alpha, beta, gamma = 2.0, 50.0, 0.5
    expected = np.zeros((B, B))
    for i in range(B):
        for j in positives(i):
            others = sum(math.exp(-alpha * (s[i, k] - s[i, j])) for k in positives(i))
            expected[i, j] = 1 / (math.exp(alpha * (s[i, j] - gamma)) + others)
        for j in negatives(i):
            others = sum(math.exp(beta * (s[i, k] - s[i, j])) for k in negatives(i))
            expected[i, j] = 1 / (math.exp(-beta * (s[i, j] - gamma)) + others)
    weights = found({"name": "raw", "mining": None}, s)
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("negatives_from", ["batch", "optimal", "symmetric", "interpolated"])
@pytest.mark.parametrize("name", ["triplet", "lifted-hard", "n-pair", "angular", "multi-similarity", "sct"])
def test_weights_are_the_gradient_of_unit_embeddings(name: str, negatives_from: str) -> None:
    """Theorem 3.1: Σ_j (w_ij + w_ji) (± x_j) / B is the gradient on the sphere, for every loss."""
    torch.manual_seed(0)
    y = torch.tensor(Y)
    x = torch.nn.functional.normalize(torch.randn(B, 6, dtype=torch.float64), dim=1).requires_grad_()
    module = losses.build({"name": name, "negatives": negatives_from})
    module(x, y).backward()
    w = losses.pair_weights(module, x.detach() @ x.detach().T, y)
    signed = torch.where(y[:, None] == y[None, :], -w, w) / B
    ambient = (signed + signed.T) @ x.detach()
    tangent = ambient - (ambient * x.detach()).sum(1, keepdim=True) * x.detach()
    gradient = x.grad - (x.grad * x.detach()).sum(1, keepdim=True) * x.detach()
    torch.testing.assert_close(gradient, tangent, rtol=1e-7, atol=1e-9)
    assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("negative", ["semi-hard", "distance-weighted"])
def test_raw_on_the_pairs_of_triplets(negative: str) -> None:
    """RAW+SemiHard and RAW+DW: eqs. 15 and 16 over the selected pairs, 0 for the others."""
    alpha, beta, gamma = 2.0, 50.0, 0.5
    torch.manual_seed(0)
    y = torch.tensor(Y)
    x = torch.nn.functional.normalize(torch.randn(B, 24, dtype=torch.float64), dim=1)
    s = (x @ x.T).fill_diagonal_(1.0)
    same = (y[:, None] == y) & ~torch.eye(B, dtype=torch.bool)
    miner = TripletMiner("all", negative)  # type: ignore[arg-type]
    torch.manual_seed(1)
    kept, opposed = miner.select(s, same, s, y[:, None] != y, dim=24)
    torch.manual_seed(1)
    module = losses.build({"name": "raw", "mining": {"positive": "all", "negative": negative}})
    weights = losses.pair_weights(module, s, y, dim=24).numpy()
    expected = np.zeros((B, B))
    for i in range(B):
        chosen = np.flatnonzero(kept[i]), np.flatnonzero(opposed[i])
        for j in chosen[0]:
            others = sum(math.exp(alpha * (s[i, j] - s[i, k])) for k in chosen[0])
            expected[i, j] = 1 / (others + math.exp(alpha * (s[i, j] - gamma)))
        for j in chosen[1]:
            others = sum(math.exp(-beta * (s[i, j] - s[i, k])) for k in chosen[1])
            expected[i, j] = 1 / (others + math.exp(-beta * (s[i, j] - gamma)))
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-14)
    assert 0 < opposed.sum() < (~same).sum() / 2


def test_losses_without_pairs_are_refused() -> None:
    proxies = losses.build({"name": "proxy-nca"}, num_classes=3, embedding_dim=5)
    with pytest.raises(ValueError, match=r"dimension|pairs"):
        losses.pair_weights(proxies, torch.eye(B), torch.tensor(Y))
    with pytest.raises(ValueError, match=r"\[B, B\]"):
        losses.pair_weights(losses.build({"name": "raw"}), torch.eye(3), torch.tensor(Y))
