"""The options of a search, each declared once: type, default, range and help."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from operator import index
from types import NoneType
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from retrieval.errors import InputError, did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])

# Meaning of a hit's score by re-ranking method.
RERANKS = {
    "none": "cosine similarity",
    "query-expansion": "cosine similarity to the expanded query",
    "k-reciprocal": "1 - k-reciprocal distance",
}
# Meaning of the score of a group by name.
GROUP_SCORES = {
    "best": "that of its best view",
    "mean": "the mean of all its views",
    "soft": "a soft maximum of all its views, between the two",
}
EACH = "id"  # column of which every image has a value of its own
# Candidates of k-reciprocal re-ranking: k, but within these limits, since all are compared with each other.
# An order by a column has the most of them.
CANDIDATES, MOST_CANDIDATES = 200, 1000
NEAR_DUPLICATE = 0.95  # cosine similarity from which on two images count as near-duplicates, by default
Duplicates = Literal["keep", "refuse"]
"""What becomes of near-duplicates that are to be added."""
Names = int | str | Iterable[int | str]
"""Items given by id, a whole number, or by key; or one of them."""


class SearchKeywords(TypedDict, total=False):
    """Types of the options of a search but `k`, as arguments of functions."""

    where: str | None
    exclude: Collection[int | str]
    min_score: float | None
    group_by: str | None
    group_size: int
    group_score: str
    rerank: str
    min_probability: float | None
    order: str | None
    diversity: float


@dataclass(frozen=True)
class SearchOption:
    """The declaration of an option.

    Attributes:
        name: Its name.
        kind: Type of a value: int, float or str.
        many: Whether it has any number of values, ids and keys.
        default: Value if it is not given; `None` for no limit.
        help: What it does, in sentences.
        low, high: Smallest and largest value, if there is one.
        choices: All values, if there are few.
        metavar: What stands for its value in the help of commands.
        label: Its label on the page, without which it is not there.
        examples: Examples of values.
    """

    name: str
    kind: type
    many: bool
    default: Any
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    metavar: str | None
    label: str | None
    examples: list[str] | None

    @property
    def annotation(self) -> Any:
        """Type of an argument."""
        if self.many:
            return Collection[int | str]
        return self.kind | None if self.default is None else self.kind

    def checked(self, value: Any) -> Any:
        """Return a value as one of Python's own, such as for a number of NumPy.

        Raises:
            InputError: It is of another type.
        """
        if value is None and self.default is None:
            return None
        if self.many:
            return tuple(each_name(value))
        try:
            if self.kind is int:
                return index(value)
            if self.kind is float and not math.isnan(value):  # which refuses text
                return float(value)
        except TypeError:
            pass
        if not isinstance(value, self.kind):
            wanted = {int: "a whole number", float: "a number", str: "text"}[self.kind]
            raise InputError(f"{self.name} must be {wanted}, got {value!r}")
        return value


def each_name(names: Names) -> list[int | str]:
    """Return each of some items given by id or key, or the only one: text is one key and not its characters.

    Args:
        names: Ids, also whole numbers of NumPy, and keys; or one of them.

    Raises:
        InputError: Something that is neither.
    """
    try:
        each: Iterable[Any] = [names] if isinstance(names, str | bytes) else iter(names)  # type: ignore[arg-type]
    except TypeError:
        each = [names]
    return [*map(_name, each)]


def _name(name: Any) -> int | str:
    if isinstance(name, str):
        return name
    try:
        if not isinstance(name, bool):  # a mask is not a list of ids
            return index(name)
    except TypeError:
        pass
    raise InputError(f"item {name!r}: an item is given by its id, a whole number, or by its key, text")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    label: str | None = None,
    examples: list[str] | None = None,
) -> Any:
    """Return a field of `SearchOptions`; see `SearchOption`."""
    value = {"low": low, "high": high, "choices": choices, "examples": examples}
    return field(default=default, metadata={"help": help, "metavar": metavar, "label": label, **value})


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search; commands, API, client and assistants take them from here, with `search_options`.

    Attributes:
        k: Number of hits; fewer if there are no more.
        where: Condition that hits fulfil, see `retrieval.search.where`.
        exclude: Ids (whole numbers) and keys (text) of items that are no hits.
        min_score: Lowest score of a hit, from -1 to 1.
        group_by: Column; only the best hit of each of its values is returned, such as one hit per label for
            "label". An item without a value is a group of its own. `None` for the column of the gallery's
            products, see `Manifest.product`, and for all hits in a gallery without; "id" for all hits. An
            item that is the query leaves out its whole product, if the groups are the products.
        group_size: Number of views of a group that its hit has, if there are as many, best first; of products
            with variants, see `Manifest.variant`, the best view of each. A search with a condition sees,
            scores and counts only the views that fulfil it.
        group_score: Score of a group, one of `GROUP_SCORES`; "best" for a search without groups. Only "best"
            has probabilities, and is possible with "k-reciprocal", as is only a `group_size` of 1.
        rerank: "none"; "query-expansion", which searches again with the query moved towards its first hits;
            or "k-reciprocal", which orders the first few hundred candidates by the neighbours they share with
            the query, and finds no other hits or groups. `RERANKS` has the meaning of the scores.
        min_probability: Lowest probability of a hit, from 0 to 1, in a calibrated gallery; not with `rerank`.
        calibrated: Whether the queries are images, of whose hits a calibration gives the probabilities. Text
            has other cosines.
        order: Order of the hits: a column, with "desc" for high values first, such as "price desc"; or an
            expression, such as "score + 0.1 * in_stock desc", see `retrieval.search.expression`. The
            `MOST_CANDIDATES` best hits are put in this order, whatever `k` is: more hits only continue the
            list. Equal values are best first, missing ones last. `None` for the best first.
        diversity: Weight of the difference to the hits before, from 0 to 1: of the `MOST_CANDIDATES` best
            hits, those follow each other that are alike to the query and unlike each other; see
            `retrieval.search.diversity`. Not with `order`.

    Raises:
        InputError: A value that is out of range or unknown.
    """

    k: int = option(10, "Number of images to find.", low=1)
    where: str | None = option(
        None,
        "Condition on the hits, in a subset of SQL.",
        metavar="CONDITION",
        examples=["label = 'red' and price < 30"],
    )
    exclude: Collection[int | str] = option(
        (), "Images of the gallery to leave out of the hits, by id or key.", metavar="ID"
    )
    min_score: float | None = option(
        None, "Lowest score of a hit.", low=-1, high=1, metavar="S", label="Lowest similarity"
    )
    group_by: str | None = option(
        None,
        "Column; only the best hit for each of its values is returned, with its views. By default that of "
        "the products, in a gallery that has them; `id` for single images.",
        metavar="COLUMN",
        label="One result for each",
        examples=["label"],
    )
    group_size: int = option(
        1,
        "Number of views returned with each hit, if there is one for each value; of products with variants, "
        "the best view of each variant.",
        low=1,
        metavar="N",
    )
    group_score: str = option(
        "best",
        "Score of a hit with several views: "
        + "; ".join(f"{name}, {meaning}" for name, meaning in GROUP_SCORES.items())
        + ".",
        choices=tuple(GROUP_SCORES),
    )
    rerank: str = option(
        "none",
        "Re-ranking of the hits: "
        + "; ".join(f"{name}: the score is {meaning}" for name, meaning in RERANKS.items())
        + ".",
        choices=tuple(RERANKS),
    )
    min_probability: float | None = option(
        None,
        "Lowest probability of a hit, in a calibrated gallery; not with re-ranking.",
        low=0,
        high=1,
        metavar="P",
        label="Lowest probability",
    )
    calibrated: bool = True
    order: str | None = option(
        None,
        "Column by which the hits are ordered, with `desc` for high values first; or an expression, such as "
        "`score + 0.1 * in_stock + 0.02 * log1p(coalesce(sales, 0)) desc`. The "
        f"{MOST_CANDIDATES:,} best hits are ordered, and `k` is how many of them are returned, so that more "
        "only continue the list. Missing values are last. By default the best hits are first.",
        metavar="COLUMN",
        examples=["price", "price desc", "score + 0.1 * in_stock desc"],
    )
    diversity: float = option(
        0.0,
        "Weight of the difference to the hits before, such as 0.3, for hits that are not all the same: "
        f"maximal marginal relevance among the {MOST_CANDIDATES:,} best. Not with an order.",
        low=0,
        high=1,
        metavar="W",
    )

    def __post_init__(self) -> None:
        given = vars(self)
        for one in search_options():
            if given[one.name] is not one.default:
                object.__setattr__(self, one.name, one.checked(given[one.name]))
        if self.k < 1:
            raise InputError(f"k must be at least 1, got {self.k}")
        if self.min_score is not None and not -1 <= self.min_score <= 1:
            raise InputError(f"minimum score {self.min_score}: must be from -1 to 1")
        if not 0 <= self.diversity <= 1:
            raise InputError(f"diversity {self.diversity}: must be from 0 to 1")
        if self.diversity and self.order is not None:
            raise InputError("diversity: the hits have an order; leave out one of the two")
        if self.rerank not in RERANKS:
            hint = did_you_mean(self.rerank, RERANKS, f"known: {', '.join(RERANKS)}")
            raise InputError(f"unknown re-ranking {self.rerank!r}; {hint}")
        if self.group_size < 1:
            raise InputError(f"group_size must be at least 1, got {self.group_size}")
        if self.group_score not in GROUP_SCORES:
            hint = did_you_mean(self.group_score, GROUP_SCORES, f"known: {', '.join(GROUP_SCORES)}")
            raise InputError(f"unknown score of groups {self.group_score!r}; {hint}")
        if self.rerank == "k-reciprocal" and (self.group_size > 1 or self.group_score != "best"):
            what = "k-reciprocal re-ranking scores some candidates, not all views of a group"
            raise InputError(f"{what}; leave out group_size and group_score")
        if self.min_probability is not None:
            if not 0 <= self.min_probability <= 1:
                raise InputError(f"minimum probability {self.min_probability}: must be from 0 to 1")
            if not self.has_probabilities:
                what = "minimum probability: only the cosines of a query image have probabilities"
                raise InputError(f"{what}; leave out the re-ranking, the text and the score of groups")

    @property
    def grouping(self) -> str | None:
        """Column of which each value has one hit; `None` if hits are single images."""
        return None if self.group_by is None or self.group_by.lower() == EACH else self.group_by

    @property
    def has_probabilities(self) -> bool:
        """Whether the hits of a calibrated gallery have probabilities: scores are cosines of images."""
        return self.calibrated and self.rerank == "none" and self.group_score == "best"

    def is_nothing_like_it(self, hits: Sized) -> bool:
        """Return whether the answer is that the gallery has nothing like the query."""
        return self.min_probability is not None and not hits


@cache
def search_options() -> tuple[SearchOption, ...]:
    """Return the options of a search."""
    types = get_type_hints(SearchOptions)
    return tuple(
        SearchOption(
            one.name,
            next(kind for kind in (*get_args(types[one.name]), types[one.name]) if kind is not NoneType),
            isinstance(one.default, tuple),
            one.default,
            **one.metadata,
        )
        for one in fields(SearchOptions)
        if one.metadata
    )


def takes_search_options(function: Function) -> Function:
    """Give a function with `**options: Unpack[SearchKeywords]` a signature that names them.

    Raises:
        TypeError: At a call with another keyword.
    """
    shown = inspect.signature(function)
    own = {name: one for name, one in shown.parameters.items() if one.kind is not one.VAR_KEYWORD}
    known = own | {
        one.name: inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.annotation
        )
        for one in search_options()
        if one.name not in own
    }

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known, f"known: {', '.join(known)}")
                raise TypeError(f"{function.__name__}() has no argument {name!r}; {hint}")
        return function(*args, **given)

    call.__signature__ = shown.replace(parameters=[*known.values()])  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
