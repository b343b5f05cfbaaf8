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

    def cosines(self, view: View) -> Tensor:
        """Return [B, K * classes] cosines of the samples with the proxies."""
        if view.full_dim != self.proxies.shape[1]:
            raise ValueError(
                f"embeddings have {view.full_dim} dimensions and the proxies {self.proxies.shape[1]}"
            )
        check_classes(view.labels, self.num_classes)
        unit, _ = normalize(self.proxies[:, : view.dim].to(view.unit.dtype))
        return view.unit @ unit.T

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


def _relaxed(cosines: Tensor, classes: int, gamma: float) -> tuple[Tensor, Tensor]:
    """Return [R, classes] the relaxed similarities and [R, classes * centers] their derivatives."""
    cosines = cosines.unflatten(1, (classes, -1))
    share = (cosines / gamma).softmax(2)
    value = (share * cosines).sum(2, keepdim=True)
    slope = (cosines - value).div_(gamma).add_(1) * share
    return value[:, :, 0], slope.flatten(1)


class _Relaxed(torch.autograd.Function):
    """Σ_k softmax_k(s_ck / gamma) s_ck of cosines [B, classes * centers], [B, classes], in blocks of rows.

    The derivative by s_ck is its softmax times 1 + (s_ck - the sum) / gamma.
    """

    @staticmethod
    def forward(cosines: Tensor, classes: int, gamma: float) -> tuple[Tensor, Tensor]:
        found = [_relaxed(cosines[rows], classes, gamma) for rows in row_blocks(cosines)]
        values, slopes = zip(*found, strict=True)
        return torch.cat(values), torch.cat(slopes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])
        ctx.gamma = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        cosines, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative
            _, slope = _relaxed(cosines, grad.shape[1], ctx.gamma)
        return (grad[:, :, None] * slope.unflatten(1, (grad.shape[1], -1))).flatten(1), None, None


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
        self.scale, self.gamma, self.margin = scale, gamma, margin

    def forward(self, view: View) -> Tensor:
        relaxed, _ = _Relaxed.apply(self.cosines(view), self.num_classes, self.gamma)  # [B, classes]
        return F.cross_entropy(self.scale * (relaxed - self.margin * self.one_hot(view)), view.labels.long())


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
