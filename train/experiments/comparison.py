"""Results of a sweep: its variants against a baseline, as a table and a dot plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval import text
from retrieval.evaluation.comparison import TESTED, summarize_group, summarize_results, values_of
from retrieval.evaluation.score import Result
from retrieval.files import now, write_texts
from retrieval.metrics.statistics import Summary, Welch, summarize
from retrieval.reports.figures import COLOURS, render_figure
from retrieval.reports.text_tables import mean_and_std, p_value, points
from train.experiments.curves import WatchedCurve, watched_figure
from train.experiments.plan import SweptNumber

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT_VERSION = 1
_CHECKPOINTS = {"best": "the best epoch on held-out images", "last": "the last epoch"}
_PROBE = "linear_probe"
_BASELINE, _OTHERS = "#555555", COLOURS[0]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        variant: Name of the variant.
        seed: Seed of the run.
        scores: Results on the test split of the network "before" training, after its "last" epoch and, if it
            was selected on held-out images, after its "best" one; empty until the run is done.
        error: Message of a failed run.
        seconds_per_step: Median time of a training step; `None` if it was not recorded.
    """

    variant: str
    seed: int
    scores: Mapping[str, Result] = field(default_factory=dict)
    error: str | None = None
    seconds_per_step: float | None = None

    @property
    def status(self) -> str:
        """ "done", "failed" or "waiting"."""
        return "done" if self.scores else "failed" if self.error else "waiting"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        scores = {which: result.values for which, result in self.scores.items()}
        return {**asdict(self), "status": self.status, "scores": scores}


@dataclass(frozen=True)
class VariantSummary:
    """One variant over its seeds.

    Attributes:
        name: Name of the variant.
        changes: Settings that differ from the experiment.
        runs: Number of runs, finished or not.
        checkpoint: Checkpoint that is compared: "best" if all runs have it, otherwise "last".
        recalls: Recall@1 of this checkpoint in each finished run.
        scores: "before", "best" and "last" -> metric key -> summary over the runs.
        differences: Metric key -> difference of the means to the baseline; empty for the baseline itself and
            for variants without finished runs.
        tests: Metric key -> Welch's t-test against the baseline; only those with enough runs.
        seconds_per_step: Time of a training step over the runs, in seconds; `None` if it was not recorded.
    """

    name: str
    changes: tuple[str, ...]
    runs: int
    checkpoint: str | None
    recalls: list[float]
    scores: dict[str, dict[str, Summary]]
    differences: dict[str, float]
    tests: dict[str, Welch]
    seconds_per_step: Summary | None = None

    def summary(self, metric: str, which: str | None = None) -> Summary | None:
        """Return a metric over the runs, of the compared checkpoint or of another."""
        return self.scores.get(which or self.checkpoint or "", {}).get(metric)


@dataclass(frozen=True)
class SweepComparison:
    """All variants of a sweep side by side.

    Attributes:
        data: Data set, as named by the user.
        protocol: Searched set and protocol, in one line.
        command: Command that runs the same sweep.
        baseline: Name of the variant that the others are compared with.
        rows: One summary per variant.
        outcomes: Outcome of each run.
        notes: Remarks for readers, one sentence each.
        bad_files: Path and reason of each image that could not be read and was left out of some run.
        swept: The setting that the variants differ in, if it is the only one and a number.
        curves: Recall@1 of watched images over training; empty if none were watched.
    """

    data: str
    protocol: str
    command: str
    baseline: str
    rows: list[VariantSummary]
    outcomes: list[Outcome]
    notes: list[str]
    bad_files: list[tuple[str, str]]
    swept: SweptNumber | None = None
    curves: list[WatchedCurve] = field(default_factory=list)

    @property
    def failed(self) -> list[Outcome]:
        """The failed runs."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json; scores are in 0..1."""
        return {
            "format": FORMAT_VERSION,
            "created": now(),
            "data": self.data,
            "protocol": self.protocol,
            "command": self.command,
            "baseline": self.baseline,
            "variants": [asdict(row) for row in self.rows],
            "runs": [outcome.to_dict() for outcome in self.outcomes],
            "notes": self.notes,
            "bad_files": self.bad_files,
            "swept": None if self.swept is None else asdict(self.swept),
            "curves": [curve.to_dict() for curve in self.curves],
        }

    def save(self, folder: Path) -> None:
        """Write results.json, results.md, results.svg once a run is finished, and curves.svg if any."""
        files = {"results.json": json.dumps(self.to_dict(), indent=2), "results.md": sweep_markdown(self)}
        if any(row.recalls for row in self.rows):
            files["results.svg"] = sweep_figure(self)
        if self.curves:
            files["curves.svg"] = watched_figure(self.curves)
        write_texts(folder, files)


