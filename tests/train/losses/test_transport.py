"""Optimal transport solver (Sinkhorn): marginals, optimality, gradients and diagnostics."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from train import losses
from train.losses.transport import marginals, solve_self_transport, solve_transport

EPSILON = 2.5e-3


def cloud(kind: str, seed: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors and labels."""
    g = torch.Generator().manual_seed(seed)
    sizes = {"pairs": [2] * 16, "uneven": [13, 7, 4, 2, 1, 1], "two": [20, 20], "one big": [30, 2, 1]}
    counts = torch.tensor(sizes.get(kind, [4] * 12))
    y = torch.arange(len(counts)).repeat_interleave(counts)
    dim = 2 if kind == "circle" else 16
    x = torch.randn(len(counts), dim, generator=g)[y] * (kind != "random") + torch.randn(
        len(y), dim, generator=g
    )
    if kind == "collapsed":
        x = 1 + 0.05 * x
    if kind == "duplicates":
        x = x[torch.randint(0, 9, (len(y),), generator=g)]
    return F.normalize(x.to(dtype), dim=1), y


KINDS = ["clusters", "random", "pairs", "uneven", "two", "one big", "circle", "collapsed", "duplicates"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_solver_converges(kind: str, dtype: torch.dtype) -> None:
    """Marginals hold and the plan has the form exp(f + g - D / epsilon), which together imply optimality."""
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for seed in range(3):
        x, y = cloud(kind, seed, dtype)
        cost, m = 1 - x @ x.T, marginals(y, dtype)
        plans = solve_transport(cost, m, EPSILON, tolerance, 40)
        assert float(plans.error) <= tolerance
        same = y[:, None] == y[None, :]
        assert not plans.plan[same].any()
        for k in y.unique():
            plan = plans.plan[y == k][:, y != k].double()
            n, rest = plan.shape
            torch.testing.assert_close(plan.sum(1), plan.new_full((n,), 1 / n), rtol=0, atol=2 * tolerance)
            torch.testing.assert_close(plan.sum(0), plan.new_full((rest,), 1 / rest), rtol=1e-4, atol=1e-7)
            if dtype == torch.float64:
                potentials = plan.clamp(min=1e-300).log() + cost[y == k][:, y != k] / EPSILON
                seen = (plan > 1e-280).all(1)
                rows = potentials[seen]
                torch.testing.assert_close(rows - rows[:1], (rows - rows[:1]).mean(1, True).expand_as(rows))


def test_solver_equals_sinkhorn_iterations() -> None:
    """Log-domain Sinkhorn iterations, one class at a time, run to convergence."""
    x, y = cloud("clusters", 5)
    cost, epsilon = 1 - x @ x.T, 0.05
    plans = solve_transport(cost, marginals(y, x.dtype), epsilon, 1e-12, 40)
    for k in (0, 7):
        c = cost[y == k][:, y != k]
        log_a, log_b = -torch.tensor(c.shape[0]).log(), -torch.tensor(c.shape[1]).log()
        f, g = torch.zeros(c.shape[0]).double(), torch.zeros(c.shape[1]).double()
        for _ in range(3000):
            f = -epsilon * ((g[None, :] - c) / epsilon + log_b).logsumexp(1)
            g = -epsilon * ((f[:, None] - c) / epsilon + log_a).logsumexp(0)
        plan = ((f[:, None] + g[None, :] - c) / epsilon + log_a + log_b).exp()
        torch.testing.assert_close(plans.plan[y == k][:, y != k], plan, rtol=1e-6, atol=1e-10)
        torch.testing.assert_close(plans.cost[y == k].sum(), f.mean() + g.mean(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("options", [{}, {"form": "entropic"}, {"form": "sharp"}, {"debias": True}], ids=str)
@pytest.mark.parametrize("epsilon", [2.5e-3, 0.1])
def test_gradient_of_the_converged_problem(options: dict[str, Any], epsilon: float) -> None:
    x, y = cloud("uneven", 2)
    x = (1.5 * x[:14]).requires_grad_()
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3])
    part = {"name": "wasserstein", "epsilon": epsilon, "tolerance": 1e-13, "max_iterations": 60, **options}
    module = losses.build({"regularizers": [part]})
    assert torch.autograd.gradcheck(lambda z: module(z, y), (x,), eps=1e-5, atol=2e-5, rtol=1e-4)


def test_forms_differ_by_known_constants() -> None:
    """Entropic = KL - epsilon Σ (ln n + ln m + 1); KL >= sharp >= 0; the same gradient for the first two."""
    x, y = cloud("uneven", 3)
    values, slopes = {}, {}
    for form in ("kl", "entropic", "sharp"):
        leaf = x.clone().requires_grad_()
        value = losses.build({"regularizers": [{"name": "wasserstein", "form": form}]})(leaf, y)
        value.backward()
        values[form], slopes[form] = -float(value), leaf.grad
    sizes = y.bincount().double()
    offset = EPSILON * float((sizes.log() + (len(y) - sizes).log() + 1).sum())
    assert values["entropic"] == pytest.approx(values["kl"] - offset, rel=1e-12)
    assert values["kl"] >= values["sharp"] >= 0
    assert torch.equal(slopes["kl"], slopes["entropic"])
    assert not torch.allclose(slopes["kl"], slopes["sharp"], rtol=1e-6, atol=0)


def test_self_plans_have_the_right_marginals() -> None:
    """Row sums of the plans of the classes with themselves and of the complements with themselves."""
    x, y = cloud("collapsed", 1)
    m = marginals(y, x.dtype)
    plan, value = solve_self_transport(1 - x @ x.T, m, EPSILON, 60)
    torch.testing.assert_close(plan, plan.T)
    classes, others = m.row, (m.other * m.column * m.row[:, None]).sum(0)
    torch.testing.assert_close(plan.sum(1), classes + others, rtol=1e-9, atol=0)
    assert float(value) > 0


def test_divergence_of_equal_sets_is_zero() -> None:
    """Debiased: two classes at the same points are at distance 0, where the plain cost is not."""
    x, _ = cloud("clusters", 4)
    x, y = torch.cat([x[:6], x[:6]]), torch.tensor([0] * 6 + [1] * 6)
    debiased = losses.build({"regularizers": [{"name": "wasserstein", "debias": True, "epsilon": 0.1}]})
    assert float(debiased(x, y)) == pytest.approx(0, abs=1e-9)
    plain = losses.build({"regularizers": [{"name": "wasserstein", "epsilon": 0.1}]})
    assert float(plain(x, y)) < -1e-3


def test_diagnostics_report_convergence() -> None:
    x, y = cloud("two", 0)
    module = losses.build({"regularizers": [{"name": "wasserstein", "weight": 0.5}]})
    module(x, y)
    found = module.diagnostics
    assert float(found["transport_converged"]) == 1
    assert 5 <= float(found["transport_iterations"]) <= 25
    assert float(found["transport_error"]) <= 1e-10
    assert 0 < float(found["transport_cost"]) < 2
    stopped = losses.build({"regularizers": [{"name": "wasserstein", "max_iterations": 3}]})
    stopped(x, y)
    assert float(stopped.diagnostics["transport_converged"]) == 0
    assert float(stopped.diagnostics["transport_iterations"]) == 3
    assert float(stopped.diagnostics["transport_error"]) > 1e-3


def test_float32_gradient_error_is_below_a_thousandth() -> None:
    """Defaults compared with a float64 solution of much higher precision."""
    for seed in range(3):
        x, y = cloud("clusters", seed)
        slopes = []
        for dtype, tolerance in ((torch.float32, None), (torch.float64, 1e-13)):
            leaf = x.to(dtype).clone().requires_grad_()
            losses.build({"regularizers": [{"name": "wasserstein", "tolerance": tolerance}]})(
                leaf, y
            ).backward()
            slopes.append(leaf.grad.double())
        assert (slopes[0] - slopes[1]).norm() <= 1e-3 * slopes[1].norm()
