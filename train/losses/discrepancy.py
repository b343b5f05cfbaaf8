"""Class-wise discrepancy regularizers (DCDL): Wasserstein, MMD and energy distance of each class to the rest.

Each regularizer is minus the sum over the classes of a discrepancy between the samples of the class and all
others (eq. 2), so that minimising it pushes whole classes apart. They use the batch alone, never references.

The sum grows with the number of classes of a batch, while a loss is a mean over pairs or triplets: a weight
that suits the paper's ten classes is three times as strong with 32. `classes: mean` divides by the number of
classes that have a complement; its default weight of 10 equals the sum at weight 1 in a batch of ten classes.
docs/regularizers.md has measured ratios of gradient norms.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from train.losses.class_groups import class_groups
from train.losses.exact_transport import solve_exact_transport
from train.losses.ops import with_slope
from train.losses.registry import register, require
from train.losses.transport import epsilon_derivative, solve_self_transport, solve_transport
from train.losses.view import View

Classes = Literal["sum", "mean"]

_EPSILON = 2.5e-3
_MEAN_WEIGHT = 10.0  # the classes of a batch of CIFAR-10 and STL-10 in the paper


def _over_classes(total: Tensor, count: Tensor, classes: Classes) -> Tensor:
    """Return the sum over the classes, or the mean over the `count` classes that have a complement."""
    return total if classes == "sum" else total / count.clamp(min=1)


@register(
    "regularizer",
    "wasserstein",
    source="DCDL (2022), eqs. 10-13",
    formula=(
        r"-\sum_k \underset{T}{\min} \left( \sum_{u, v} T_{uv} D_{uv}"
        r" + \epsilon \operatorname{KL}(T \mid \operatorname{uniform}) \right),"
        r" \quad D_{uv} = \frac{1}{2} \lVert u - v \rVert^2"
    ),
    mean_weight=_MEAN_WEIGHT,
)
class Wasserstein(nn.Module):
    """Minus the transport cost between each class and all others, cost D = ‖u - v‖² / 2: entropic or exact.

    The gradient is that of the converged problem: the plan times the gradient of the cost (envelope
    theorem); for `sharp` it includes the change of the plan, by the implicit function theorem.

    Args:
        epsilon: Regularisation strength.
        form: kl, <T, D> + epsilon KL(T | uniform), at least 0; entropic, <T, D> + epsilon Σ T (ln T - 1) (eq.
            11), lower by a constant; sharp, <T, D> alone; exact, the linear program without regularisation
            (eq. 10), which is solved on the CPU and waits for the device in every step.
        debias: Subtract half the cost of each set with itself (Sinkhorn divergence, eq. 13).
        classes: Sum over the classes (the paper), or mean, at weight 10 by default (docs/regularizers.md).
        tolerance: L1 marginal error at which a class has converged; null for 1e-5 (1e-10 in float64).
        max_iterations: Newton steps at most; null for 30 on the CPU, where they stop at convergence, and 16
            on other devices and in compiled code, which take all of them. Diagnostics hold the number used
            and the remaining error.
    """

    def __init__(
        self,
        epsilon: float = _EPSILON,
        form: Literal["kl", "entropic", "sharp", "exact"] = "kl",
        debias: bool = False,
        classes: Classes = "sum",
        tolerance: float | None = None,
        max_iterations: int | None = None,
        *,
        per_class: int | None = None,
    ) -> None:
        super().__init__()
        require(epsilon > 0, "epsilon", epsilon, "above 0")
        require(max_iterations is None or max_iterations >= 1, "max_iterations", max_iterations, "at least 1")
        if debias and form == "sharp":
            raise ValueError("debias is defined on the regularised cost; use form kl or entropic")
        if form == "exact":
            self._refuse_unused(epsilon, debias, tolerance, max_iterations)
        self.epsilon, self.form, self.debias, self.classes = epsilon, form, debias, classes
        self.tolerance, self.max_iterations, self.per_class = tolerance, max_iterations, per_class

    @staticmethod
    def _refuse_unused(
        epsilon: float, debias: bool, tolerance: float | None, max_iterations: int | None
    ) -> None:
        """Raise ValueError for settings of the entropic problem that the exact one does not use."""
        if debias:
            raise ValueError(
                "debias has no effect with form: exact, because a set is at cost 0 from itself; leave it out"
            )
        given = {
            "epsilon": (epsilon, _EPSILON),
            "tolerance": (tolerance, None),
            "max_iterations": (max_iterations, None),
        }
        for name, (value, default) in given.items():
            if value != default:
                raise ValueError(
                    f"{name} is {value!r}, but form: exact solves a linear program without it; leave it out"
                )

    def forward(self, view: View) -> Tensor:
        cosine, labels = view.within.cosine, view.within.labels
        cost = 1 - cosine.detach()  # [B, B]
        groups = class_groups(labels, cost.dtype, self.per_class)
        count = groups.row.sum()
        if self.form == "exact":
            plan = solve_exact_transport(cost, labels)
            value, gradient = (plan * cost).sum(), plan
            view.report["transport_cost"] = _over_classes(value, count, "mean")
            return -_over_classes(with_slope(value, cosine, -gradient), count, self.classes)
        tolerance = self.tolerance or (1e-10 if cost.dtype == torch.float64 else 1e-5)
        plans = solve_transport(cost, groups, self.epsilon, tolerance, self.max_iterations)
        gradient, value = plans.plan, plans.value
        paid = (plans.plan * cost).sum()
        if self.form == "sharp":
            value = paid
            gradient = gradient - self.epsilon * epsilon_derivative(cost, groups, plans, self.epsilon)
        elif self.debias:
            own_plan, own_value = solve_self_transport(
                cost, groups, self.epsilon, 40 if cost.dtype == torch.float64 else 20
            )
            gradient, value = gradient - 0.5 * own_plan, value - 0.5 * own_value
        elif self.form == "entropic":
            size = 1 / groups.each.clamp(min=1 / len(labels))  # [G, n]
            offset = size.log() + (len(labels) - size).clamp(min=1).log() + 1  # ln n + ln m + 1
            value = value - self.epsilon * (groups.row * offset).sum()
        view.report["transport_cost"] = _over_classes(paid, count, "mean")
        view.report["transport_iterations"] = plans.iterations
        view.report["transport_error"] = plans.error
        view.report["transport_converged"] = (plans.error <= tolerance).to(cost.dtype)
        # The solver's value with the gradient of the envelope theorem: the plan times that of the cost.
        return -_over_classes(with_slope(value, cosine, -gradient), count, self.classes)


class _Kernel(nn.Module):
    """Base class of the kernel discrepancies: a sum over all pairs with weights given by the labels."""

    def __init__(self, classes: Classes) -> None:
        super().__init__()
        self.classes = classes

    def kernel(self, view: View) -> Tensor:
        """Return the [B, B] kernel of all pairs, the diagonal included."""
        raise NotImplementedError

    def forward(self, view: View) -> Tensor:
        kernel = self.kernel(view)
        same = view.within.labels[:, None] == view.within.labels  # [B, B]
        weights, count = discrepancy_weights(same, kernel.dtype)
        return -_over_classes((kernel * weights).sum(), count, self.classes)


def discrepancy_weights(same: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return [B, B] weights of k(i, j) in Σ over classes of mean k(U, U) + mean k(V, V) - 2 mean k(U, V).

    U is the class, V its complement. A pair of samples is in U x V of the classes of its members and in
    V x V of all classes but these.

    Args:
        same: [B, B] bool, samples of one class.
        dtype: Of the weights.

    Returns:
        The weights, and the number of classes that have a complement.
    """
    size = same.sum(1).to(dtype)
    other = len(same) - size
    some = other > 0
    own, rest = some / size, some / other.clamp(min=1)  # 1 / n and 1 / m of each sample's class
    every = (own * rest.square()).sum()  # Σ over classes of 1 / m²
    inside = own.square()[:, None] + every - rest.square()[:, None]  # both in one class
    cross = own * rest
    across = every - rest.square()[:, None] - rest.square() - cross[:, None] - cross
    return torch.where(same, inside, across), own.sum()


