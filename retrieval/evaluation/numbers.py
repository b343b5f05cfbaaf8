"""The numbers of a result by name: what they are called, what they mean, and how people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retrieval.evaluation.score import Result

_MEANINGS = {
    "map_at_r": ("MAP@R", "average precision over as many nearest as its class has pictures"),
    "r_precision": ("R-Precision", "share of its class among as many nearest as that has pictures"),
    "mean_ap": ("mAP", "average precision over the whole ranking"),
    "nmi": ("NMI", "agreement of k-means clusters with the classes"),
    "f1": ("F1", "pairs that share a cluster against pairs that share a class"),
    "linear_probe": ("Linear probe", "accuracy of a linear classifier of the training images"),
}


def keys(results: Iterable[Result]) -> list[str]:
    """The names of all numbers that some result has."""
    results = list(results)
    names = [
        *(f"recall_at_{k}" for k in sorted({k for result in results for k in result.recall})),
        *(f"precision_at_{k}" for k in sorted({k for result in results for k in result.precision})),
        *_MEANINGS,
    ]
    return [name for name in names if any(value(result, name) is not None for result in results)]


def shown(names: Iterable[str], ks: Sequence[int]) -> list[str]:
    """Those of the numbers to show: Recall@K for `ks`, Precision@K for the largest of them up to 10."""
    few = [k for k in ks if 1 < k <= 10]  # Precision@1 is Recall@1
    wanted = [*(f"recall_at_{k}" for k in ks), *(f"precision_at_{k}" for k in few[-1:]), *_MEANINGS]
    there = set(names)
    return [name for name in wanted if name in there]


def summary(names: Iterable[str], ks: Sequence[int]) -> list[str]:
    """Those that a line on a terminal has room for."""
    few = (*(f"recall_at_{k}" for k in ks), "map_at_r", "nmi", "f1", "linear_probe")
    return [name for name in shown(names, ks) if name in few]


def value(result: Result, key: str) -> float | None:
    """A number by its name: "recall_at_4", "precision_at_10", "nmi" and so on."""
    name, _, k = key.rpartition("_at_")
    if k.isdigit():
        return (result.recall if name == "recall" else result.precision).get(int(k))
    found: float | None = getattr(result, key)
    return found


def title(key: str) -> tuple[str, str]:
    """What a number is called, and what it means."""
    name, _, k = key.rpartition("_at_")
    if name == "recall":
        what = "queries whose nearest picture is" if k == "1" else f"queries with one of the {k} nearest"
        return f"Recall@{k}", f"{what} of their class"
    if name == "precision":
        return f"Precision@{k}", f"share of the query's class among the {k} nearest"
    return _MEANINGS[key]


def short(key: str) -> str:
    """What a number is called where there is little room."""
    return {"linear_probe": "probe"}.get(key, title(key)[0].replace("Recall", "R"))


def percent(share: float | None) -> str:
    """In percent, with one digit; "-" for what is not known."""
    return "-" if share is None else f"{100 * share:.1f}"