def compare_variants(
    variants: Mapping[str, tuple[str, ...]], baseline: str, outcomes: Sequence[Outcome]
) -> list[VariantSummary]:
    """Summarize the finished runs of each variant and compare them with the baseline.

    Args:
        variants: Name of each variant and the settings that it changes.
        baseline: Name of the variant to compare with.
        outcomes: Outcomes of all runs.
    """
    scores = {name: [o.scores for o in outcomes if o.variant == name and o.scores] for name in variants}
    checkpoints = {name: _compared_checkpoint(runs) for name, runs in scores.items()}
    results = {name: [run[checkpoints[name]] for run in runs] for name, runs in scores.items()}
    rows = []
    for name, changes in variants.items():
        ours, reference = results[name], results[baseline] if name != baseline else []
        group = summarize_group(name, ours, reference=reference)
        times = [o.seconds_per_step for o in outcomes if o.variant == name and o.seconds_per_step]
        rows.append(
            VariantSummary(
                name=name,
                changes=changes,
                runs=sum(outcome.variant == name for outcome in outcomes),
                checkpoint=checkpoints[name] if ours else None,
                recalls=values_of(ours),
                scores={
                    which: summarize_results([run[which] for run in scores[name] if which in run])
                    for which in ("before", "best", "last")
                },
                differences=group.differences,
                tests=group.tests,
                seconds_per_step=summarize(times) if times else None,
            )
        )
    return rows


def _compared_checkpoint(runs: Sequence[Mapping[str, Result]]) -> str:
    return "best" if all("best" in scores for scores in runs) else "last"


# ---- rendering


def sweep_table(comparison: SweepComparison) -> str:
    """Return means and standard deviations in percent as plain text, one variant per line."""
    cells = _cells(comparison)
    lines = text.align_columns(cells, right=range(1, len(cells[0])))
    return "\n".join([*lines, "", *_notes(comparison)])


