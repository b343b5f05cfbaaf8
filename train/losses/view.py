"""View of a batch, shared by all losses: similarity matrix, positive and negative masks, positive pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from train.losses.batch_all import compact_columns
from train.losses.checks import refuse_unless
from train.losses.ops import diagonal, permuted, ratio, safe_sqrt
from train.losses.pairs import PairLayout, alternate_pairs

NormalizationGradient = Literal["exact", "ignored"]

Measure = Literal["cosine", "distance", "dot"]
"""Similarity measure: the cosine, minus half the squared distance of the raw embeddings (so that squared
distances are -2 times it), or the dot product of the raw embeddings."""

T = TypeVar("T")

_PARTS, _WORTHWHILE = 4, 64  # row blocks of a symmetric product on the CPU, and the least rows of one


class lazy(Generic[T]):  # noqa: N801  (used as a decorator, like property)
    """Property computed on first use.

    Like functools.cached_property without the lock of Python 3.11, which torch.compile cannot trace.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self.name] = self.function(instance)
        return value


class Samples(NamedTuple):
    """Samples that form the rows or the columns of a table."""

    place: Tensor  # [N] position in the batch followed by the references
    label: Tensor  # [N]
    norm: Tensor  # [N] length of the raw embedding
    usable: Tensor | None  # [N] bool

    def take(self, which: Tensor | slice) -> Samples:
        """Return the selected samples in the given order."""
        usable = None if self.usable is None else self.usable[which]
        return Samples(self.place[which], self.label[which], self.norm[which], usable)

    def join(self, others: Samples) -> Samples:
        """Return these samples followed by others."""
        usable = None
        if self.usable is not None and others.usable is not None:
            usable = torch.cat([self.usable, others.usable])
        place, label, norm = (torch.cat(pair) for pair in zip(self[:3], others[:3], strict=True))
        return Samples(place, label, norm, usable)