class _ScaledKernel(_Kernel):
    """Base class of kernels of a distance over a width, or the mean of such kernels of several widths."""

    def __init__(
        self, sigma: float | list[float] = 0.05, half: bool = False, classes: Classes = "sum"
    ) -> None:
        super().__init__(classes)
        self.sigmas = sigma if isinstance(sigma, list) else [sigma]
        positive = bool(self.sigmas) and all(width > 0 for width in self.sigmas)
        require(positive, "sigma", sigma, "above 0, or a list of such widths")
        self.factor = 0.5 if half else 1.0

    def kernel(self, view: View) -> Tensor:
        kernel = torch.stack([self.of_width(view, width) for width in self.sigmas]).mean(0)
        itself = torch.eye(len(kernel), dtype=torch.bool, device=kernel.device)
        active = kernel.detach().masked_fill(itself, 0.0).amax(1).mean()
        view.report["kernel_active"] = torch.minimum(active, view.report.get("kernel_active", active))
        return self.factor * kernel

    def of_width(self, view: View, width: float) -> Tensor:
        """Return [B, B] values in 0..1 of the kernel of one width."""
        raise NotImplementedError


@register(
    "regularizer",
    "mmd-laplacian",
    source="DCDL (2022), eqs. 15-16",
    formula=(
        r"-\sum_k \left( \operatorname{E} \kappa(u, u') + \operatorname{E} \kappa(v, v')"
        r" - 2 \operatorname{E} \kappa(u, v) \right), \quad \kappa(u, v) = e^{-\lVert u - v \rVert / \sigma}"
    ),
    mean_weight=_MEAN_WEIGHT,
)
class LaplacianMMD(_ScaledKernel):
    """Minus the squared maximum mean discrepancy of each class and all others, kernel exp(-d / sigma).

    The diagnostic `kernel_active` is the mean, over the samples, of the kernel with the nearest other sample.
    Near 0 the regularizer has no gradient: sigma is far below all distances.

    Args:
        sigma: Kernel width, or a list of widths, whose kernels are averaged, so that the weight keeps its
            meaning. With the paper's 0.05 the gradient vanishes once classes have separated, with batch norm
            from the first step. [0.05, 0.2, 0.8] covers all distances of unit vectors.
        half: Multiply by 1/2 (as in GeomLoss).
        classes: Sum over the classes (the paper), or mean, at weight 10 by default (docs/regularizers.md).
    """

    def of_width(self, view: View, width: float) -> Tensor:
        return (-view.within.own_distance / width).exp()


