"""Section of a table with sizes: claims over all sizes and in each group, methods, and what rules chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from benchmarks.experiments import divisions, sizes
from benchmarks.experiments.catalogue import RULES, Table
from benchmarks.experiments.divisions import METRICS, DivisionVerdict
from benchmarks.experiments.texts import NAMES, PROJECTIONS, interval, probability
from benchmarks.experiments.verdicts import UNDECIDED


def size_lines(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what follows the text of the section."""
    yield from (*_claims(table, results), "", *_methods(table, results), "")
    if table.has_rules:
        yield from (*_choices(table, results), "")
    yield f"![MAP@R against the features by the number of images](experiments/figures/{table.name}.svg)"
    yield ""


def _claims(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of verdicts; in a group of sizes a decided difference is bold."""
    assert table.sizes is not None
    groups = list(table.sizes.groups)
    head = ["claim", "methods", "metric", "all sizes [95%]", "better on", "p (Holm)", "here", *groups]
    yield f"| {' | '.join(head)} |"
    yield f"|---|---|---|---:|---:|---:|---|{'---:|' * len(groups)}"
    for one in sizes.judge(table, results):
        every, found = one.every, one.every.found
        word = every.word if every.word == UNDECIDED else f"**{every.word}**"
        cells = [f"{every.claim.says} ({every.claim.source})", f"{every.claim.better} > {every.claim.than}"]
        cells += [NAMES[every.metric], interval(found, every.metric), f"{found.wins} of {len(found.units)}"]
        cells += [probability(found.p), word]
        cells += [_in_group(one.of_group.get(group)) for group in groups]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "In a group of sizes, bold: decided, p (Holm) < 0.05."


def _in_group(verdict: DivisionVerdict | None) -> str:
    if verdict is None:
        return "-"
    text = interval(verdict.found, verdict.metric)
    return text if verdict.word == UNDECIDED else f"**{text}**"


def _methods(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of methods: differences from the features in each group, and the chosen epochs."""
    assert table.sizes is not None
    views = {group: sizes.view(table, results, group) for group in (sizes.ALL, *table.sizes.groups)}
    first, *others = table.untrained
    head = [f"{group}, {NAMES[metric]}" for group in views for metric in METRICS]
    yield f"| minus {PROJECTIONS[first].strip('*').partition(',')[0]} | {' | '.join(head)} | best epoch |"
    yield f"|---|{'---:|' * (len(head) + 1)}"
    for name in [*others, *table.variants, *(RULES if table.has_rules else ())]:
        cells = [PROJECTIONS.get(name, f"*{name}*" if name in RULES else name)]
        for seen in views.values():
            for metric in METRICS:
                found = divisions.compare(table, seen, name, first, metric)
                cells.append("-" if found is None else interval(found, metric))
        yield f"| {' | '.join([*cells, _epochs(table, results, name)])} |"


def _epochs(table: Table, results: Mapping[str, Any], name: str) -> str:
    """Return the median epoch that held-out classes choose, and how often they keep the start."""
    if name not in table.variants:
        return ""
    epochs = [
        cell["variants"][name]["epoch"]
        for one in results["setups"].values()
        for cell in one["cells"]
        if cell["stage"] == sizes.TEST
    ]
    return f"{median(epochs):g} (start {100 * epochs.count(0) / len(epochs):.0f}%)"


def _choices(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what rules took on the training halves, one by one and all together."""
    assert table.sizes is not None
    chosen = sizes.choices(table, results)
    numbers = sorted({number for _, number in chosen})
    first = {number: next(rules for (_, one), rules in chosen.items() if one == number) for number in numbers}
    yield f"Taken on the training halves of {len(numbers)} divisions:"
    yield ""
    ones = Counter(next(iter(rules["one"].values())) for rules in first.values())
    yield f"- *one*: {_counted(ones)}."
    for group in table.sizes.groups:
        taken = Counter(rules["by-size"][group] for rules in first.values())
        yield f"- *by-size*, {group}: {_counted(taken)}."
    together = sizes.shared_choice(table, results)
    texts = ", ".join(f"{group} {method}" for group, method in together.items())
    yield f"- All training halves together: {texts}."


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} in {count}" for name, count in counts.most_common())
