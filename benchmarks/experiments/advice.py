"""What a reader can act on, and what does not hold everywhere: numbers whose verdicts are those of the text.

A line of advice names the pair of methods that it rests on and whether their difference is decided. If new
results decide otherwise, the page is not written, so that the line is corrected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.experiments import divisions, sizes
from benchmarks.experiments.catalogue import Table
from benchmarks.experiments.divisions import DivisionVerdict, stratified
from benchmarks.experiments.texts import NAMES, interval
from benchmarks.experiments.verdicts import CONFIRMED, REFUTED, UNDECIDED


def decided(table: Table, results: Mapping[str, Any], pair: str, metric: str, *group: str) -> str:
    """Return how often and by how much a method is better than another, certainly.

    Args:
        table: Table with divisions.
        results: Its results.
        pair: OURS>THEIRS, a claim of the table that is confirmed, or the reverse of one that is refuted.
        metric: Key of the metric.
        group: Words of a group of sizes; none for all.

    Raises:
        ValueError: The difference is not decided in this sense, or was not tested.
    """
    ours, _, theirs = pair.partition(">")
    words = {
        CONFIRMED: (ours, theirs),
        REFUTED: (theirs, ours),
    }
    for one in verdicts(table, results, " ".join(group) or sizes.ALL):
        claimed = (one.claim.better, one.claim.than)
        if one.metric == metric and words.get(one.word) == claimed:
            return _text(table, results, ours, theirs, metric, " ".join(group))
    raise ValueError(f"{pair} is not decided")


def undecided(table: Table, results: Mapping[str, Any], pair: str, metric: str, *group: str) -> str:
    """Return the same of a claim that is undecided; `ValueError` for others."""
    ours, _, theirs = pair.partition(">")
    for one in verdicts(table, results, " ".join(group) or sizes.ALL):
        if one.metric == metric and (one.claim.better, one.claim.than, one.word) == (ours, theirs, UNDECIDED):
            return _text(table, results, ours, theirs, metric, " ".join(group))
    raise ValueError(f"{pair} is decided, or was not tested")


def verdicts(table: Table, results: Mapping[str, Any], group: str = sizes.ALL) -> list[DivisionVerdict]:
    """Return the verdicts of a table, or those in a group of its sizes."""
    if table.sizes is None:
        return divisions.judge(table, results)
    every = sizes.judge(table, results)
    if group == sizes.ALL:
        return [one.every for one in every]
    return [one.of_group[group] for one in every if group in one.of_group]


def disagreements(table: Table, results: Mapping[str, Any]) -> str:
    """Return the claims whose sets disagree, as a list in Markdown.

    They do if the 95% interval of one set, over its divisions alone, is above 0, and that of another below.
    """
    return "\n".join(_disagreements(table, results)) or "- None."


def _disagreements(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    for one in verdicts(table, results):
        alone = {title: stratified({title: values}) for title, values in one.found.of_set.items()}
        above = [title for title, found in alone.items() if found.low is not None and found.low > 0]
        below = [title for title, found in alone.items() if found.high is not None and found.high < 0]
        if above and below:
            parts = [
                f"{title} {interval(found, one.metric)} ({found.wins} of {len(found.units)})"
                for title, found in alone.items()
            ]
            claim = one.claim
            pair = f"{claim.better} {'<' if claim.lower else '>'} {claim.than}"
            yield f"- {claim.says} (*{pair}*, {NAMES[one.metric]}): {', '.join(parts)}."


def _text(table: Table, results: Mapping[str, Any], ours: str, theirs: str, metric: str, group: str) -> str:
    seen = results if table.sizes is None else sizes.view(table, results, group or sizes.ALL)
    found = divisions.compare(table, seen, ours, theirs, metric)
    if found is None:
        raise ValueError("not measured")
    units = len(found.units)
    return f"{NAMES[metric]} {interval(found, metric)} on {found.wins} of {units} divisions"
