"""docs/experiments.md, from the tables and the committed results alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.experiments import divisions
from benchmarks.experiments.advice import decided, disagreements, undecided
from benchmarks.experiments.catalogue import (
    FOLDER,
    RESULTS,
    ROOT,
    Setup,
    Table,
    load_setups,
    load_tables,
    merge,
)
from benchmarks.experiments.divisions import DivisionVerdict
from benchmarks.experiments.figures import draw_divisions, draw_sizes, draw_table, main_metric
from benchmarks.experiments.results import load
from benchmarks.experiments.size_page import size_lines
from benchmarks.experiments.texts import NAMES, PLAIN, PROJECTIONS, interval, number, probability, signed
from benchmarks.experiments.verdicts import UNDECIDED, Verdict, compare, judge, values_of
from retrieval.errors import InputError
from retrieval.files import write_texts
from retrieval.metrics.statistics import MOST_SEEDS, Paired, holm, summarize

PAGE = ROOT / "docs" / "experiments.md"
FIGURES = FOLDER / "figures"
_SUMMARY = FOLDER / "summary.md"
_GEOMETRY = (
    "Distances on training images after training: of the nearest corners of two pairs, and how far the "
    "optimal points are below it, over all pairs of pairs and for the nearest pair of each; and the share of "
    "the optimal points of the nearest pairs that are no image."
)
_EXPRESSION = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


def write_page() -> list[Path]:
    """Write the page and its figures; return the files."""
    setups = load_setups()
    files: list[Path] = []
    for table in load_tables().values():
        results = load(table.name)
        if results is None or not results["setups"]:
            continue
        FIGURES.mkdir(parents=True, exist_ok=True)
        if not table.divisions:
            files += draw_table(table, setups, results, FIGURES)
        elif any(divisions.measured(table, results).values()):
            draw = draw_divisions if table.sizes is None else draw_sizes
            files += draw(table, results, FIGURES)
    write_texts(PAGE.parent, {PAGE.name: make_page()})
    return [*files, PAGE]


def make_page(folder: Path = FOLDER, results_folder: Path = RESULTS) -> str:
    """Return the page as Markdown."""
    tables, setups = load_tables(folder), load_setups(folder)
    results = {name: found for name in tables if (found := load(name, results_folder)) is not None}
    divided = {name: table for name, table in tables.items() if table.divisions}
    measured = [
        table for name, table in tables.items() if results.get(name, {}).get("setups") and name not in divided
    ]
    verdicts = judge(measured, results)
    lines = [expand(_SUMMARY.read_text(), results, verdicts, divided).rstrip(), ""]
    lines += ["## The claims of the papers", "", *_claims(measured, results, verdicts), ""]
    for table in measured:
        lines += _section(table, setups, results[table.name], verdicts[table.name])
    return "\n".join(lines).rstrip() + "\n"


# ---- numbers in the hand-written part


def expand(
    text: str,
    results: Mapping[str, Any],
    verdicts: Mapping[str, Sequence[Verdict]] | None = None,
    divided: Mapping[str, Table] | None = None,
) -> str:
    """Return text with numbers in place of expressions.

    {{mean TABLE SETUP VARIANT METRIC}}: mean over the seeds. {{gain TABLE SETUP OURS THEIRS METRIC}}: paired
    difference with its 95% interval. {{untrained TABLE SETUP BASELINE METRIC}}: value of a baseline without
    training. {{verdict TABLE SETUP OURS THEIRS}}: word of the verdict on a claim. METRIC may be left out:
    Recall@1. Of a table with divisions, {{often TABLE OURS>THEIRS ...}}: on how many divisions ours is
    better, with the difference, by both metrics; {{level TABLE METHOD METRIC SET}}: the mean of a set;
    {{section TABLE}}: its section; {{decided TABLE OURS>THEIRS METRIC GROUP}} and {{undecided ...}}: how
    often and by how much, if the verdict is so; {{disagreements TABLE}}: claims on which its sets disagree.

    Raises:
        InputError: An expression that does not exist or has no result.
    """

    def value(found: re.Match[str]) -> str:
        kind, table, *rest = found[1].split()
        try:
            if divided is not None and kind in _DIVIDED:
                return _DIVIDED[kind](divided[table], results.get(table, {"setups": {}}), *rest)
            if kind == "verdict" and verdicts is not None:
                return _word_of(verdicts[table], *rest)
            return _expression(kind, results[table], rest)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"summary.md: {found[0]}: no such result; correct it") from error

    return _EXPRESSION.sub(value, text)


def _word_of(verdicts: Sequence[Verdict], setup: str, ours: str, theirs: str) -> str:
    words = {
        one.word for one in verdicts if (one.setup, one.claim.better, one.claim.than) == (setup, ours, theirs)
    }
    (word,) = words
    return word


def _expression(kind: str, results: Mapping[str, Any], words: Sequence[str]) -> str:
    setup, name, *rest = words
    if kind == "gain":
        one = compare(results, setup, name, rest[0], rest[1] if rest[1:] else "recall_at_1")
        if one is None:
            raise ValueError
        return interval(one, (rest[1:] or ["recall_at_1"])[0])
    metric = rest[0] if rest else "recall_at_1"
    if kind == "untrained":
        return number(results["setups"][setup]["untrained"][name][metric], metric)
    if kind == "mean":
        return number(summarize(values_of(results["setups"][setup]["variants"][name], metric)).mean, metric)
    raise ValueError


# ---- divisions of the classes


def _often(table: Table, results: Mapping[str, Any], *pairs: str) -> str:
    """Return on how many divisions and by how much a method is better than another, for pairs OURS>THEIRS."""
    texts = []
    for ours, theirs in (pair.split(">") for pair in pairs):
        if not {ours, theirs} <= {*table.variants, *table.untrained}:
            raise ValueError
        recall, precision = (
            divisions.compare(table, results, ours, theirs, metric) for metric in divisions.METRICS
        )
        if recall is not None and precision is not None:
            count = f"{ours} > {theirs} on {recall.wins} of {len(recall.units)}"
            other = f"(MAP@R on {precision.wins}, {interval(precision, 'map_at_r')})"
            texts.append(f"{count}, {interval(recall, 'recall_at_1')} {other}")
    return "; ".join(texts or ["not measured yet"]) + "."


def _level(table: Table, results: Mapping[str, Any], method: str, metric: str, *title: str) -> str:
    """Return the mean of a metric of a method over the divisions of a set."""
    return number(summarize(divisions.level(table, results, method, metric)[" ".join(title)]).mean, metric)


def _divisions(table: Table, results: Mapping[str, Any]) -> str:
    """Return the section of a table with divisions, which says what of it is measured."""
    return "\n".join(_division_lines(table, results))


def _division_lines(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {table.title}", "", table.text.rstrip(), "", _coverage(table, results), "")
    if table.sizes is not None:
        if any(divisions.measured(table, results).values()):
            yield from size_lines(table, results)
    elif verdicts := divisions.judge(table, results):
        yield from (*_division_claims(table, verdicts), "", *_division_methods(table, results), "")
        first = PROJECTIONS[table.untrained[0]].strip("*").partition(",")[0]
        yield from (f"![Recall@1 against the {first}](experiments/figures/{table.name}.svg)", "")
    yield from ("```sh", table.command, "```")


def _coverage(table: Table, results: Mapping[str, Any]) -> str:
    found = divisions.measured(table, results)
    count, every = sum(map(len, found.values())), table.divisions * len(table.sets)
    plan = results.get("plan")
    runs = f" Runs of {plan['steps']:,} steps on {plan['device']}." if plan else ""
    if count == every:
        return f"All {every} divisions are measured.{runs}"
    parts = ", ".join(f"{title} {len(numbers)} of {table.divisions}" for title, numbers in found.items())
    text = f"**Not finished: {count} of {every} divisions are measured** ({parts}); the numbers will change."
    return text + runs


_DIVIDED: Mapping[str, Callable[..., str]] = {
    "often": _often,
    "level": _level,
    "section": _divisions,
    "decided": decided,
    "undecided": undecided,
    "disagreements": disagreements,
}


def _division_claims(table: Table, verdicts: Sequence[DivisionVerdict]) -> Iterator[str]:
    """Yield the table of verdicts: for each claim a line for each metric."""
    head = ["claim", "methods", "metric", "difference [95%]", "better on", "p (Holm)", "here", *table.sets]
    yield f"| {' | '.join(head)} |"
    yield f"|---|---|---|---:|---:|---:|---|{'---:|' * len(table.sets)}"
    for one in verdicts:
        claim, found = one.claim, one.found
        word = one.word if one.word == UNDECIDED else f"**{one.word}**"
        sign, wins = (">", found.wins) if not claim.lower else ("<", len(found.units) - found.wins)
        cells = [f"{claim.says} ({claim.source})", f"{claim.better} {sign} {claim.than}", NAMES[one.metric]]
        cells += [interval(found, one.metric), f"{wins} of {len(found.units)}"]
        cells += [probability(found.p), word]
        for title in table.sets:
            values = found.of_set.get(title)
            cells.append(signed(sum(values) / len(values), one.metric) if values else "-")
        yield f"| {' | '.join(cells)} |"


def _division_methods(table: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of methods: means in each set, and on how many divisions a method is the best."""
    names = [*table.untrained, *table.variants]
    levels = {
        (name, metric): divisions.level(table, results, name, metric)
        for name in names
        for metric in (*divisions.METRICS, *table.diagnostics)
    }
    best = divisions.best(table, results, names, divisions.METRICS[0])
    head = [f"{title}, {NAMES[metric]}" for title in table.sets for metric in divisions.METRICS]
    head += ["best on", "lr, median and range", *(NAMES[key] for key in table.diagnostics)]
    yield f"| method | {' | '.join(head)} |"
    yield f"|---|{'---:|' * len(head)}"
    for name in names:
        cells = [PROJECTIONS.get(name, name)]
        for title in table.sets:
            for metric in divisions.METRICS:
                values = levels[name, metric].get(title)
                cells.append(number(summarize(values).mean, metric) if values else "-")
        cells += [str(best[name]), _rates(results, name)]
        for key in table.diagnostics:
            of_set = [levels[name, key].get(title) for title in table.sets]
            numbers = [number(summarize(values).mean, key) if values else "-" for values in of_set]
            cells.append(" / ".join(numbers) if any(of_set) else "")
        yield f"| {' | '.join(cells)} |"


