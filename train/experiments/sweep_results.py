"""Results of a sweep as files: results.json, results.md and the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retrieval.files import now, write_texts
from train.experiments.curves import LearningCurve, curves_figure
from train.experiments.references import Reference
from train.experiments.results_figure import results_figure
from train.experiments.results_table import ResultsTable
from train.experiments.sweep_comparison import Outcome, VariantSummary
from train.experiments.sweep_plan import SweptNumber

FORMAT_VERSION = 2


@dataclass(frozen=True)
class SweepResults:
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
        curves: Learning curves of the variants.
        references: Results without training; empty until they are computed.
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
    curves: Sequence[LearningCurve] = field(default_factory=list)
    references: Sequence[Reference] = field(default_factory=list)

    @property
    def failed(self) -> list[Outcome]:
        """The failed runs."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    @property
    def table(self) -> ResultsTable:
        """The table of the variants."""
        return ResultsTable(self.rows, self.baseline, self.protocol, self.references)

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
            "references": [reference.to_dict() for reference in self.references],
            "runs": [outcome.to_dict() for outcome in self.outcomes],
            "notes": self.notes,
            "bad_files": self.bad_files,
            "swept": None if self.swept is None else asdict(self.swept),
            "curves": [curve.to_dict() for curve in self.curves],
        }

    def to_text(self) -> str:
        """Return the table with its notes for a terminal."""
        return "\n".join([*self.table.lines(), "", *self._notes(brief=True)])

    def to_markdown(self) -> str:
        """Return a Markdown page: tables, figures, settings of the variants, and the command."""
        lines = [f"# Sweep on {self.data}", "", *self.table.markdown(), ""]
        lines += [paragraph for note in self._notes() for paragraph in (note, "")]
        if any(row.recalls for row in self.rows):
            lines += ["![Recall@1 of every run](results.svg)", ""]
        if self.curves:
            lines += ["![Learning curves of the variants](curves.svg)", ""]
        for row in self.rows:
            lines.append(f"- **{row.name}**: {', '.join(f'`{c}`' for c in row.changes) or 'nothing changed'}")
        return "\n".join([*lines, "", "```sh", self.command, "```", ""])

    def save(self, folder: Path) -> None:
        """Write results.json, results.md, results.svg once a run is finished, and curves.svg if any."""
        files = {"results.json": json.dumps(self.to_dict(), indent=2), "results.md": self.to_markdown()}
        if any(row.recalls for row in self.rows):
            files["results.svg"] = results_figure(self.rows, self.baseline, self.swept, self.references)
        if self.curves:
            files["curves.svg"] = curves_figure(self.curves)
        write_texts(folder, files)

    def _notes(self, *, brief: bool = False) -> list[str]:
        failures = [f"Failed: {o.variant}, seed {o.seed}: {o.error}" for o in self.failed]
        return [*self.table.notes(brief=brief), *self.notes, *failures]
