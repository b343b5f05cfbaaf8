"""Optimal transport solver (Sinkhorn): marginals, optimality, gradients and diagnostics."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from train import losses
from train.losses import class_groups as grouping
from train.losses import discrepancy
from train.losses import transport as solver
from train.losses.class_groups import class_groups
from train.losses.exact_transport import solve_exact_transport
from train.losses.transport import solve_self_transport, solve_transport

from .oracle import transport
from .oracle.batches import make_batch

EPSILON = 2.5e-3


def cloud(kind: str, seed: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors and labels."""
    g = torch.Generator().manual_seed(seed)
    sizes = {
        "pairs": [2] * 16,
        "uneven": [13, 7, 4, 2, 1, 1],
        "two": [20, 20],
        "one big": [30, 2, 1],
        "eights": [8] * 5,
        "ones": [1] * 9,
    }
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["clusters", "random", "pairs", "collapsed", "eights", "ones"])
def test_a_compiler_gets_the_same_plans(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tensor for each row of a class, and no product or factorisation of matrices."""
    x, y = cloud(kind, 0, dtype)
    size = int(y.bincount().max())
    groups = class_groups(y, dtype, size)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    found = solve_transport(1 - x @ x.T, groups, EPSILON, tolerance, 40)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for name in ("_solve", "_system"):
        monkeypatch.delattr(solver, name)
    compiled = solve_transport(1 - x @ x.T, groups, EPSILON, tolerance, 40)
    assert float(compiled.error) <= tolerance
    torch.testing.assert_close(compiled.plan, found.plan, rtol=0, atol=10 * tolerance / size)
    torch.testing.assert_close(compiled.value, found.value, rtol=1e-5, atol=1e-7)
    assert compiled.iterations == found.iterations


KINDS = ["clusters", "random", "pairs", "uneven", "two", "one big", "circle", "collapsed", "duplicates"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_solver_converges(kind: str, dtype: torch.dtype) -> None:
    """Marginals hold and the plan has the form exp(f + g - D / epsilon), which together imply optimality."""
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for seed in range(3):
        x, y = cloud(kind, seed, dtype)
        plans = solve_transport(1 - x @ x.T, class_groups(y, dtype), EPSILON, tolerance, 40)
        assert float(plans.error) <= tolerance
        same = y[:, None] == y[None, :]
        assert not plans.plan[same].any()
        for k in y.unique():
            plan = plans.plan[y == k][:, y != k].double()
            n, rest = plan.shape
            torch.testing.assert_close(plan.sum(1), plan.new_full((n,), 1 / n), rtol=0, atol=2 * tolerance)
            torch.testing.assert_close(plan.sum(0), plan.new_full((rest,), 1 / rest), rtol=1e-4, atol=1e-7)
            if dtype == torch.float64:
                potentials = plan.clamp(min=1e-300).log() + (1 - x @ x.T)[y == k][:, y != k] / EPSILON
                seen = (plan > 1e-280).all(1)
                rows = potentials[seen]
                torch.testing.assert_close(rows - rows[:1], (rows - rows[:1]).mean(1, True).expand_as(rows))


@pytest.mark.parametrize("options", [{}, {"form": "entropic"}, {"form": "sharp"}, {"debias": True}], ids=str)
def test_every_grouping_gives_the_same_plans(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks read from the labels, padded blocks, blocks of a given size, and all samples in one group."""
    part = {"name": "wasserstein", "epsilon": 0.02, "tolerance": 1e-12, "max_iterations": 40, **options}
    for kind in ("clusters", "one big", "uneven"):
        x, y = cloud(kind, 1)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        x, y = x[order], 7 * y[order] - 5
        equal = [lambda y, dtype: grouping._equal(y, dtype, 4)] if kind == "clusters" else []
        found = []
        for group in (class_groups, grouping._together, *equal):
            monkeypatch.setattr(discrepancy, "class_groups", lambda y, dtype, _, group=group: group(y, dtype))
            leaf = x.clone().requires_grad_()
            value = losses.build({"regularizers": [part]})(leaf, y)
            value.backward()
            found.append((value.detach(), leaf.grad))
        for pair in found[1:]:
            torch.testing.assert_close(pair, found[0], rtol=1e-7, atol=1e-9)


def test_groups_of_a_given_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerators and compiled code do: `per_class` is believed, an assertion refuses other sizes."""
    x, y = cloud("clusters", 0, torch.float32)
    module = losses.build({"regularizers": [{"name": "wasserstein"}]}, per_class=4)
    expected = module(x, y)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(module(x, y), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(RuntimeError, match="4 samples of every class"):
        module(x, y // 2)


def test_steps_without_a_test_of_convergence_suffice() -> None:
    """Accelerators take a fixed number of steps; batches of many dimensions converge in it."""
    for classes, size, spread in ((32, 4, 0.3), (16, 8, 1.0), (10, 10, 0.5), (64, 2, 3.0)):
        g = torch.Generator().manual_seed(1)
        y = torch.arange(classes).repeat_interleave(size)
        x = torch.randn(classes, 64, generator=g)[y] + spread * torch.randn(len(y), 64, generator=g)
        x = F.normalize(x, dim=1)
        plans = solve_transport(1 - x @ x.T, class_groups(y, x.dtype), EPSILON, 1e-5)
        assert float(plans.error) <= 1e-5
        assert int(plans.iterations) <= solver._UNSTOPPED


def test_solver_equals_sinkhorn_iterations() -> None:
    """Log-domain Sinkhorn iterations, one class at a time, run to convergence."""
    x, y = cloud("clusters", 5)
    cost, epsilon = 1 - x @ x.T, 0.05
    plans = solve_transport(cost, class_groups(y, x.dtype), epsilon, 1e-12, 40)
    value = 0.0
    for k in y.unique():
        c = cost[y == k][:, y != k]
        log_a, log_b = -torch.tensor(c.shape[0]).log(), -torch.tensor(c.shape[1]).log()
        f, g = torch.zeros(c.shape[0]).double(), torch.zeros(c.shape[1]).double()
        for _ in range(1500):
            f = -epsilon * ((g[None, :] - c) / epsilon + log_b).logsumexp(1)
            g = -epsilon * ((f[:, None] - c) / epsilon + log_a).logsumexp(0)
        plan = ((f[:, None] + g[None, :] - c) / epsilon + log_a + log_b).exp()
        torch.testing.assert_close(plans.plan[y == k][:, y != k], plan, rtol=1e-6, atol=1e-10)
        value += float(f.mean() + g.mean())
    assert float(plans.value) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("options", [{}, {"form": "entropic"}, {"form": "sharp"}, {"debias": True}], ids=str)
@pytest.mark.parametrize("epsilon", [2.5e-3, 0.1])
def test_gradient_of_the_converged_problem(options: dict[str, Any], epsilon: float) -> None:
    x, y = cloud("uneven", 2)
    x = (1.5 * x[:14, :5]).requires_grad_()
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
    plan, value = solve_self_transport(1 - x @ x.T, class_groups(y, x.dtype), EPSILON, 60)
    torch.testing.assert_close(plan, plan.T)
    sizes = y.bincount()
    others = torch.stack([(y != k) / (y != k).sum() for k in range(len(sizes))]).sum(0)
    torch.testing.assert_close(plan.sum(1), (1 / sizes[y] + others).double(), rtol=1e-6, atol=0)
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


# The exact form (eq. 10).

EXACT = {"regularizers": [{"name": "wasserstein", "form": "exact"}]}
SIZES = [
    (2, 2, 2),
    (4, 4, 4),
    (5, 3, 2, 1),
    (17, 13, 4),
    (1, 6),
    (3,),
]  # both solvers: lcm(17, 17), lcm(13, 21)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_exact_form_equals_dual_linear_program(sizes: tuple[int, ...]) -> None:
    """The primal plan against the dual program of every class."""
    batch = make_batch(3, sizes, dim=5, spread=0.7, raw=True)
    expected = transport.classwise(*batch, transport.exact_transport)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        value = losses.build(EXACT)(torch.tensor(batch.x, dtype=dtype), torch.tensor(batch.y))
        assert float(value) == pytest.approx(expected, abs=tolerance)


def test_exact_plans_have_the_right_marginals() -> None:
    x, y = cloud("uneven", 0)
    plan = solve_exact_transport(1 - x @ x.T, y)
    for k in y.unique():
        block = plan[y == k][:, y != k]
        n, m = block.shape
        np.testing.assert_allclose(block.sum(1), 1 / n, atol=1e-9)
        np.testing.assert_allclose(block.sum(0), 1 / m, atol=1e-9)
        assert (block >= -1e-12).all()
    assert not plan[y[:, None] == y[None, :]].any()


def test_exact_gradient_is_that_of_the_value() -> None:
    """Envelope theorem: against differences of the value, which solves the program again at every point."""
    batch = make_batch(5, (3, 4, 2), dim=4, spread=1.0, raw=True)
    y = torch.tensor(batch.y)
    module = losses.build(EXACT)
    x = torch.tensor(batch.x, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: module(z, y), (x,), eps=1e-6, atol=1e-6, rtol=1e-5)


def test_exact_form_is_the_limit_of_small_epsilon() -> None:
    x, y = cloud("clusters", 6)
    exact = float(losses.build(EXACT)(x, y))
    gaps = []
    for epsilon in (0.1, 0.02, 0.004):
        part = {"name": "wasserstein", "form": "sharp", "epsilon": epsilon, "max_iterations": 60}
        gaps.append(exact - float(losses.build({"regularizers": [part]})(x, y)))
    assert gaps[0] > gaps[1] > gaps[2] >= -1e-9
    assert gaps[2] < 0.02 * abs(exact)


@pytest.mark.parametrize(
    "option", [{"epsilon": 0.1}, {"debias": True}, {"tolerance": 1e-6}, {"max_iterations": 5}], ids=str
)
def test_options_without_effect_on_the_exact_form_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} .*leave it out"):
        losses.build({"regularizers": [{"name": "wasserstein", "form": "exact", **option}]})


# Kernels.


@pytest.mark.parametrize("name", ["mmd-laplacian", "mmd-gaussian"])
def test_kernel_activity(name: str) -> None:
    """The mean kernel with the nearest other sample: 1 for equal embeddings, 0 for distant ones."""
    y = torch.arange(4).repeat_interleave(2)
    angles = torch.tensor([0.0, 0.1, 1.5, 1.7, 3.0, 3.3, 4.5, 4.9], dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], 1)
    nearest = 2 * torch.sin(torch.tensor([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4]) / 2)
    kernels = (-nearest / 0.2).exp() if name == "mmd-laplacian" else (-(nearest**2) / 0.08).exp()
    for sigma, points, expected in (
        (0.2, x, float(kernels.mean())),
        ([0.2, 0.2], x, float(kernels.mean())),
        (0.2, torch.ones(8, 2).double(), 1.0),
        (0.001, x, 0.0),
    ):
        module = losses.build({"regularizers": [{"name": name, "sigma": sigma}]})
        module(points, y)
        assert float(module.diagnostics["kernel_active"]) == pytest.approx(expected, abs=1e-4)


def test_inert_kernel_has_no_gradient_and_several_widths_have() -> None:
    x, y = cloud("random", 0)
    norms = []
    for sigma in (0.05, [0.05, 0.2, 0.8]):
        leaf = x.clone().requires_grad_()
        module = losses.build({"regularizers": [{"name": "mmd-laplacian", "sigma": sigma}]})
        module(leaf, y).backward()
        norms.append(float(leaf.grad.norm()))
        assert (float(module.diagnostics["kernel_active"]) < 1e-3) == (sigma == 0.05)
    assert norms[0] < 1e-3 < 0.05 < norms[1]


@pytest.mark.parametrize("sigma", [0, -1, [0.1, 0], [], ["a"], [True], "wide"], ids=str)
def test_wrong_widths_are_refused(sigma: Any) -> None:
    with pytest.raises(ValueError, match="sigma"):
        losses.build({"regularizers": [{"name": "mmd-gaussian", "sigma": sigma}]})
