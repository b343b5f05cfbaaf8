"""Gradient field: compared with steps on explicit vectors by automatic differentiation."""

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
from train.analysis import gradients
from train.commands.analyze.losses import gradients as command

cosines = st.floats(-0.95, 0.99)


def value(loss: str, x: Tensor) -> Tensor:
    """Return the loss of anchor, positive and negative, the rows of x, without normalization."""
    if loss == "margin":
        of_batch = losses.build({"name": "triplet", "squared": True, "margin": 0.2, "normalize": False})
        return of_batch(x, torch.tensor([0, 0, 1]))
    term = losses.build({"name": {"nca": "triplet-nca"}.get(loss, loss)}).term
    return term.losses(x[0] @ x[1], x[0] @ x[2])


def simulate(loss: str, s_ap: float, s_an: float, gamma: float, step: float) -> tuple[float, float]:
    """Take one step on vectors in three dimensions, normalize, and return the changes of the cosines."""
    up_p, up_n = np.sqrt(1 - s_ap**2), np.sqrt(1 - s_an**2)
    positive = [s_ap, up_p, 0.0]
    negative = [s_an, gamma * up_n, np.sqrt(1 - gamma**2) * up_n]
    x = torch.tensor([[1.0, 0.0, 0.0], positive, negative], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(loss, x), x)
    moved = torch.nn.functional.normalize(x.detach() - step * gradient)
    return float(moved[0] @ moved[1]) - s_ap, float(moved[0] @ moved[2]) - s_an


@given(st.sampled_from(["nca", "margin", "sct"]), cosines, cosines, st.floats(-1, 1), st.floats(0.01, 0.4))
@example("margin", 0.2, 0.5, 1.0, 0.1)  # active
@example("margin", 0.9, 0.1, 0.0, 0.1)  # not active
@example("sct", 0.5, 0.95, 0.3, 0.1)
def test_cosine_changes_match_a_step_in_three_dimensions(
    loss: gradients.TripletLoss, s_ap: float, s_an: float, gamma: float, step: float
) -> None:
    found = gradients.cosine_changes(loss, np.array(s_ap), np.array(s_an), step=step, gamma=gamma)
    np.testing.assert_allclose(found, simulate(loss, s_ap, s_an, gamma, step), atol=1e-12)


def test_entanglement_brings_a_hard_negative_closer() -> None:
    """The triplet (0.5, 0.95): without entanglement its negative is pushed away, with it it comes closer."""
    s_ap, s_an = np.array(0.5), np.array(0.95)
    alone = gradients.cosine_changes("nca", s_ap, s_an, step=0.1)
    together = gradients.entangle(s_ap, s_an, *alone, 1.0)
    assert alone[1] == pytest.approx(-0.0146, abs=5e-5)
    assert together[1] == pytest.approx(0.0274, abs=5e-5)


@pytest.mark.parametrize("loss", ["nca", "margin"])
def test_only_hard_negatives_come_closer(loss: gradients.TripletLoss) -> None:
    assert not gradients.gradient_field(loss, 0.0).wrong.any()
    entangled = gradients.gradient_field(loss, 1.0)
    s_ap, s_an = np.meshgrid(entangled.similarities, entangled.similarities)
    assert entangled.wrong.any()
    assert (s_an >= s_ap)[entangled.wrong].all()


@pytest.mark.parametrize("entanglement", [0.0, 0.5, 1.0])
def test_sct_never_brings_a_negative_closer(entanglement: float) -> None:
    assert not gradients.gradient_field("sct", entanglement).wrong.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "raw"}, "choose nca, margin or sct"),
        ({"loss": "nca", "entanglement": 1.5}, "choose a number in 0..1"),
        ({"loss": "nca", "entanglement": float("nan")}, "choose a number in 0..1"),
        ({"loss": "nca", "gamma": -2.0}, "choose a number in -1..1"),
        ({"loss": "nca", "step": 0.0}, "above 0"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gradients.gradient_field(**arguments)  # type: ignore[arg-type]


def test_figure_is_deterministic() -> None:
    fields = [gradients.gradient_field("margin", p) for p in (0.0, 1.0)]
    first, second = (
        render_figure(lambda figure: gradients.gradient_field_figure(fields, figure), 8, 4.7)
        for _ in range(2)
    )
    assert first == second
    assert b"<svg" in first


def test_gradients_command(tmp_path: Path) -> None:
    out = tmp_path / "nca.svg"
    words = ["--out", str(out), "--entanglement", "0,1", "--json", "--png"]
    done = click.testing.CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert '"entanglement": 1.0' in done.stdout
    assert out.stat().st_size > 10_000
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="expected numbers"):
        click.testing.CliRunner().invoke(command, [*words, "--entanglement", "all"], catch_exceptions=False)
