"""What a sweep found: every number, and a table and a figure to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval import text
from retrieval.evaluation.score import Result
from retrieval.files import now, write_texts
from retrieval.metrics.significance import Summary, Welch, p_value, summarize, welch
from retrieval.reports.figures import COLOURS, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT_VERSION = 1
_CHECKPOINTS = {"best": "the best epoch on held-out classes", "last": "the last epoch"}
_BASELINE, _OTHERS = "#555555", COLOURS[0]


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes:
        scores: on the test split, of the network "before" training, after its "last" epoch and, where classes
            were held out to choose it by, after its "best" one; empty until the run is done.
        error: why it failed.
    """

    variant: str
    seed: int
    scores: Mapping[str, Result] = field(default_factory=dict)
    error: str | None = None

    @property
    def status(self) -> str:
        return "done" if self.scores else "failed" if self.error else "waiting"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        scores = {which: _metrics(result) for which, result in self.scores.items()}
        return {**asdict(self), "status": self.status, "scores": scores}


@dataclass(frozen=True)
class Row:
    """One variant over its seeds.

    Attributes:
        changes: the settings that make it.
        checkpoint: the one that counts: "best" where there is one, otherwise "last".
        recalls: its Recall@1 in every finished run.
        scores: "before", "best" and "last" -> recall_at_1 and so on, nmi, f1 -> over the runs.
        difference: of the mean Recall@1 to the baseline's; `None` for the baseline, and without runs.
        test: whether they differ.
    """

    name: str
    changes: tuple[str, ...]
    runs: int
    checkpoint: str | None
    recalls: list[float]
    scores: dict[str, dict[str, Summary]]
    difference: float | None
    test: Welch | None

    def summary(self, metric: str, which: str | None = None) -> Summary | None:
        """A metric over the runs, of the checkpoint that counts or of another."""
        return self.scores.get(which or self.checkpoint or "", {}).get(metric)


@dataclass(frozen=True)
class Comparison:
    """All variants side by side.

    Attributes:
        data: the data set as it was named.
        protocol: what was searched for in what.
        command: what asks for all of this.
        notes: what to keep in mind when reading it, a sentence each.
        bad_files: (path, reason) of images that could not be read and were left out of some run.
    """

    data: str
    protocol: str
    command: str
    baseline: str
    rows: list[Row]
    outcomes: list[Outcome]
    notes: list[str]
    bad_files: list[tuple[str, str]]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; scores are in 0..1."""
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
        }

    def save(self, folder: Path) -> None:
        """Write results.json, results.md and, once there is something to see, results.svg."""
        files = {"results.json": json.dumps(self.to_dict(), indent=2), "results.md": markdown(self)}
        if any(row.recalls for row in self.rows):
            files["results.svg"] = dot_plot(self)
        write_texts(folder, files)


def compare(variants: Mapping[str, tuple[str, ...]], baseline: str, outcomes: Sequence[Outcome]) -> list[Row]:
    """Each variant over its finished runs, and against the baseline by Welch's t-test on Recall@1."""
    done = {name: [o.scores for o in outcomes if o.variant == name and o.scores] for name in variants}
    checkpoints = {name: _checkpoint(runs) for name, runs in done.items()}
    recalls = {name: [run[checkpoints[name]].recall[1] for run in runs] for name, runs in done.items()}
    theirs = recalls[baseline]
    rows = []
    for name, changes in variants.items():
        ours = recalls[name]
        compared = name != baseline and ours and theirs
        rows.append(
            Row(
                name=name,
                changes=changes,
                runs=sum(outcome.variant == name for outcome in outcomes),
                checkpoint=checkpoints[name] if ours else None,
                recalls=ours,
                scores={which: _summaries(done[name], which) for which in ("before", "best", "last")},
                difference=summarize(ours).mean - summarize(theirs).mean if compared else None,
                test=welch(ours, theirs) if compared else None,
            )
        )
    return rows


def _checkpoint(runs: Sequence[Mapping[str, Result]]) -> str:
    return "best" if all("best" in scores for scores in runs) else "last"


def _metrics(result: Result) -> dict[str, float]:
    found = {f"recall_at_{k}": value for k, value in result.recall.items()}
    return found | {n: v for n, v in (("nmi", result.nmi), ("f1", result.f1)) if v is not None}