def normalize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit vectors [N, D] and lengths [N]; a zero vector stays zero and receives no gradient."""
    square = x.square().sum(1)
    directed = square > torch.finfo(x.dtype).tiny
    norm = torch.where(directed, square, 1.0).sqrt()
    return x * torch.where(directed, 1 / norm, 0.0)[:, None], torch.where(directed, norm, 0.0)


def as_if_unit(unit: Tensor, x: Tensor) -> Tensor:
    """Return the unit vectors with the identity as their derivative by x: dL/dx is dL/dz (SCT, section 4)."""
    return unit.detach() + (x - x.detach())


class _SelfProduct(torch.autograd.Function):
    """Z Zᵀ, whose backward pass needs one matrix product where two general factors need two.

    On the CPU the product is computed above the diagonal and copied below it. The product of the backward
    pass is computed in the given precision, that of the embeddings, where the table has a higher one.
    """

    @staticmethod
    def forward(z: Tensor, gradient: torch.dtype) -> Tensor:
        count = len(z)
        step = -(-count // _PARTS)
        if z.device.type != "cpu" or torch.compiler.is_compiling() or step < _WORTHWHILE:
            return z @ z.T
        product = z.new_empty((count, count))
        for start in range(0, count, step):
            rows = slice(start, start + step)
            torch.mm(z[rows], z[start:].T, out=product[rows, start:])
            product[start + step :, rows] = product[rows, start + step :].T
        return product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.gradient = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        grad = grad.to(ctx.gradient)
        # A transposed copy is made in blocks; a sum with a transposed term is not.
        both = grad.T.clone(memory_format=torch.contiguous_format).add_(grad)
        return (both @ z.to(ctx.gradient)).to(z.dtype), None


class Own(NamedTuple):
    """Columns of the class of each row, ascending; the last one repeated in rows of smaller classes."""

    column: Tensor  # [R, S]
    positive: Tensor  # [R, S] bool


class Table:
    """Similarities of R anchors with C candidates, with masks of positives and negatives.

    Attributes:
        cosine: [R, C] dot products of the normalised embeddings.
        positive: [R, C] bool, the same class and not the anchor itself.
        negative: [R, C] bool, another class.
    """

    def __init__(self, cosine: Tensor, rows: Samples, cols: Samples) -> None:
        self.cosine = cosine
        self._rows, self._cols = rows, cols

    @lazy
    def _same(self) -> Tensor:
        return self._rows.label[:, None] == self._cols.label[None, :]

    @lazy
    def positive(self) -> Tensor:
        positive = self._same & (self._rows.place[:, None] != self._cols.place[None, :])
        return positive if self._cols.usable is None else positive & self._cols.usable

    @lazy
    def negative(self) -> Tensor:
        negative = ~self._same
        return negative if self._cols.usable is None else negative & self._cols.usable

    @lazy
    def _own(self) -> Own | None:
        """The columns of each row's own class, if these are few.

        On the CPU, where reading their number needs no synchronisation; None elsewhere and in compiled code.
        """
        label, order = self._cols.label.sort(stable=True)
        if label.device.type != "cpu" or torch.compiler.is_compiling():
            return None
        start, end = (torch.searchsorted(label, self._rows.label, right=side) for side in (False, True))
        width = int((end - start).max())
        if width > len(label) // 4:
            return None
        place = start[:, None] + torch.arange(width)  # [R, S]
        column = order[torch.minimum(place, end[:, None] - 1)]
        positive = (place < end[:, None]) & (self._cols.place[column] != self._rows.place[:, None])
        return Own(column, positive if self._cols.usable is None else positive & self._cols.usable[column])

    def own(self, per_class: int | None = None) -> Own:
        """Return columns of each row among which all its positives are, and the mask of these.

        On the CPU they are few. Elsewhere, and in compiled code, they are all columns, unless rows and
        columns are the same samples, `per_class` of every class.
        """
        if self._own is not None:
            return self._own
        if per_class is None or self._rows is not self._cols or len(self.cosine) % per_class:
            return Own(*compact_columns(self.positive))
        label, place = self._cols.label, torch.arange(len(self.cosine), device=self.cosine.device)
        order = label.argsort(stable=True)
        members = order.view(-1, per_class)
        ordered = label[members]
        equal = (ordered[:, 0] == ordered[:, -1]).all() & (ordered[1:, 0] != ordered[:-1, 0]).all()
        refuse_unless(equal, f"this loss was built for batches with {per_class} samples of every class")
        column = members[torch.empty_like(order).scatter_(0, order, place // per_class)]  # [R, per_class]
        return Own(column, column != place[:, None])

    def mixed(self, first: Tensor, second: Tensor, share: Tensor) -> Table:
        """Return a table with mixtures of anchors as further anchors and candidates.

        Args:
            first, second: [V] the anchors that are mixed, which are the first candidates, too.
            share: [V] share of the unit vector of the first; the mixtures are not normalised.
        """
        rows, other = share[:, None], 1 - share[:, None]
        cosine = self.cosine
        cosine = torch.cat(
            [cosine, rows * cosine.index_select(0, first) + other * cosine.index_select(0, second)]
        )
        mixtures = rows.T * cosine.index_select(1, first) + other.T * cosine.index_select(1, second)
        place = self.cosine.shape[1] + torch.arange(len(first), device=first.device)
        added = self._rows.take(first)._replace(place=place, norm=torch.ones_like(share))
        samples = self._rows.join(added)
        if self._rows is not self._cols:
            usable = None if self._cols.usable is None else self._cols.usable[first]
            return Table(
                torch.cat([cosine, mixtures], 1), samples, self._cols.join(added._replace(usable=usable))
            )
        return Table(torch.cat([cosine, mixtures], 1), samples, samples)

    def near(self, similarity: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries of a table [R, C] among which all positives are, and the mask of these.

        On the CPU the columns of the row's own class, [R, S], if these are few; or all.
        """
        if self._own is None:
            return similarity, self.positive
        return similarity.gather(1, self._own.column), self._own.positive

    def far(self, fill: float) -> Tensor:
        """Return [R, C] the cosines of the negatives, without gradient, and `fill` elsewhere."""
        cosine = self.cosine.detach()
        if self._own is None or self._cols.usable is not None:
            return torch.where(self.negative, cosine, fill)
        return cosine.scatter(1, self._own.column, fill)

    def similarity(self, measure: Measure) -> Tensor:
        """Return [R, C] similarities, larger for closer samples; see `Measure`."""
        similarity: Tensor = getattr(self, measure)
        return similarity

    @lazy
    def dot(self) -> Tensor:
        return self.cosine * self._rows.norm[:, None] * self._cols.norm[None, :]

    @lazy
    def distance(self) -> Tensor:
        return self.dot - 0.5 * (self._rows.norm[:, None].square() + self._cols.norm[None, :].square())

    @property
    def labels(self) -> Tensor:
        """Labels of the anchors, [R]."""
        return self._rows.label

    @lazy
    def itself(self) -> Tensor:
        """[R, C] bool, the candidate is the anchor."""
        return self._rows.place[:, None] == self._cols.place[None, :]

    @lazy
    def own_square(self) -> Tensor:
        """[R, C] squared distances of unit vectors, exactly 0 between a sample and itself."""
        return torch.where(self.itself, 0.0, 2 - 2 * self.cosine)

    @lazy
    def own_distance(self) -> Tensor:
        """[R, C] distances of unit vectors, exactly 0 between a sample and itself."""
        return safe_sqrt(self.own_square)

    @lazy
    def later(self) -> Tensor:
        """[R, C] bool, the candidate follows the anchor: selects every unordered pair once."""
        return self._rows.place[:, None] < self._cols.place[None, :]

    def head(self, rows: int) -> Table:
        """Return the table of the first `rows` anchors."""
        return self if rows == len(self._rows.place) else self.rows(slice(rows))

    def rows(self, which: slice, cosine: Tensor | None = None) -> Table:
        """Return the table of some anchors, with other cosines if they are given."""
        cosine = self.cosine[which] if cosine is None else cosine
        part = Table(cosine, self._rows.take(which), self._cols)
        for name in ("_same", "positive", "negative"):
            if name in self.__dict__:  # made already
                part.__dict__[name] = self.__dict__[name][which]
        part.__dict__["_own"] = self._own and Own(*(x[which] for x in self._own))
        return part


