"""docs/experiments.md, from the tables and the committed results alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from benchmarks.experiments.figures import draw_table, main_metric
from benchmarks.experiments.results import load
from benchmarks.experiments.verdicts import UNDECIDED, Verdict, compare, judge, values_of
from retrieval.errors import InputError
from retrieval.files import write_texts
from retrieval.metrics.statistics import MOST_SEEDS, Paired, holm, summarize

PAGE = ROOT / "docs" / "experiments.md"
FIGURES = FOLDER / "figures"
_SUMMARY = FOLDER / "summary.md"
_NAMES = {
    "recall_at_1": "Recall@1",
    "map_at_r": "MAP@R",
    "nmi": "NMI",
    "probe_noisy": "probe, given labels",
    "probe_clean": "probe, true labels",
    "mean_similarity": "mean cosine",
    "hard_anchor_share": "hard anchors",
    "synthetic_share": "synthetic",
    "gradient_ratio": "gradient ratio",
    "kernel_active": "kernel",
}
_PLAIN = {"mean_similarity", "gradient_ratio", "kernel_active"}  # no percentages
_PROJECTIONS = {
    "features": "*features, no head*",
    "pca": "*PCA*",
    "pca-whitened": "*whitened PCA*",
    "lda": "*LDA*",
}
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
        if results is not None and results["setups"] and not table.divisions:
            FIGURES.mkdir(parents=True, exist_ok=True)
            files += draw_table(table, setups, results, FIGURES)
    write_texts(PAGE.parent, {PAGE.name: make_page()})
    return [*files, PAGE]


def make_page(folder: Path = FOLDER, results_folder: Path = RESULTS) -> str:
    """Return the page as Markdown."""
    tables, setups = load_tables(folder), load_setups(folder)
    results = {name: found for name in tables if (found := load(name, results_folder)) is not None}
    measured = [
        table
        for table in tables.values()
        if results.get(table.name, {}).get("setups") and not table.divisions
    ]
    verdicts = judge(measured, results)
    lines = [expand(_SUMMARY.read_text(), results, verdicts).rstrip(), ""]
    lines += ["## The claims of the papers", "", *_claims(measured, results, verdicts), ""]
    for table in measured:
        lines += _section(table, setups, results[table.name], verdicts[table.name])
    return "\n".join(lines).rstrip() + "\n"


# ---- numbers in the hand-written part


def expand(
    text: str, results: Mapping[str, Any], verdicts: Mapping[str, Sequence[Verdict]] | None = None
) -> str:
    """Return text with numbers in place of expressions.

    {{mean TABLE SETUP VARIANT METRIC}}: mean over the seeds. {{gain TABLE SETUP OURS THEIRS METRIC}}: paired
    difference with its 95% interval. {{untrained TABLE SETUP BASELINE METRIC}}: value of a baseline without
    training. {{verdict TABLE SETUP OURS THEIRS}}: word of the verdict on a claim. METRIC may be left out:
    Recall@1.

    Raises:
        InputError: An expression that does not exist or has no result.
    """

    def value(found: re.Match[str]) -> str:
        kind, table, *rest = found[1].split()
        try:
            if kind == "verdict" and verdicts is not None:
                return _word_of(verdicts[table], *rest)
            return _expression(kind, results[table], rest)
        except (KeyError, IndexError, ValueError) as error:
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
        return _interval(one, (rest[1:] or ["recall_at_1"])[0])
    metric = rest[0] if rest else "recall_at_1"
    if kind == "untrained":
        return _number(results["setups"][setup]["untrained"][name][metric], metric)
    if kind == "mean":
        return _number(summarize(values_of(results["setups"][setup]["variants"][name], metric)).mean, metric)
    raise ValueError


def _number(value: float, metric: str) -> str:
    return f"{value:.2f}" if metric in _PLAIN else f"{100 * value:.1f}"


def _signed(value: float, metric: str) -> str:
    return f"{value:+.2f}" if metric in _PLAIN else f"{100 * value:+.1f}"


def _interval(one: Paired, metric: str) -> str:
    text = _signed(one.difference, metric)
    if one.low is None or one.high is None:
        return text
    return f"{text} [{_signed(one.low, metric)}, {_signed(one.high, metric)}]"


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
    metric = "" if claim.metric == "recall_at_1" else f" ({_NAMES.get(claim.metric, claim.metric)})"
    p = "-" if verdict.p is None else _p(verdict.p)
    names = f"{claim.better} {'<' if claim.lower else '>'} {claim.than}"
    rates = {_rate(table, name, variants[name]) for name in (claim.better, claim.than)}
    difference = _interval(one, claim.metric) + (" †" if len(rates) > 1 else "")
    cells = [f"{claim.says} ({claim.source}){metric}", names, verdict.setup, difference]
    precision = verdict.precision
    cells += [p, str(one.n), word, "-" if precision is None else _interval(precision, "map_at_r")]
    return f"| {' | '.join(cells)} |"


def _undecided(one: Paired, metric: str) -> str:
    """Return the word with the largest difference in the interval and the seeds that half of it needs."""
    if one.low is None or one.high is None:
        return UNDECIDED
    text = f"{UNDECIDED}, within ±{_number(max(abs(one.low), abs(one.high)), metric)}"
    few = one.seeds_for_half is not None and one.seeds_for_half < MOST_SEEDS
    return f"{text} ({one.seeds_for_half} seeds for half)" if few else text


def _p(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


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
    metric = _NAMES[main_metric(table)]
    yield from (f"![{metric} of every run](experiments/figures/{table.name}.svg)", "")
    if table.figure is not None:
        yield from (
            f"![{_NAMES[table.figure]} over training](experiments/figures/{table.name}-curves.svg)",
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
    head = ["variant", *(["lr"] if table.trials else []), "seeds", *(_NAMES[key] for key in metrics)]
    head += [f"vs. {table.baseline} [95%]", "p (Holm)", *(_NAMES[key] for key in shown)]
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    left = 1 + bool(table.trials)
    for name, values in found.get("untrained", {}).items():
        cells = [_PROJECTIONS[name], *[""] * left, *(_untrained_cell(values, key) for key in metrics)]
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
        cells += ["-" if one is None else _interval(one, main)]
        cells += [_p(corrected[name]) if name in corrected else "-"]
        cells += [_cell(values, key) for key in shown]
        yield f"| {' | '.join(cells)} |"


def _rate(table: Table, name: str, values: Mapping[str, Any]) -> str:
    """Return the learning rate of a variant: the chosen one, or the fixed one."""
    fixed = merge(table.settings, table.variants[name]).get("optimizer", {}).get("lr")
    rate = (values.get("chosen") or {}).get("optimizer.lr", fixed)
    return "-" if rate is None else f"{rate:g}"


def _untrained_cell(values: Mapping[str, float], metric: str) -> str:
    return _number(values[metric], metric) if metric in values else "-"


def _cell(values: Mapping[str, Any], metric: str) -> str:
    numbers = values_of(values, metric)
    if not numbers:
        return "-"
    one = summarize(numbers)
    text = _number(one.mean, metric)
    return text if metric in _PLAIN or one.std is None else f"{text} ± {100 * one.std:.1f}"


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
