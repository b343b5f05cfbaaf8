"""Results of several variants as tables for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from retrieval import text
from retrieval.evaluation.comparison import TESTED
from retrieval.metrics.statistics import MOST_SEEDS, Paired
from retrieval.metrics.table import metric_columns
from retrieval.reports.text_tables import mean_and_std, p_value, points
from train.experiments.references import Reference
from train.experiments.sweep_comparison import PAIRED_METRICS, PROBE, VariantSummary

_CHECKPOINTS = {"best": "the best epoch on held-out images", "last": "the last epoch"}


@dataclass(frozen=True)
class ResultsTable:
    """Variants side by side, in percent.

    Attributes:
        rows: One summary per variant.
        baseline: Name of the variant that the others are compared with.
        protocol: Test images and searched set, in one line.
        references: Results without training, below the variants.
    """

    rows: Sequence[VariantSummary]
    baseline: str
    protocol: str
    references: Sequence[Reference] = ()

    def lines(self) -> list[str]:
        """Return the lines of a table for a terminal, about 120 columns wide."""
        columns = self._columns(brief=True)
        first = {row.name: row.paired.get(TESTED) for row in self.rows}
        columns |= {
            f"vs. {self.baseline}": [_difference(found) for found in first.values()],
            "p": [_p(found) for found in first.values()],
            "seeds": [_seeds(found) for found in first.values()],
        }
        cells = self._with_head(columns)
        return text.align_columns(cells, right=range(1, len(cells[0])))

    def markdown(self) -> list[str]:
        """Return the lines of Markdown tables of the scores and of the paired differences."""
        tables = [_markdown_table(self._with_head(self._columns(brief=False)), texts=1)]
        differences = list(self._differences())
        if differences:
            head = ["metric", "variant", "pairs", f"vs. {self.baseline}", "95% interval"]
            head += ["p alone", "p", "seeds"]
            tables.append(_markdown_table([head, *differences], texts=2))
        return [line for table in tables for line in (*table, "")][:-1]

    def notes(self, *, brief: bool = False) -> list[str]:
        """Return how to read the table, one paragraph each.

        Args:
            brief: For the table of a terminal, which has fewer columns.
        """
        checkpoints = {row.name: _CHECKPOINTS[row.checkpoint] for row in self.rows if row.checkpoint}
        if not checkpoints:
            return ["No run is finished."]
        each = "; ".join(f"{name}: {which}" for name, which in checkpoints.items())
        of = next(iter(checkpoints.values())) if len(set(checkpoints.values())) == 1 else each
        notes = [
            "In percent: mean ± standard deviation over the runs, one per seed, on the test split: "
            f"{self.protocol}. All metrics but those named otherwise are of the network after {of}.",
        ]
        if any(row.summary(TESTED, "validation") for row in self.rows):
            notes.append("held-out: Recall@1 of the held-out images after the same epoch.")
        if not brief and any(row.summary(TESTED, "oracle") for row in self.rows):
            notes.append(
                "oracle: highest Recall@1 of the watched test images during training; it selects on the "
                "test split and is not a result."
            )
        if untrained := [row.name for row in self.rows if _is_start(row)]:
            notes.append(
                f"{', '.join(untrained)}: no epoch was better than the start on the held-out images, so the "
                "start is what is measured. `last epoch` is of training; --set split.choice=auto or "
                "split.validation=0 measures it."
            )
        if self.references:
            notes.append(
                "off-the-shelf: features of the pretrained backbone without training, with the preprocessing "
                "of the runs (`evaluate` takes the backbone's own); pca, pca-whitened: their principal "
                "components, fitted to the training images."
            )
        if any(row.paired for row in self.rows):
            notes.append(
                f"vs. {self.baseline}: mean difference over shared seeds, with its 95% interval for "
                "other seeds on these test images, not for other classes. p: paired "
                "t-test, two-sided, corrected for the number of variants (Holm). seeds (for half): how many "
                "would show half of the difference, at the 5% level with a power of 80%, if the spread is as "
                "observed. -: fewer than two shared seeds, or no variation."
            )
        if any(row.seconds_per_step for row in self.rows):
            notes.append(
                "s/step: seconds of a training step with loading, the median of a run, the mean over runs."
            )
        if not brief and any(row.peak_memory for row in self.rows):
            notes.append(
                "memory: peak of the process during training, on a GPU of its tensors; the largest run."
            )
        return notes

    def _columns(self, *, brief: bool) -> dict[str, list[str]]:
        rows = self.rows
        names = [*(row.name for row in rows), *(reference.name for reference in self.references)]
        columns = {"variant": names, "runs": [_runs(row) for row in rows]}

        def add(title: str, metric: str = TESTED, which: str | None = None) -> None:
            found = [row.summary(metric, which) for row in rows]
            if which is None:
                found += [reference.summary(metric) for reference in self.references]
            if any(found):
                columns[title] = [mean_and_std(summary) for summary in found]

        if not brief:
            add("untrained", which="before")
        add("Recall@1")
        add("held-out", which="validation")
        if any(row.checkpoint == "best" for row in rows):
            add("last epoch", which="last")
        if not brief:
            add("oracle", which="oracle")
        add("MAP@R", "map_at_r")
        add("NMI", "nmi")
        if not brief:
            add("F1", "f1")
        add("probe", PROBE)
        if any(row.seconds_per_step for row in rows):
            columns["s/step"] = [
                "-" if row.seconds_per_step is None else f"{row.seconds_per_step.mean:.2g}" for row in rows
            ]
        if not brief and any(row.peak_memory for row in rows):
            columns["memory"] = [
                "-" if row.peak_memory is None else f"{row.peak_memory / 2**20:,.0f} MiB" for row in rows
            ]
        return columns

    def _with_head(self, columns: dict[str, list[str]]) -> list[list[str]]:
        """Return the rows of a table; columns without values for the references are filled."""
        count = len(self.rows) + len(self.references)
        filled = [[*cells, *["-"] * (count - len(cells))] for cells in columns.values()]
        return [list(columns), *map(list, zip(*filled, strict=True))]

    def _differences(self) -> Iterator[list[str]]:
        titles = {column.key: column.title for column in metric_columns(PAIRED_METRICS)}
        for metric in PAIRED_METRICS:
            for row in self.rows:
                found = row.paired.get(metric)
                if found is not None:
                    p = "-" if found.p is None else p_value(found.p)
                    numbers = [points(found.difference), _interval(found), p, _p(found), _seeds(found)]
                    yield [titles[metric], row.name, str(found.n), *numbers]


def _is_start(row: VariantSummary) -> bool:
    """Whether the best epoch of every run is the start: all its scores are those before training."""
    before = row.scores.get("before")
    return row.checkpoint == "best" and bool(before) and before == row.scores["best"]


def _runs(row: VariantSummary) -> str:
    finished = len(row.recalls)
    return f"{finished}" if finished == row.runs else f"{finished}/{row.runs}"


def _interval(found: Paired) -> str:
    return "-" if found.low is None else f"[{points(found.low)}, {points(found.high)}]"


def _difference(found: Paired | None) -> str:
    if found is None:
        return "-"
    return points(found.difference) if found.low is None else f"{points(found.difference)} {_interval(found)}"


def _p(found: Paired | None) -> str:
    return "-" if found is None or found.p_holm is None else p_value(found.p_holm)


def _seeds(found: Paired | None) -> str:
    if found is None or found.seeds_for_half is None:
        return "-"
    return f"≥{MOST_SEEDS}" if found.seeds_for_half >= MOST_SEEDS else str(found.seeds_for_half)


def _markdown_table(cells: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Return the lines of a Markdown table whose first columns are texts and whose others are numbers."""
    head, *rows = cells
    rule = [*["---"] * texts, *["---:"] * (len(head) - texts)]
    return [_line(cells) for cells in (head, rule, *rows)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
