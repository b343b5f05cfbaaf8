"""Gradient field: compared with steps on explicit vectors by automatic differentiation."""

import itertools
import json
from pathlib import Path

import click.testing
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from train import losses
from train.papers import gradients
from train.papers.analyze.losses import gradients as command
from train.papers.gradients import TripletStep

cosines = st.floats(-0.95, 0.99)


def value(loss: str, x: Tensor, margin: float | None = None) -> Tensor:
    """Return the loss of anchor, positive and negative, the rows of x, without normalization."""
    if loss == "margin":
        huge = 1e3  # violated by every triplet
        spec = {"name": "triplet", "squared": True, "margin": huge if margin is None else margin}
        return losses.build(spec | {"normalize": False})(x, torch.tensor([0, 0, 1]))
    term = losses.build({"name": {"nca": "triplet-nca"}.get(loss, loss)}).term
    return term.losses(x[0] @ x[1], x[0] @ x[2])


def simulate(step: TripletStep, s_ap: float, s_an: float) -> tuple[float, float]:
    """Take one step on vectors in three dimensions, normalize, and return the changes of the cosines."""
    up_p, up_n = np.sqrt(1 - s_ap**2), np.sqrt(1 - s_an**2)
    positive = [s_ap, up_p, 0.0]
    negative = [s_an, step.gamma * up_n, np.sqrt(1 - step.gamma**2) * up_n]
    x = torch.tensor([[1.0, 0.0, 0.0], positive, negative], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(step.loss, x, step.margin), x)
    moved = torch.nn.functional.normalize(x.detach() - step.size * gradient)
    return float(moved[0] @ moved[1]) - s_ap, float(moved[0] @ moved[2]) - s_an


steps = st.builds(
    TripletStep, st.sampled_from(["nca", "margin", "sct"]), st.floats(0.01, 0.4), st.floats(-1, 1)
)


@given(steps, cosines, cosines)
@example(TripletStep("margin", gamma=1.0), 0.9, 0.1)  # active at every triplet
@example(TripletStep("margin", gamma=1.0, margin=0.2), 0.2, 0.5)  # active
@example(TripletStep("margin", margin=0.2), 0.9, 0.1)  # not active
@example(TripletStep("sct", gamma=0.3), 0.5, 0.95)
def test_cosine_changes_match_a_step_in_three_dimensions(step: TripletStep, s_ap: float, s_an: float) -> None:
    found = step.cosine_changes(np.array(s_ap), np.array(s_an))
    np.testing.assert_allclose(found, simulate(step, s_ap, s_an), atol=1e-12)


@given(st.floats(-0.95, 0.95), st.floats(-0.95, 0.95), st.floats(-1, 1), st.floats(0.01, 0.4))
def test_margin_changes_follow_the_equations_of_the_appendix(
    s_ap: float, s_an: float, gamma: float, size: float
) -> None:
    """SCT eqs. 16 and 27-31, written out."""
    b = 2 * size
    s_pn = s_ap * s_an + gamma * np.sqrt(1 - s_ap**2) * np.sqrt(1 - s_an**2)
    new_ap = (1 - b + b**2) * s_ap + 2 * b - b**2 - b * (1 - b) * s_pn - b**2 * s_an
    new_an = (1 + b + b**2) * s_an - 2 * b - b**2 + b * (1 + b) * s_pn - b**2 * s_ap
    a = np.sqrt(
        (1 + b * s_ap - b * s_an) ** 2
        + (b * np.sqrt(1 - s_ap**2) - gamma * b * np.sqrt(1 - s_an**2)) ** 2
        + (b * np.sqrt(1 - gamma**2) * np.sqrt(1 - s_an**2)) ** 2
    )
    p = np.sqrt((1 - b + b * s_ap) ** 2 + b**2 * (1 - s_ap**2))
    n = np.sqrt((1 + b - b * s_an) ** 2 + b**2 * (1 - s_an**2))
    found = TripletStep("margin", size, gamma).cosine_changes(np.array(s_ap), np.array(s_an))
    np.testing.assert_allclose(found, (new_ap / (a * p) - s_ap, new_an / (a * n) - s_an), atol=1e-9)