def _rates(results: Mapping[str, Any], name: str) -> str:
    """Return the learning rates that were chosen for a variant."""
    chosen = [
        one["variants"][name]["chosen"] for one in results["setups"].values() if name in one["variants"]
    ]
    rates = sorted(one["optimizer.lr"] for one in chosen if "optimizer.lr" in one)
    return f"{median(rates):.0e} ({rates[0]:.0e} to {rates[-1]:.0e})" if rates else ""


# ---- sections


def _claims(
    tables: Sequence[Table], results: Mapping[str, Any], verdicts: Mapping[str, Sequence[Verdict]]
) -> Iterator[str]:
    """Yield the table of verdicts of all tables."""
    yield "| claim | variants | setup | difference [95%] | p (Holm) | seeds | here | MAP@R |"
    yield "|---|---|---|---:|---:|---:|---|---:|"
    for table in tables:
        for verdict in verdicts[table.name]:
            yield _verdict_row(verdict, table, results[table.name])
    yield from (
        "",
        "†: at different learning rates, each chosen for the variant. MAP@R: difference, not tested. ‡: its "
        "sign is not that of Recall@1, so the verdict depends on the metric.",
    )


def _verdict_row(verdict: Verdict, table: Table, results: Mapping[str, Any]) -> str:
    variants = results["setups"][verdict.setup]["variants"]
    claim, one = verdict.claim, verdict.paired
    word = f"**{verdict.word}**" + " ‡" * verdict.contradicted
    if verdict.word == UNDECIDED:
        word = _undecided(one, claim.metric)
    metric = "" if claim.metric == "recall_at_1" else f" ({NAMES.get(claim.metric, claim.metric)})"
    p = probability(verdict.p)
    names = f"{claim.better} {'<' if claim.lower else '>'} {claim.than}"
    rates = {_rate(table, name, variants[name]) for name in (claim.better, claim.than)}
    difference = interval(one, claim.metric) + (" †" if len(rates) > 1 else "")
    cells = [f"{claim.says} ({claim.source}){metric}", names, verdict.setup, difference]
    precision = verdict.precision
    cells += [p, str(one.n), word, "-" if precision is None else interval(precision, "map_at_r")]
    return f"| {' | '.join(cells)} |"