@register(
    "regularizer",
    "mmd-gaussian",
    source="DCDL (2022), eqs. 15-16",
    formula=(
        r"-\sum_k \left( \operatorname{E} \kappa(u, u') + \operatorname{E} \kappa(v, v')"
        r" - 2 \operatorname{E} \kappa(u, v) \right), \quad \kappa(u, v) = e^{-\lVert u - v"
        r" \rVert^2 / (2 \sigma^2)}"
    ),
    mean_weight=_MEAN_WEIGHT,
)
class GaussianMMD(_ScaledKernel):
    """Minus the squared maximum mean discrepancy of each class and all others, kernel exp(-d² / (2 sigma²)).

    Args:
        sigma: Kernel width or widths, see mmd-laplacian.
        half: Multiply by 1/2 (as in GeomLoss).
        classes: Sum over the classes (the paper), or mean, at weight 10 by default (docs/regularizers.md).
    """

    def of_width(self, view: View, width: float) -> Tensor:
        return (-view.within.own_square / (2 * width**2)).exp()


@register(
    "regularizer",
    "energy",
    source="DCDL (2022), eq. 14",
    formula=(
        r"-\sum_k \left( \operatorname{E} D(u, v) - \frac{1}{2} \operatorname{E} D(u, u')"
        r" - \frac{1}{2} \operatorname{E} D(v, v') \right), \quad D(u, v) = \frac{1}{2} \lVert u - v \rVert^2"
    ),
    mean_weight=_MEAN_WEIGHT,
)
class Energy(_Kernel):
    """Minus the energy distance of each class and all others: E D(U, V) - (E D(U, U) + E D(V, V)) / 2.

    Args:
        power: 2 for D = ‖u - v‖² / 2, as in the transport cost; 1 for ‖u - v‖, which distinguishes
            distributions with equal means.
        classes: Sum over the classes (the paper), or mean, at weight 10 by default (docs/regularizers.md).
    """

    def __init__(self, power: Literal[1, 2] = 2, classes: Classes = "sum") -> None:
        super().__init__(classes)
        self.power = power

    def kernel(self, view: View) -> Tensor:
        return -0.5 * (0.5 * view.within.own_square if self.power == 2 else view.within.own_distance)