def test_entanglement_brings_a_hard_negative_closer() -> None:
    """The triplet (0.5, 0.95): without entanglement its negative is pushed away, with it it comes closer."""
    s_ap, s_an = np.array(0.5), np.array(0.95)
    alone = TripletStep("nca").cosine_changes(s_ap, s_an)
    together = gradients.entangle(s_ap, s_an, *alone, 1.0)
    assert alone[1] == pytest.approx(-0.0146, abs=5e-5)
    assert together[1] == pytest.approx(0.0274, abs=5e-5)


@pytest.mark.parametrize("loss", ["nca", "margin"])
def test_entanglement_moves_hard_negatives_closer_and_easy_positives_away(
    loss: gradients.TripletLoss,
) -> None:
    """The claims about fig. 2: on the right side positives move away, on the top negatives come closer."""
    free, half, entangled = (gradients.gradient_field(TripletStep(loss), p) for p in (0.0, 0.5, 1.0))
    assert free.negative_closer == 0
    s_ap, s_an = np.meshgrid(entangled.similarities, entangled.similarities)
    assert (s_an >= s_ap)[entangled.negative > 0].all()
    assert (s_ap >= s_an)[entangled.positive < 0].all()
    assert 0 < half.negative_closer < entangled.negative_closer
    assert 0 < half.positive_away < entangled.positive_away


@pytest.mark.parametrize("entanglement", [0.0, 0.5, 1.0])
def test_sct_never_brings_a_negative_closer(entanglement: float) -> None:
    assert gradients.gradient_field(TripletStep("sct"), entanglement).negative_closer == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "raw"}, "choose nca, margin or sct"),
        ({"loss": "nca", "gamma": -2.0}, "choose a number in -1..1"),
        ({"loss": "nca", "size": 0.0}, "above 0"),
        ({"loss": "nca", "margin": 0.2}, "for the loss 'margin'"),
        ({"loss": "margin", "margin": -0.2}, "0 or more"),
    ],
)
def test_invalid_steps_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TripletStep(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("entanglement", [1.5, float("nan")])
def test_invalid_entanglements_are_refused(entanglement: float) -> None:
    with pytest.raises(InputError, match=r"choose a number in 0\.\.1"):
        gradients.gradient_field(TripletStep("nca"), entanglement)


def test_figure_is_deterministic() -> None:
    rows = [[gradients.gradient_field(TripletStep(loss), p) for p in (0.0, 1.0)] for loss in ("nca", "sct")]
    first, second = (
        render_figure(lambda figure: gradients.gradient_field_figure(rows, figure), 8, 4.7) for _ in range(2)
    )
    assert first == second
    assert b"<svg" in first


def test_gradients_command(tmp_path: Path) -> None:
    def run(*words: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(command, [*words, "--out", str(out)], catch_exceptions=False)

    out = tmp_path / "fig9.svg"
    words = ("--loss", "nca", "--loss", "margin", "--entanglement", "0.5,1", "--gamma", "0,0.5")
    done = run(*words, "--json", "--png")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert [(f["loss"], f["gamma"], f["entanglement"]) for f in facts] == list(
        itertools.product(("nca", "margin"), (0.0, 0.5), (0.5, 1.0))
    )
    fine = gradients.gradient_field(TripletStep("nca", gamma=0.5), 1.0, points=201)
    assert facts[3]["positive_away_share"] == np.mean(fine.positive < -1e-9)
    assert out.stat().st_size > 10_000
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="expected numbers"):
        run("--entanglement", "all")
    with pytest.raises(InputError, match="at most 4 numbers"):
        run("--gamma", "0,0,0,0,0")
    with pytest.raises(InputError, match="add --loss margin"):
        run("--margin", "0.2")
