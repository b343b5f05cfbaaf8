"""Groups of near-duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from retrieval.curation.near_pairs import SampledRecall
from retrieval.galleries.items import Item, item_value
from retrieval.storage.records import Value


@dataclass(frozen=True)
class Group:
    """Images connected by pairs of near-duplicates.

    Attributes:
        members: Items, by id.
        lowest: Lowest cosine similarity between two members; below the threshold if the group is a chain.
        identical: Whether the files of all members have the same bytes.
    """

    members: tuple[Item, ...]
    lowest: float
    identical: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Distinct labels of the members; with more than one, at least one is wrong."""
        return tuple(sorted({item.label for item in self.members if item.label is not None}))

    def products(self, column: str) -> set[Value]:
        """Return the distinct products of the members, `None` among them for images without one."""
        return {item_value(item, column) for item in self.members}


@dataclass(frozen=True)
class NearDuplicates:
    """Result of a search for near-duplicates.

    Attributes:
        groups: Groups with several labels first, then by falling similarity.
        recall: Measured recall of the pairs; `None` if it was not measured.
        complete: Whether all pairs were compared.
    """

    groups: list[Group]
    recall: SampledRecall | None
    complete: bool

    @classmethod
    def sorted(
        cls,
        groups: Iterable[Group],
        recall: SampledRecall | None,
        *,
        complete: bool,
        product: str | None = None,
    ) -> NearDuplicates:
        """Return the result with its groups in order.

        Args:
            groups: Groups.
            recall, complete: As above.
            product: Column of the products; groups of views of a single product are left out.
        """
        if product is not None:
            of_each = ((one, one.products(product)) for one in groups)
            groups = [one for one, found in of_each if len(found) != 1 or None in found]
        by_similarity = sorted(groups, key=lambda one: (len(one.labels) < 2, -one.lowest, one.members[0].id))
        return cls(by_similarity, recall, complete)
