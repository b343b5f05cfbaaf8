"""Reproduction of the papers' tables: rows trained with several seeds, ours beside the published values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from retrieval import text
from retrieval.errors import InputError
from retrieval.files import now, write_texts
from retrieval.machine.devices import Device
from retrieval.metrics.statistics import Summary, summarize
from retrieval.reports.text_tables import mean_and_std
from train import data, settings
from train.experiments.recipe_fit import check_recipe_fits
from train.experiments.sweep import SweepTrial, run_trials
from train.recipes import BY_COARSE, RecipeRow, column_title, group_by_columns
from train.settings import Changes, data_set_name

FORMAT_VERSION = 1


@dataclass(frozen=True)
class RowResult:
    """A row of a paper's table with our results.

    Attributes:
        row: The row.
        seeds: Seeds that the row is trained with; none if it is not run.
        ours: Key of a metric -> summary over the finished seeds, in 0..1.
        theirs: Key of a metric -> published value in percent; empty if settings of the row are changed.
        errors: Seed -> message of a failed run.
    """

    row: RecipeRow
    seeds: tuple[int, ...]
    ours: Mapping[str, Summary]
    theirs: Mapping[str, float]
    errors: Mapping[int, str]

    @property
    def finished(self) -> int:
        """Number of finished seeds."""
        return max((summary.n for summary in self.ours.values()), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: ours in 0..1, published in percent."""
        ours = {key: asdict(summary) for key, summary in self.ours.items()}
        found = {"seeds": self.seeds, "ours": ours, "published_values": self.theirs, "errors": self.errors}
        return {**self.row.to_dict(), **found}


