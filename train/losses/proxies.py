"""Proxy losses: Proxy-NCA, Proxy Anchor, SoftTriple and normalized softmax (CosFace, ArcFace)."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.checks import check_classes
from train.losses.ops import masked_logsumexp, ratio, row_blocks
from train.losses.pairwise import log_one_plus_sum_exp
from train.losses.registry import Inert, register, require
from train.losses.view import View, normalize

REFUSAL = "compares samples with proxies, not with samples: there are no pairs to mine or to synthesise from"


class ProxyTerm(nn.Module):
    """Base class of the proxy losses, with a parameter `proxies` [K * classes, D] in float32 or wider.

    Labels must be 0 .. num_classes - 1. The proxies need a learning rate of their own, tens of times that of
    the network.
    """

    uses_references = False

    def __init__(self, num_classes: int, embedding_dim: int, per_class: int = 1) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.proxies = nn.Parameter(torch.empty(num_classes * per_class, embedding_dim))
        nn.init.kaiming_normal_(self.proxies, a=math.sqrt(5))

    def unit_proxies(self, view: View) -> Tensor:
        """Return [K * classes, D] the directions of the proxies, in the precision of the view."""
        if view.full_dim != self.proxies.shape[1]:
            raise ValueError(
                f"embeddings have {view.full_dim} dimensions and the proxies {self.proxies.shape[1]}"
            )
        check_classes(view.labels, self.num_classes)
        return normalize(self.proxies[:, : view.dim].to(view.unit.dtype))[0]

    def cosines(self, view: View) -> Tensor:
        """Return [B, K * classes] cosines of the samples with the proxies."""
        return view.unit @ self.unit_proxies(view).T

    def one_hot(self, view: View) -> Tensor:
        """Return [B, classes] bool, true for the class of each sample."""
        return view.labels[:, None] == torch.arange(self.num_classes, device=view.labels.device)


@register(
    "loss",
    "proxy-nca",
    source="Movshovitz-Attias et al. (ICCV 2017)",
    formula=(
        r"-\frac{1}{B} \sum_i \log \frac{e^{-\text{scale}^2 \, \lVert z_i - p_{y_i} \rVert^2}}"
        r"{\sum_{c \neq y_i} e^{-\text{scale}^2 \, \lVert z_i - p_c \rVert^2}}"
    ),
    refusal=f"proxy-nca {REFUSAL}",
)
class ProxyNCA(ProxyTerm):
    """-log of exp(-‖z - p_y‖²) / Σ exp(-‖z - p_c‖²) over the other classes c.

    The mean over the batch; samples z and proxies p are brought to length `scale`.

    Args:
        scale: Length of embeddings and proxies.
        include_positive: Include the sample's own class in the denominator (Proxy-NCA++).
    """

    def __init__(
        self, scale: float = 3.0, include_positive: bool = False, *, num_classes: int, embedding_dim: int
    ) -> None:
        super().__init__(num_classes, embedding_dim)
        require(scale > 0, "scale", scale, "above 0")
        self.scale, self.include_positive = scale, include_positive

    def forward(self, view: View) -> Tensor:
        closeness = -(self.scale**2) * (2 - 2 * self.cosines(view))  # [B, classes]
        own = self.one_hot(view)
        positive = torch.where(own, closeness, 0.0).sum(1)
        others = masked_logsumexp(closeness, torch.ones_like(own) if self.include_positive else ~own)
        return torch.where(others > -torch.inf, others - positive, 0.0).mean()


@register(
    "loss",
    "proxy-anchor",
    source="Kim et al. (CVPR 2020), eq. 4",
    formula=(
        r"\frac{1}{|C^+|} \sum_{c \in C^+} \log \left( 1 +"
        r" \sum_{y_i = c} e^{-\text{scale} (s_{ic} - \text{margin})} \right)"
        r" + \frac{1}{|C|} \sum_{c \in C} \log \left( 1 +"
        r" \sum_{y_i \neq c} e^{\text{scale} (s_{ic} + \text{margin})} \right)"
    ),
    refusal=f"proxy-anchor {REFUSAL}",
)
class ProxyAnchor(ProxyTerm):
    """Mean over classes in the batch of log(1 + Σ exp(-scale (s - margin))) over their samples, plus the
    mean over all classes of log(1 + Σ exp(scale (s + margin))) over the other samples.

    Args:
        scale: Above 0.
        margin: Margin in units of the cosine.
    """

    def __init__(
        self, scale: float = 32.0, margin: float = 0.1, *, num_classes: int, embedding_dim: int
    ) -> None:
        super().__init__(num_classes, embedding_dim)
        require(scale > 0, "scale", scale, "above 0")
        self.scale, self.margin = scale, margin

    def forward(self, view: View) -> Tensor:
        cosines, own = self.cosines(view).T, self.one_hot(view).T  # [classes, B]
        pull = log_one_plus_sum_exp(self.scale * (self.margin - cosines), own)
        push = log_one_plus_sum_exp(self.scale * (self.margin + cosines), ~own)
        return ratio(pull.sum(), own.any(1).sum()) + push.mean()


class _SoftTriple(torch.autograd.Function):
    """Sum of SoftTriple's loss over the samples z [B, D], given unit proxies [centers * classes, D].

    Value and gradients are taken at once, in blocks of rows: the similarities are overwritten by their
    derivatives, so that one table [B, centers * classes] exists and none is kept for the backward pass. A
    second derivative computes it again.
    """

    @staticmethod
    def forward(
        z: Tensor, proxies: Tensor, own: Tensor, term: SoftTriple, graded: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        table, totals = z @ proxies.T, []
        for rows in row_blocks(table):
            cosines = table[rows].unflatten(1, (term.centers, -1))
            relaxed, share = term.relax(cosines)
            log_share = term.log_share(relaxed, own[rows])
            totals.append(torch.where(own[rows], log_share, 0.0).sum())
            if graded:
                slope = (log_share.exp() - own[rows].to(z.dtype)) * term.scale
                # The derivative of the relaxed similarity is share * (1 + (cosine - relaxed) / gamma).
                cosines.sub_(relaxed[:, None]).div_(term.gamma).add_(1).mul_(share).mul_(slope[:, None])
        total = -torch.stack(totals).sum()
        return (total, table @ proxies, table.T @ z) if graded else (total, None, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.term = inputs[3]
        if inputs[4]:
            ctx.mark_non_differentiable(*output[1:])
            ctx.save_for_backward(*inputs[:3], *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        z, proxies, own, *slopes = ctx.saved_tensors
        needed = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():  # for a second derivative
            cosines = (z @ proxies.T).unflatten(1, (ctx.term.centers, -1))
            log_share = ctx.term.log_share(ctx.term.relax(cosines)[0], own)
            wanted = [x for x, need in zip((z, proxies), needed, strict=True) if need]
            total = -torch.where(own, log_share, 0.0).sum()
            found = iter(torch.autograd.grad(total, wanted, create_graph=True))
            slopes = [next(found) if need else None for need in needed]
        of_z, of_proxies = (grad * x if need else None for x, need in zip(slopes, needed, strict=True))
        return of_z, of_proxies, None, None, None


@register(
    "loss",
    "soft-triple",
    source="Qian et al. (ICCV 2019), eq. 8",
    formula=(
        r"-\frac{1}{B} \sum_i \log \frac{e^{\text{scale} (S_{i y_i} - \text{margin})}}"
        r"{e^{\text{scale} (S_{i y_i} - \text{margin})} + \sum_{c \neq y_i} e^{\text{scale} \, S_{ic}}},"
        r" \quad S_{ic} = \sum_{k = 1}^{\text{centers}}"
        r" \frac{e^{s_{ick} / \gamma}}{\sum_l e^{s_{icl} / \gamma}} \, s_{ick}"
    ),
    refusal=f"soft-triple {REFUSAL}",
    inert=(Inert("gamma", lambda o: o["centers"] == 1, "with one center for each class"),),
)
class SoftTriple(ProxyTerm):
    """Cross-entropy of scale (S_c - margin [c = y]), S_c = Σ_k softmax_k(s_ck / gamma) s_ck.

    The mean over the batch; k runs over the centers of class c.

    Args:
        centers: Number of centers per class.
        scale, gamma: Above 0.
        margin: Margin in units of the cosine.
    """

    def __init__(
        self,
        centers: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        *,
        num_classes: int,
        embedding_dim: int,
    ) -> None:
        require(centers >= 1, "centers", centers, "at least 1")
        require(gamma > 0, "gamma", gamma, "above 0")
        super().__init__(num_classes, embedding_dim, centers)
        self.centers, self.scale, self.gamma, self.margin = centers, scale, gamma, margin

    def forward(self, view: View) -> Tensor:
        unit = self.unit_proxies(view).unflatten(0, (-1, self.centers))
        unit = unit.transpose(0, 1).flatten(0, 1)  # first centers first: sums over centers are of whole rows
        graded = torch.is_grad_enabled() and (view.unit.requires_grad or unit.requires_grad)
        total: Tensor = _SoftTriple.apply(view.unit, unit, self.one_hot(view), self, graded)[0]
        return total / view.batch

    def relax(self, cosines: Tensor) -> tuple[Tensor, Tensor]:
        """Return [R, classes] the similarities S of the classes and [R, centers, classes] the softmax."""
        share = (cosines / self.gamma).softmax(1)
        return (share * cosines).sum(1), share

    def log_share(self, relaxed: Tensor, own: Tensor) -> Tensor:
        """Return [R, classes] the logarithm of the softmax over the classes."""
        return (self.scale * (relaxed - self.margin * own)).log_softmax(1)


@register(
    "loss",
    "normalized-softmax",
    source="Zhai and Wu (BMVC 2019); CosFace, ArcFace (CVPR 2018, 2019)",
    formula=(
        r"-\frac{1}{B} \sum_i \log \frac{e^{\text{scale} (s_{i y_i} - \text{margin})}}"
        r"{e^{\text{scale} (s_{i y_i} - \text{margin})} + \sum_{c \neq y_i} e^{\text{scale} \, s_{ic}}}"
    ),
    refusal=f"normalized-softmax {REFUSAL}",
    inert=(Inert("margin_type", lambda o: o["margin"] == 0, "with margin 0"),),
)
class NormalizedSoftmax(ProxyTerm):
    """Cross-entropy of scale times the cosines with the class weights, the own cosine reduced by a margin.

    The mean over the batch. Margin `cosine` takes it off the cosine (CosFace), `angle` adds it to the angle
    in radians (ArcFace), as long as the angle stays below 180 degrees.

    Args:
        scale: Above 0.
        margin: Margin, 0 for none.
        margin_type: Cosine or angle.
    """

    def __init__(
        self,
        scale: float = 20.0,
        margin: float = 0.0,
        margin_type: Literal["cosine", "angle"] = "cosine",
        *,
        num_classes: int,
        embedding_dim: int,
    ) -> None:
        super().__init__(num_classes, embedding_dim)
        require(scale > 0, "scale", scale, "above 0")
        self.scale, self.margin, self.margin_type = scale, margin, margin_type

    def forward(self, view: View) -> Tensor:
        cosines = self.cosines(view)
        if self.margin_type == "cosine":
            reduced = cosines - self.margin
        else:
            inside = cosines.clamp(-1 + 1e-6, 1 - 1e-6)
            turned = inside * math.cos(self.margin) - (1 - inside * inside).sqrt() * math.sin(self.margin)
            reduced = torch.where(
                inside > -math.cos(self.margin), turned, cosines - 1 + math.cos(self.margin)
            )
        if self.margin:
            cosines = torch.where(self.one_hot(view), reduced, cosines)
        return F.cross_entropy(self.scale * cosines, view.labels.long())