def _undecided(one: Paired, metric: str) -> str:
    """Return the word with the largest difference in the interval and the seeds that half of it needs."""
    if one.low is None or one.high is None:
        return UNDECIDED
    text = f"{UNDECIDED}, within ±{number(max(abs(one.low), abs(one.high)), metric)}"
    few = one.seeds_for_half is not None and one.seeds_for_half < MOST_SEEDS
    return f"{text} ({one.seeds_for_half} seeds for half)" if few else text


def _section(
    table: Table, setups: Mapping[str, Setup], results: Mapping[str, Any], verdicts: Sequence[Verdict]
) -> Iterator[str]:
    yield from (f"## {table.title}", "", table.text, "")
    for name, found in results["setups"].items():
        yield from (f"### {setups[name].title}", "")
        yield from (_protocol(table, found), "")
        yield from _table_rows(table, found)
        yield ""
        if table.geometry:
            yield from _geometry_rows(found)
        if found["failed"]:
            yield from (f"Runs of {', '.join(found['failed'])} failed and are left out.", "")
    metric = NAMES[main_metric(table)]
    yield from (f"![{metric} of every run](experiments/figures/{table.name}.svg)", "")
    if table.figure is not None:
        yield from (
            f"![{NAMES[table.figure]} over training](experiments/figures/{table.name}-curves.svg)",
            "",
        )
    yield from ("```sh", table.command, "```", "")