@dataclass(frozen=True)
class Reproduction:
    """A table of a paper, ours beside theirs.

    Attributes:
        rows: Rows with their results.
        altered: Settings of the command that differ from the recipes, as "epochs 3, not 5".
    """

    rows: list[RowResult]
    altered: list[str]

    @property
    def failed(self) -> int:
        """Number of failed runs."""
        return sum(len(result.errors) for result in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of table.json."""
        rows = [result.to_dict() for result in self.rows]
        return {"format": FORMAT_VERSION, "created": now(), "altered": self.altered, "rows": rows}

    def save(self, folder: Path) -> None:
        """Write table.json and table.md."""
        write_texts(
            folder,
            {"table.json": json.dumps(self.to_dict(), indent=2), "table.md": reproduction_markdown(self)},
        )


def run_rows(
    folder: Path,
    rows: Sequence[RecipeRow],
    data_specs: Sequence[str],
    log: Callable[[str], None],
    *,
    changes: Changes | None = None,
    seeds: Sequence[int] | None = None,
    device: Device | None = None,
    show_progress: bool = False,
) -> Reproduction:
    """Train and measure rows of the papers' tables; repeated, it resumes.

    FOLDER/DATA/ROW/seed-0 is an ordinary run; table.json and table.md are updated after every run.

    Args:
        folder: Folder of the results.
        rows: Rows; those on other data sets, and those that cannot be run, are shown without results.
        data_specs: Data sets as `--data` takes them.
        log: Receives a message when a run starts or fails.
        changes: Settings to change in all rows; the published values are then left out.
        seeds: Seeds of each row; `None` for as many as in the paper.
        device: Device of all runs; `None` for that of their settings.
        show_progress: Show the progress of each run on stderr.

    Raises:
        InputError: Data sets that no row is on, or settings that cannot be used.
    """
    specs = _specs_by_name(rows, data_specs)
    changes = changes or {}
    if "seed" in changes:
        raise InputError("--set seed: a table sets the seed of every run; use --seeds")
    trials = {
        name: list(_trials(folder, rows, name, spec, changes, seeds, device)) for name, spec in specs.items()
    }
    by_row: dict[str, list[_RowTrial]] = {row.name: [] for row in rows}
    for trial in chain.from_iterable(trials.values()):
        by_row[trial.row.name].append(trial)
    altered = dict.fromkeys(  # the trials of a row differ in the seed alone
        change
        for name, own in by_row.items()
        if own
        for change in settings.altered_settings(name, own[0].config)
    )

    def collect() -> Reproduction:
        found = [_row_result(row, by_row[row.name], bool(altered)) for row in rows]
        return Reproduction(found, list(altered))

    for name, of_data in trials.items():
        log(f"{specs[name]}: {text.pluralize(len(of_data), 'run')}")
        dataset = data.load(specs[name])
        for trial in of_data:
            check_recipe_fits(trial.row.name, trial.config, dataset)
        run_trials(
            folder / name,
            of_data,
            dataset,
            lambda: collect().save(folder),
            log,
            show_progress=show_progress,
        )
    return collect()


@dataclass(frozen=True)
class _RowTrial(SweepTrial):
    """One run of a row."""

    row: RecipeRow


def _specs_by_name(rows: Sequence[RecipeRow], data_specs: Sequence[str]) -> dict[str, str]:
    """Return the data sets by name, after checking that some row is on each."""
    known = dict.fromkeys(row.data for row in rows if row.reason is None)
    if not known:
        raise InputError(f"{rows[0].name}: cannot be run: {rows[0].reason}")
    found: dict[str, str] = {}
    for spec in data_specs:
        name = data_set_name(spec)
        if name not in known:
            raise InputError(f"--data {spec}: no chosen row is on {name}; the rows are on {', '.join(known)}")
        if name in found:
            raise InputError(f"--data {spec}: {name} is given twice")
        found[name] = spec
    return found


def _trials(
    folder: Path,
    rows: Sequence[RecipeRow],
    name: str,
    spec: str,
    changes: Changes,
    seeds: Sequence[int] | None,
    device: Device | None,
) -> Iterator[_RowTrial]:
    """Yield the runs on one data set: all rows with the first seed, then with the second, and so on."""
    runnable = [row for row in rows if row.reason is None and row.data == name]
    configs = {
        row.name: settings.placed(settings.configure(spec, row.name, changes), device) for row in runnable
    }
    own = {row.name: tuple(range(row.runs)) if seeds is None else tuple(seeds) for row in runnable}
    for turn in range(max(map(len, own.values()))):
        for row in runnable:
            for seed in own[row.name][turn : turn + 1]:
                short = row.name.rpartition("/")[2]
                config = configs[row.name].model_copy(update={"seed": seed})
                yield _RowTrial(short, seed, folder / name / short / f"seed-{seed}", config, row)


def _row_result(row: RecipeRow, trials: Sequence[_RowTrial], is_altered: bool) -> RowResult:
    values: dict[str, list[float]] = {}
    for trial in trials:
        for result in trial.results():
            by = "" if result.by is None else BY_COARSE
            for key, value in result.known.items():
                values.setdefault(by + key, []).append(value)
    errors = {trial.seed: error for trial in trials if (error := trial.outcome().error)}
    return RowResult(
        row=row,
        seeds=tuple(trial.seed for trial in trials),
        ours={key: summarize(found) for key, found in values.items()},
        theirs={} if is_altered else row.published_values,
        errors=errors,
    )


# ---- rendering


def reproduction_table(found: Reproduction) -> str:
    """Return the table as plain text: ours, mean and standard deviation in percent, and theirs."""
    blocks = []
    for cells in _blocks(found):
        blocks += text.align_columns(cells, right=range(2, len(cells[0])))
        blocks.append("")
    return "\n".join([*blocks, *_notes(found)])


def reproduction_markdown(found: Reproduction) -> str:
    """Return the table as a Markdown page."""
    lines = [f"# {', '.join(dict.fromkeys(result.row.name.rpartition('/')[0] for result in found.rows))}", ""]
    for head, *cells in _blocks(found):
        rule = ["---", "---", *["---:"] * (len(head) - 2)]
        lines += [f"| {' | '.join(line)} |" for line in (head, rule, *cells)]
        lines.append("")
    return "\n".join([*lines, *(part for note in _notes(found) for part in (note, ""))])


def _blocks(found: Reproduction) -> Iterator[list[list[str]]]:
    """Yield head and rows of each table, see `group_by_columns`."""
    by_name = {result.row.name: result for result in found.rows}
    for keys, rows in group_by_columns([result.row for result in found.rows]).items():
        shown, results = keys or ("recall_at_1",), [by_name[row.name] for row in rows]
        yield [
            ["recipe", "row", "runs", *map(column_title, shown)],
            *([r.row.name, r.row.row, _runs(r), *(_cell(r, key) for key in shown)] for r in results),
        ]


def _runs(result: RowResult) -> str:
    return f"{result.finished}/{len(result.seeds)}" if result.seeds else "-"


def _cell(result: RowResult, key: str) -> str:
    """Return our mean and deviation, with the published value in parentheses."""
    theirs = result.theirs.get(key)
    ours = mean_and_std(result.ours.get(key))
    return ours if theirs is None else f"{ours} ({text.printed(theirs)})"


def _notes(found: Reproduction) -> list[str]:
    notes = [
        "In percent: mean and standard deviation over the runs, one per seed (in parentheses: published)."
    ]
    if found.altered:
        notes.append(
            f"Published values are left out, because settings are changed: {'; '.join(found.altered)}."
        )
    reasons = {r.row.row: r.row.reason for r in found.rows if r.row.reason}
    notes += [f"Not run, {label}: {reason}." for label, reason in reasons.items()]
    remarks = {r.row.published.note: None for r in found.rows if r.row.published and r.row.published.note}
    notes += [f"On the published values: {note}." for note in remarks]
    return notes + [
        f"Failed: {r.row.name}, seed {seed}: {error}" for r in found.rows for seed, error in r.errors.items()
    ]