class PairTable(Table):
    """Similarities of P pairs, [P, 1]: the first image of each is an anchor with one candidate, the second.

    Args:
        cosine: [P, 1] dot products of unit vectors.
        positive, negative: [P, 1] bool; neither for pairs that do not count.
    """

    def __init__(self, cosine: Tensor, positive: Tensor, negative: Tensor) -> None:
        self.cosine = cosine
        self.__dict__ |= {"positive": positive, "negative": negative, "_own": None}

    def rows(self, which: slice, cosine: Tensor | None = None) -> PairTable:
        """Return the table of some pairs, with other cosines if they are given."""
        cosine = self.cosine[which] if cosine is None else cosine
        return PairTable(cosine, self.positive[which], self.negative[which])


class Members(NamedTuple):
    """Products within pairs: squared lengths, dot products, squared lengths of sum and difference."""

    first: Tensor
    second: Tensor
    cross: Tensor
    total: Tensor
    gap: Tensor


class PairTables(NamedTuple):
    """Dot products of the members (i, j) of pairs p with the members (k, l) of pairs q, each [P, Q]."""

    ik: Tensor
    il: Tensor
    jk: Tensor
    jl: Tensor
    p: Members  # each [P, 1]
    q: Members  # each [1, Q]


class View:
    """A batch, optional references, and all similarities shared between losses.

    Anchors are the samples of the batch; positives and negatives are taken from the batch followed by the
    references. All tables come from one product of the normalised embeddings. Alternate pairs are formed
    over the same sequence, so that a sample without a free partner in the batch takes one from the
    references; pairs without a member in the batch serve as negatives only.

    Args:
        embeddings: [B, D], raw, in the precision of the computation.
        labels: [B] integers.
        references, reference_labels: [M, D] and [M], or None.
        usable: [M] bool; references marked False are ignored.
        paired: Also form the alternate pairs.
        cosine: [B, B] similarities to use instead of those of the embeddings.
        normalization_gradient: Exact, or ignored: the gradient by the unit vectors is that of the embeddings.
        full_dim: Dimension of the embeddings that these are a prefix of; None if they are complete.
        targets: [B, T] vectors of a teacher, or None.
        batch_as_candidates: With False, only the references are positives and negatives; not with pairs.
        gradient: Precision in which the gradient is needed; by default that of the computation.

    Raises:
        ValueError: The references are missing that would replace the batch, or alternate pairs need it.
    """

    def __init__(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        usable: Tensor | None = None,
        *,
        paired: bool = False,
        cosine: Tensor | None = None,
        normalization_gradient: NormalizationGradient = "exact",
        full_dim: int | None = None,
        targets: Tensor | None = None,
        batch_as_candidates: bool = True,
        gradient: torch.dtype | None = None,
    ) -> None:
        if not batch_as_candidates and (references is None or paired):
            raise ValueError(
                "references cannot replace the batch: there are none, or this loss forms pairs in it"
            )
        self.embeddings, self.labels, self.targets = embeddings, labels, targets
        self._gradient = gradient or embeddings.dtype
        self.batch, self.dim = embeddings.shape
        self.full_dim = full_dim or self.dim
        self.report: dict[str, Tensor] = {}
        self._synthetic: Tensor | int = 0
        self._selected: Tensor | int = 0
        self.references: tuple[Tensor, Tensor] | None = None  # preceded by the batch
        points, point_labels = embeddings, labels
        if references is not None and reference_labels is not None:
            points = torch.cat([embeddings, references])  # [C, D]
            point_labels = torch.cat([labels, reference_labels])  # [C]
            self.references = (points, point_labels)
            if usable is None and not batch_as_candidates:
                usable = torch.ones_like(reference_labels, dtype=torch.bool)
            if usable is not None:
                batch = torch.full_like(labels, batch_as_candidates, dtype=torch.bool)
                usable = torch.cat([batch, usable])
        self.candidate_labels = point_labels  # [C]
        self.usable = usable  # [C] bool, or None for all
        self._layout = alternate_pairs(point_labels, self.batch, usable) if paired else None
        unit, norm = normalize(points)
        if normalization_gradient == "ignored":
            unit = as_if_unit(unit, points)
        place = torch.arange(len(points), device=points.device)
        samples = Samples(place, point_labels, norm, usable)
        self.unit = unit[: self.batch]
        self._batch = samples.take(slice(self.batch))._replace(usable=None)
        if self._layout is not None:
            order, inverse = self._layout.order, self._layout.inverse
            unit, norm = permuted(unit, order, inverse), permuted(norm, order, inverse)
            samples = samples.take(order)._replace(norm=norm)
            cosine = None if cosine is None else cosine[order][:, order]
        self._points, self._samples, self._cosine = unit, samples, cosine
        self._pair_tables: dict[bool, PairTables] = {}

    @lazy
    def anchors(self) -> Table:
        """Every sample of the batch against all candidates, [B, C]."""
        if self.references is not None:
            return Table(self.unit @ self._points.T, self._batch, self._samples)
        cosine = _SelfProduct.apply(self._points, self._gradient) if self._cosine is None else self._cosine
        return Table(cosine, self._samples, self._samples)

    @lazy
    def within(self) -> Table:
        """Every sample of the batch against every other of the batch, [B, B]."""
        if self.references is None:
            return self.anchors
        return Table(_SelfProduct.apply(self.unit, self._gradient), self._batch, self._batch)

    @lazy
    def members(self) -> Table:
        """The first, then the second members of the anchored pairs against all candidates, [2P, C]."""
        P, Q = self._pairs.anchors, self._pairs.slots
        if self.references is None:
            return self.anchors.head(2 * P)
        members = torch.arange(2 * P, device=self._points.device)
        members = torch.where(members < P, members, members + (Q - P))
        return Table(self._points[members] @ self._points.T, self._samples.take(members), self._samples)

    @property
    def _pairs(self) -> PairLayout:
        if self._layout is None:
            raise RuntimeError("this view was built without pairs; build it with paired=True")
        return self._layout

    @property
    def pair_valid(self) -> Tensor:
        """[P] bool: the slot holds a pair with a member in the batch."""
        return self._pairs.anchored[: self._pairs.anchors]

    @lazy
    def pair_negative(self) -> Tensor:
        """[P, Q] bool: q is a pair of another class than p."""
        P, Q = self._pairs.anchors, self._pairs.slots
        label = self._samples.label[:Q]
        return (label[:P, None] != label[None, :]) & self.pair_valid[:, None] & self._pairs.valid[None, :]

    @property
    def pair_squares(self) -> Tensor:
        """[2, P] squared lengths of the raw first and second members of the anchored pairs."""
        P, Q = self._pairs.anchors, self._pairs.slots
        square = self._samples.norm.square()
        return torch.stack([square[:P], square[Q : Q + P]])

    def pair_similarity(self, measure: Measure) -> Tensor:
        """[P] similarity of the two members of each anchored pair."""
        P, Q = self._pairs.anchors, self._pairs.slots
        return diagonal(self.members.similarity(measure)[:P, Q : Q + P])

    def pair_tables(self, *, normalized: bool) -> PairTables:
        """Return dot products between and within pairs, of the normalised or of the raw embeddings."""
        if normalized not in self._pair_tables:
            self._pair_tables[normalized] = self._make_pair_tables(normalized)
        return self._pair_tables[normalized]

    def _make_pair_tables(self, normalized: bool) -> PairTables:
        P, Q = self._pairs.anchors, self._pairs.slots
        table = self.members.similarity("cosine" if normalized else "dot")
        first, second = table[:, : 2 * Q].reshape(2, P, 2, Q).unbind(0)  # [P, 2, Q]
        (ik, il), (jk, jl) = first.unbind(1), second.unbind(1)  # [P, Q]
        own = self._members(diagonal(il), normalized)
        p, q = (x[:P, None] for x in own), (x[None, :] for x in own)
        return PairTables(ik, il, jk, jl, Members(*p), Members(*q))

    def _members(self, cross: Tensor, normalized: bool) -> Members:
        """Return the products within the pairs, [Q], given the dot products of the pairs in the table."""
        Q = self._pairs.slots
        first, second = self._points[:Q], self._points[Q : 2 * Q]
        first_norm, second_norm = self._samples.norm[:Q], self._samples.norm[Q : 2 * Q]
        if self.references is not None:
            cross = (first * second).sum(1)
            cross = cross if normalized else cross * first_norm * second_norm
        if not normalized:
            square, other = first_norm.square(), second_norm.square()
            return Members(square, other, cross, square + other + 2 * cross, square + other - 2 * cross)
        one = torch.ones_like(cross)
        if self._cosine is not None:
            return Members(one, one, cross, 2 + 2 * cross.detach(), 2 - 2 * cross.detach())
        with torch.no_grad():  # from the vectors: exact for members nearly equal or nearly antipodal
            total, gap = (first + second).square().sum(1), (first - second).square().sum(1)
        return Members(one, one, cross, total, gap)

    def count_points(self, synthetic: Tensor, each: int, selected: Tensor) -> None:
        """Add the points that a loss selects to the diagnostic `synthetic_share`.

        The share is synthetic / (original + synthetic) among all points added (Symm, fig. 7).

        Args:
            synthetic: [P, Q] integers, the number of synthetic points among those of an entry.
            each: Points of every entry.
            selected: [P, Q] bool, the entries that count.
        """
        self._synthetic = self._synthetic + (synthetic * selected).sum()
        self._selected = self._selected + each * selected.sum()
        self.report["synthetic_share"] = ratio(self._synthetic, self._selected)

    @lazy
    def leftover_negative(self) -> Tensor:
        """[P, C] bool: the sample has no pair and is of another class than p."""
        Q = self._pairs.slots
        paired = torch.zeros_like(self._samples.place, dtype=torch.bool)
        paired[:Q], paired[Q : 2 * Q] = self._pairs.valid, self._pairs.valid
        pairs = len(self.pair_valid)
        return self.members.negative[:pairs] & ~paired & self.pair_valid[:, None]

    def leftover_tables(self, *, normalized: bool) -> PairTables:
        """Return `pair_tables` with every sample k in place of a pair (k, k)."""
        P = self._pairs.anchors
        table = self.members.similarity("cosine" if normalized else "dot")
        square = torch.ones_like(self._samples.norm) if normalized else self._samples.norm.square()
        square = square[None, :]
        point = Members(square, square, square, 4 * square, torch.zeros_like(square))
        p = self.pair_tables(normalized=normalized).p
        return PairTables(table[:P], table[:P], table[P : 2 * P], table[P : 2 * P], p, point)


class PairsView(View):
    """A batch of P pairs of images, each with a value: only the two images of a pair are compared.

    Args:
        embeddings: [2 P, D], raw: the two images of the first pair, of the second, and so on.
        values: [P] 1 for the same and 0 for different, or scores, larger for more alike.
        usable: [P] bool; pairs marked False are ignored.
        normalization_gradient: As of `View`.
        full_dim: As of `View`.
    """

    def __init__(
        self,
        embeddings: Tensor,
        values: Tensor,
        usable: Tensor,
        *,
        normalization_gradient: NormalizationGradient = "exact",
        full_dim: int | None = None,
    ) -> None:
        pairs = torch.arange(len(embeddings), device=embeddings.device) // 2
        super().__init__(embeddings, pairs, normalization_gradient=normalization_gradient, full_dim=full_dim)
        self.values = values
        self.counted = usable
        cosine = (self.unit[0::2] * self.unit[1::2]).sum(1, keepdim=True)
        positive, negative = (values == 1) & usable, (values == 0) & usable
        table = PairTable(cosine, positive[:, None], negative[:, None])
        self.__dict__ |= {"anchors": table, "within": table}