def _protocol(table: Table, found: Mapping[str, Any]) -> str:
    train = found["train"]
    text = f"Training: {train['images']:,} images of {train['classes']} classes. Test: {found['protocol']}."
    if table.trials:
        text += (
            f" The learning rate is the best of {table.trials} for each variant on held-out training classes."
        )
    return text


def _table_rows(table: Table, found: Mapping[str, Any]) -> Iterator[str]:
    variants = found["variants"]
    metrics = ["probe_noisy", "probe_clean"] if table.probes else []
    metrics += ["recall_at_1", "map_at_r", "nmi"]
    shown = [key for key in table.diagnostics if any(key in one["diagnostics"] for one in variants.values())]
    main = main_metric(table)
    head = ["variant", *(["lr"] if table.trials else []), "seeds", *(NAMES[key] for key in metrics)]
    head += [f"vs. {table.baseline} [95%]", "p (Holm)", *(NAMES[key] for key in shown)]
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    left = 1 + bool(table.trials)
    for name, values in found.get("untrained", {}).items():
        cells = [PROJECTIONS[name], *[""] * left, *(_untrained_cell(values, key) for key in metrics)]
        yield f"| {' | '.join([*cells, *[''] * (2 + len(shown))])} |"
    others = [name for name in table.variants if name in variants and name != table.baseline]
    compared = {name: compare({"setups": {"": found}}, "", name, table.baseline, main) for name in others}
    ps = {name: one.p for name, one in compared.items() if one is not None and one.p is not None}
    corrected = dict(zip(ps, holm(list(ps.values())), strict=True))
    for name in table.variants:
        if name not in variants:
            continue
        values = variants[name]
        cells = [name, *([_rate(table, name, values)] if table.trials else []), str(len(values["seeds"]))]
        cells += [_cell(values, key) for key in metrics]
        one = compared.get(name)
        cells += ["-" if one is None else interval(one, main)]
        cells += [probability(corrected.get(name))]
        cells += [_cell(values, key) for key in shown]
        yield f"| {' | '.join(cells)} |"


def _rate(table: Table, name: str, values: Mapping[str, Any]) -> str:
    """Return the learning rate of a variant: the chosen one, or the fixed one."""
    fixed = merge(table.settings, table.variants[name]).get("optimizer", {}).get("lr")
    rate = (values.get("chosen") or {}).get("optimizer.lr", fixed)
    return "-" if rate is None else f"{rate:g}"


def _untrained_cell(values: Mapping[str, float], metric: str) -> str:
    return number(values[metric], metric) if metric in values else "-"


def _cell(values: Mapping[str, Any], metric: str) -> str:
    numbers = values_of(values, metric)
    if not numbers:
        return "-"
    one = summarize(numbers)
    text = number(one.mean, metric)
    return text if metric in PLAIN or one.std is None else f"{text} ± {100 * one.std:.1f}"


def _geometry_rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield _GEOMETRY
    yield ""
    yield "| variant | corner, all | below | corner, nearest | below | synthetic |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, values in found["variants"].items():
        one = values.get("geometry")
        if one:
            keys = ("corner_distance", "below_corner", "nearest_corner_distance", "nearest_below_corner")
            cells = [f"{one[key]:.3f}" for key in keys]
            yield f"| {name} | {' | '.join(cells)} | {100 * one['synthetic']:.0f}% |"
    yield ""
