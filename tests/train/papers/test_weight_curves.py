"""Pair weights: compared with the closed forms of RAW (eqs. 6, 8, 10, 11 and 13-16), term by term."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import click.testing
import numpy as np
import pytest
import torch

from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from train.papers import weight_curves
from train.papers.analyze.weights import weights as command
from train.papers.specs import read_losses

SWEEP = np.array([-0.55, -0.15, 0.15, 0.25, 0.45, 0.55, 0.65, 0.85])
TRIPLETS = sum(p * n for p, n in [(3, 6)] * 4 + [(1, 8)] * 6)  # in the batch, with classes of 4, 2, 2 and 2

Weight = Callable[
    [float, list[float], list[float]], float
]  # weight of s, given the other positives and negatives


def curves(spec: str) -> weight_curves.WeightCurves:
    (of,) = read_losses((spec,))
    return weight_curves.weight_curves(of, similarity=SWEEP)


def check(spec: str, positive: Weight, negative: Weight) -> None:
    """Compare the curves of a loss with functions of the swept cosine and the rest of the batch."""
    (p0, *p), (n0, *n) = weight_curves.POSITIVES, weight_curves.NEGATIVES
    found = curves(spec)
    np.testing.assert_allclose(found.positive, [positive(s, p, [n0, *n]) for s in SWEEP], atol=1e-12)
    np.testing.assert_allclose(found.negative, [negative(s, [p0, *p], n) for s in SWEEP], atol=1e-12)
    assert found.positive.any()
    assert found.negative.any()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_contrastive_weights() -> None:
    check("contrastive", lambda s, p, n: 1, lambda s, p, n: float(s > 0.5))


def test_triplet_weights() -> None:
    """Number of violated triplets with the pair, divided by the mean number of triplets per anchor."""
    scale = (4 + 6) / TRIPLETS
    check(
        "triplet-cosine",
        lambda s, p, n: scale * sum(k - s + 0.1 > 0 for k in n),
        lambda s, p, n: scale * sum(s - j + 0.1 > 0 for j in p),
    )


def test_lifted_weights() -> None:
    """A softmax over positives and one over negatives, while the hinge is active (as it is here)."""
    check(
        "lifted-generalized",
        lambda s, p, n: math.exp(-s) / sum(math.exp(-j) for j in [s, *p]),
        lambda s, p, n: math.exp(s) / sum(math.exp(k) for k in [s, *n]),
    )


def test_binomial_deviance_weights() -> None:
    check(
        "binomial-deviance",
        lambda s, p, n: 2 * sigmoid(2 * (0.5 - s)) / 3,
        lambda s, p, n: 50 * sigmoid(50 * (s - 0.5)) / 6,
    )


def raw_positive(s: float, p: list[float], n: list[float]) -> float:
    return 1 / (math.exp(2 * (s - 0.5)) + sum(math.exp(-2 * (j - s)) for j in [s, *p]))


def raw_negative(s: float, p: list[float], n: list[float]) -> float:
    return 1 / (math.exp(50 * (0.5 - s)) + sum(math.exp(50 * (k - s)) for k in [s, *n]))


def test_raw_weights() -> None:
    check("{name: raw, mining: null}", raw_positive, raw_negative)


def test_raw_weights_with_its_miner() -> None:
    """Only positives below the hardest negative + 0.1, negatives above the hardest positive - 0.1."""

    def positive(s: float, p: list[float], n: list[float]) -> float:
        limit = max(n) + 0.1
        return raw_positive(s, [j for j in p if j < limit], n) if s < limit else 0

    def negative(s: float, p: list[float], n: list[float]) -> float:
        limit = min(p) - 0.1
        return raw_negative(s, p, [k for k in n if k > limit]) if s > limit else 0

    check("raw", positive, negative)


def test_sct_pushes_hard_negatives_with_full_weight() -> None:
    """0 below the hardest other negative, 0.4; the weight of NCA up to the easiest positive, 0.7; then 1."""
    found = curves("sct").negative
    expected = [0 if s < 0.4 else sigmoid(s - 0.7) if s < 0.7 else 1 for s in SWEEP]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_anchor_batch_has_cosines_of_unit_vectors() -> None:
    cosines, labels = weight_curves.anchor_batch(weight_curves.POSITIVES, weight_curves.NEGATIVES)
    assert torch.equal(cosines, cosines.T)
    assert torch.linalg.eigvalsh(cosines).min() > 0
    assert labels.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]


def test_random_miners_are_averaged_and_repeatable() -> None:
    spec = "{name: margin, mining: {negative: random}}"
    first, second = curves(spec), curves(spec)
    np.testing.assert_array_equal(first.negative, second.negative)
    assert first.negative.any()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tripel", "did you mean 'triplet'"),
        ("{name: triplet, margn: 1}", "did you mean 'margin'"),
        ("{name: triplet", "neither a name nor a mapping"),
        ("[triplet]", "neither a name nor a mapping"),
        ("proxy-nca", "compares samples with each other"),
        ("pml:CircleLoss", "compares samples with each other"),
    ],
)
def test_losses_without_pair_weights_are_refused(spec: str, message: str) -> None:
    if spec.startswith("pml:"):
        pytest.importorskip("pytorch_metric_learning")
    words = ["--loss", spec, "--out", "weights.svg"]
    with pytest.raises(InputError, match=message):
        click.testing.CliRunner().invoke(command, words, catch_exceptions=False)


def test_cosines_of_the_anchor_can_be_chosen() -> None:
    """A single triplet has a single step (RAW, eq. 8 and fig. 1b)."""
    (of,) = read_losses(("triplet-cosine",))
    found = weight_curves.weight_curves(of, (0.4,), (0.6,), similarity=SWEEP)
    np.testing.assert_array_equal(found.positive > 0, SWEEP < 0.7)
    np.testing.assert_array_equal(found.negative > 0, SWEEP > 0.3)
    assert len(set(found.positive)) == len(set(found.negative)) == 2
    with pytest.raises(InputError, match="a pair has cosine 1"):
        weight_curves.weight_curves(of, (1.0,), (0.6,))


def test_figure_is_deterministic_and_limits_the_losses() -> None:
    found = [curves("contrastive"), curves("triplet"), curves("{name: triplet, negatives: optimal}")]
    first, second = (
        render_figure(lambda figure: weight_curves.weight_curves_figure(found, figure), 10, 5)
        for _ in range(2)
    )
    assert first == second
    with pytest.raises(InputError, match="at most 6"):
        render_figure(lambda figure: weight_curves.weight_curves_figure(found * 3, figure), 10, 5)


def test_weights_command(tmp_path: Path) -> None:
    out = tmp_path / "weights.svg"
    words = ["--loss", "contrastive", "--loss", "{name: raw, alpha: 4.0}", "--out", str(out)]
    done = click.testing.CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "raw (alpha: 4.0)" in done.stdout
    assert out.is_file()


def test_default_losses_are_those_of_the_paper(tmp_path: Path) -> None:
    words = ["--positives", "0.5", "--negatives", "0.5,0.2", "--json", "--out", str(tmp_path / "w.svg")]
    facts = json.loads(click.testing.CliRunner().invoke(command, words, catch_exceptions=False).stdout)
    assert tuple(fact["loss"] for fact in facts) == weight_curves.LOSSES
    assert facts[0]["batch"] == {"positives": [0.5], "negatives": [0.5, 0.2]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--positives", "0.5,x"], "--positives 0.5,x: expected cosines"),
        (["--data", "folder:shop"], "belong to a run or a model"),
        (["--per-class", "4"], "--per-class belongs to the batch of a run"),
        (["--loss", "raw"] * 7, "give at most 6"),
    ],
)
def test_unusable_options_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        click.testing.CliRunner().invoke(command, [*words, "--out", "x.svg"], catch_exceptions=False)
