"""Regularizers on samples and pairs: classifier cross-entropy and spread-out."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from train.losses.checks import check_classes
from train.losses.ops import masked_sum, ratio
from train.losses.registry import register
from train.losses.view import Measure, View


@register(
    "regularizer",
    "cross-entropy",
    source="DCDL (2022), section 5",
    formula=(
        r"-\frac{1}{B} \sum_i \log \frac{e^{w_{y_i} \cdot x_i + b_{y_i}}}" r"{\sum_c e^{w_c \cdot x_i + b_c}}"
    ),
)
class CrossEntropy(nn.Module):
    """Cross-entropy of a linear classifier on the raw embedding, the mean over the batch.

    The classifier is a parameter of the module; labels must be 0 .. num_classes - 1.
    """

    measure: Measure = "dot"

    def __init__(self, *, num_classes: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.head = nn.Linear(embedding_dim, num_classes)

    def forward(self, view: View) -> Tensor:
        check_classes(view.labels, self.num_classes)
        dtype = view.embeddings.dtype
        logits = F.linear(
            view.embeddings, self.head.weight[:, : view.dim].to(dtype), self.head.bias.to(dtype)
        )
        return F.cross_entropy(logits, view.labels.long())


@register(
    "regularizer",
    "spread-out",
    source="Zhang et al. (ICCV 2017), eq. 6",
    formula=r"\bar{s}^2 + \left[ \overline{s^2} - \frac{1}{D} \right]_+",
)
class SpreadOut(nn.Module):
    """(mean s)² + [mean s² - 1/D]_+ of the cosines of negative pairs, as of points spread over the sphere."""

    def forward(self, view: View) -> Tensor:
        cosine, negative = view.within.cosine, view.within.negative
        count = negative.sum()
        first = ratio(masked_sum(cosine, negative), count)
        second = ratio(masked_sum(cosine.square(), negative), count)
        return first.square() + F.relu(second - 1 / view.dim)