def _summaries(runs: Sequence[Mapping[str, Result]], which: str) -> dict[str, Summary]:
    values: dict[str, list[float]] = {}
    for scores in runs:
        for metric, value in _metrics(scores[which]).items() if which in scores else ():
            values.setdefault(metric, []).append(value)
    return {metric: summarize(found) for metric, found in values.items()}


# ---- to read


def table(comparison: Comparison) -> str:
    """Means and standard deviations as plain text, one variant a line, in percent."""
    cells = _cells(comparison)
    lines = text.align_columns(cells, right=range(1, len(cells[0])))
    return "\n".join([*lines, "", *_notes(comparison)])


def markdown(comparison: Comparison) -> str:
    """The same as a page, with the figure, what each variant changes, and the command that asks for it."""
    head, *rows = _cells(comparison)
    lines = [f"# Sweep on {comparison.data}", "", _line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    lines += [*map(_line, rows), ""]
    lines += [paragraph for note in _notes(comparison) for paragraph in (note, "")]
    if any(row.recalls for row in comparison.rows):
        lines += ["![Recall@1 of every run](results.svg)", ""]
    for row in comparison.rows:
        lines.append(f"- **{row.name}**: {', '.join(f'`{c}`' for c in row.changes) or 'nothing changed'}")
    return "\n".join([*lines, "", "```sh", comparison.command, "```", ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(comparison: Comparison) -> list[list[str]]:
    rows = comparison.rows
    columns = {
        "variant": [row.name for row in rows],
        "runs": [
            f"{len(r.recalls)}" if len(r.recalls) == r.runs else f"{len(r.recalls)}/{r.runs}" for r in rows
        ],
        "untrained": [_percent(row.summary("recall_at_1", "before")) for row in rows],
        "Recall@1": [_percent(row.summary("recall_at_1")) for row in rows],
    }
    if any(row.checkpoint == "best" for row in rows):
        columns["last epoch"] = [_percent(row.summary("recall_at_1", "last")) for row in rows]
    columns |= {
        "NMI": [_percent(row.summary("nmi")) for row in rows],
        "F1": [_percent(row.summary("f1")) for row in rows],
        f"vs. {comparison.baseline}": [
            "-" if row.difference is None else f"{100 * row.difference:+z.1f}" for row in rows
        ],
        "p": ["-" if row.test is None else p_value(row.test.p) for row in rows],
    }
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def _percent(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    spread = "" if summary.std is None else f" ± {100 * summary.std:.1f}"
    return f"{100 * summary.mean:.1f}{spread}"


def _notes(comparison: Comparison) -> list[str]:
    whose = {row.name: _CHECKPOINTS[row.checkpoint] for row in comparison.rows if row.checkpoint}
    if not whose:
        notes = ["No run is finished."]
    else:
        each = "; ".join(f"{name}: {which}" for name, which in whose.items())
        of = whose.popitem()[1] if len(set(whose.values())) == 1 else each
        notes = [
            "In percent: mean and standard deviation over the runs, one a seed, on the test split: "
            f"{comparison.protocol}. Recall@1, NMI and F1 are of the network after {of}.",
            f"p: Welch's t-test, two-sided, of Recall@1 against {comparison.baseline}, not corrected for the "
            "number of variants; -: fewer than two runs, or no variation.",
        ]
    return [*notes, *comparison.notes] + [
        f"Failed: {o.variant}, seed {o.seed}: {o.error}" for o in comparison.failed
    ]


def dot_plot(comparison: Comparison) -> str:
    """Recall@1 of every run, with mean and 95% interval of each variant, as SVG."""
    rows = [row for row in comparison.rows if row.recalls]
    return svg(partial(_draw_dots, rows, comparison.baseline), 7.2, 1.5 + 0.5 * len(rows))


def _draw_dots(rows: Sequence[Row], baseline: str, axes: Axes) -> None:
    every = [100 * recall for row in rows for recall in row.recalls]
    margin = max(1.0, 0.6 * (max(every) - min(every)))
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
    # The interval of two runs can be as wide as the page: the runs decide what is shown.
    axes.set_xlim(max(0.0, min(every) - margin), min(100.0, max(every) + margin))
    axes.set_xlabel("Recall@1 on the test split (%)")
    axes.set_title("Dots: runs. Diamonds and lines: their mean and its 95% interval", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