def sweep_markdown(comparison: SweepComparison) -> str:
    """Return a Markdown page: table, figure, settings of the variants, and the command."""
    head, *rows = _cells(comparison)
    lines = [f"# Sweep on {comparison.data}", "", _line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    lines += [*map(_line, rows), ""]
    lines += [paragraph for note in _notes(comparison) for paragraph in (note, "")]
    if any(row.recalls for row in comparison.rows):
        lines += ["![Recall@1 of every run](results.svg)", ""]
    if comparison.curves:
        lines += ["![Recall@1 of the watched images over training](curves.svg)", ""]
    for row in comparison.rows:
        lines.append(f"- **{row.name}**: {', '.join(f'`{c}`' for c in row.changes) or 'nothing changed'}")
    return "\n".join([*lines, "", "```sh", comparison.command, "```", ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(comparison: SweepComparison) -> list[list[str]]:
    rows = comparison.rows
    columns = {
        "variant": [row.name for row in rows],
        "runs": [
            f"{len(r.recalls)}" if len(r.recalls) == r.runs else f"{len(r.recalls)}/{r.runs}" for r in rows
        ],
        "untrained": [mean_and_std(row.summary(TESTED, "before")) for row in rows],
        "Recall@1": [mean_and_std(row.summary(TESTED)) for row in rows],
    }
    if any(row.checkpoint == "best" for row in rows):
        columns["last epoch"] = [mean_and_std(row.summary(TESTED, "last")) for row in rows]
    columns |= {
        "NMI": [mean_and_std(row.summary("nmi")) for row in rows],
        "F1": [mean_and_std(row.summary("f1")) for row in rows],
        f"vs. {comparison.baseline}": [points(row.differences.get(TESTED)) for row in rows],
        "p": [_p(row, TESTED) for row in rows],
    }
    if any(row.summary(_PROBE) for row in rows):
        columns |= {
            "Linear probe": [mean_and_std(row.summary(_PROBE)) for row in rows],
            f"probe vs. {comparison.baseline}": [points(row.differences.get(_PROBE)) for row in rows],
            "p of probe": [_p(row, _PROBE) for row in rows],
        }
    if any(row.seconds_per_step for row in rows):
        columns["s/step"] = [
            "-" if row.seconds_per_step is None else f"{row.seconds_per_step.mean:.3g}" for row in rows
        ]
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _p(row: VariantSummary, metric: str) -> str:
    return p_value(row.tests[metric].p) if metric in row.tests else "-"


def _notes(comparison: SweepComparison) -> list[str]:
    checkpoints = {row.name: _CHECKPOINTS[row.checkpoint] for row in comparison.rows if row.checkpoint}
    if not checkpoints:
        notes = ["No run is finished."]
    else:
        probed = any(row.summary(_PROBE) for row in comparison.rows)
        tested = "Recall@1 and of the linear probe" if probed else "Recall@1"
        each = "; ".join(f"{name}: {which}" for name, which in checkpoints.items())
        of = checkpoints.popitem()[1] if len(set(checkpoints.values())) == 1 else each
        notes = [
            "In percent: mean and standard deviation over the runs, one per seed, on the test split: "
            f"{comparison.protocol}. All metrics but those named otherwise are of the network after {of}.",
            f"p: Welch's t-test, two-sided, of {tested} against {comparison.baseline}, not corrected for the "
            "number of variants; -: fewer than two runs, or no variation.",
        ]
        if any(row.seconds_per_step for row in comparison.rows):
            notes.append(
                "s/step: seconds of a training step with loading, the median of a run, the mean over runs."
            )
    return [*notes, *comparison.notes] + [
        f"Failed: {o.variant}, seed {o.seed}: {o.error}" for o in comparison.failed
    ]


def sweep_figure(comparison: SweepComparison) -> str:
    """Return an SVG of Recall@1 of every run, with mean and 95% interval of each variant."""
    height = 1.5 + 0.5 * sum(bool(row.recalls) for row in comparison.rows)
    size = (7.2, height) if comparison.swept is None else (13, max(4.0, height))
    return render_figure(partial(draw_sweep, comparison), *size).decode()


def draw_sweep(comparison: SweepComparison, figure: Figure) -> None:
    """Draw a dot plot and, if the variants differ in one number, a curve over it beside the plot."""
    rows, swept = [row for row in comparison.rows if row.recalls], comparison.swept
    panels = figure.subplots(1, 1 if swept is None else 2, squeeze=False)[0]
    _plot_dots(rows, comparison.baseline, panels[0])
    if swept is not None:
        _plot_curve(rows, comparison.baseline, swept, panels[1])


def _plot_curve(rows: Sequence[VariantSummary], baseline: str, swept: SweptNumber, axes: Axes) -> None:
    rows = sorted(rows, key=lambda row: swept.values[row.name])
    places, found = [swept.values[row.name] for row in rows], [summarize(row.recalls) for row in rows]
    means = [100 * one.mean for one in found]
    axes.plot(places, means, color=_OTHERS, lw=1.5, zorder=1)
    for place, row, one in zip(places, rows, found, strict=True):
        colour = _BASELINE if row.name == baseline else _OTHERS
        if one.low is not None and one.high is not None:
            axes.plot([place, place], [100 * one.low, 100 * one.high], color=colour, lw=2)
        axes.plot(place, 100 * one.mean, "D", color=colour, ms=7)
        dots = [100 * recall for recall in row.recalls]
        axes.plot([place] * len(dots), dots, "o", color=colour, ms=5, alpha=0.6, mew=0)
    if _is_geometric(places):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_ylim(*_limits([100 * recall for row in rows for recall in row.recalls]))
    axes.set_xlabel(swept.setting)
    axes.set_ylabel("Recall@1 on the test split (%)")
    axes.set_title("Mean and its 95% interval", fontsize=11)
    axes.grid(alpha=0.3)


def _is_geometric(numbers: Sequence[float]) -> bool:
    """Return whether increasing numbers are spaced more evenly on a logarithmic axis."""

    def unevenness(values: np.ndarray) -> float:
        steps = np.diff(values)
        return float(steps.std() / steps.mean())

    values = np.unique(numbers)
    return len(values) > 2 and values[0] > 0 and unevenness(np.log(values)) < unevenness(values)


def _limits(recalls: Sequence[float]) -> tuple[float, float]:
    """Return the limits of an axis of Recall@1: the interval of two runs can be as wide as the page."""
    margin = max(1.0, 0.6 * (max(recalls) - min(recalls)))
    return max(0.0, min(recalls) - margin), min(100.0, max(recalls) + margin)


def _plot_dots(rows: Sequence[VariantSummary], baseline: str, axes: Axes) -> None:
    every = [100 * recall for row in rows for recall in row.recalls]
    for place, row in enumerate(rows):
        found, colour = summarize(row.recalls), _OTHERS
        if row.name == baseline:
            colour = _BASELINE
            axes.axvline(100 * found.mean, color=colour, lw=1, ls=":", zorder=0)
        if found.low is not None and found.high is not None:
            axes.plot([100 * found.low, 100 * found.high], [place, place], color=colour, lw=2)
        axes.plot(100 * found.mean, place, "D", color=colour, ms=7)
        dots = [100 * recall for recall in row.recalls]
        axes.plot(dots, [place - 0.25] * len(dots), "o", color=colour, ms=6, alpha=0.6, mew=0)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(*_limits(every))
    axes.set_xlabel("Recall@1 on the test split (%)")
    axes.set_title("Dots: runs. Diamonds and lines: their mean and its 95% interval", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
