"""What a check found, and the options by which all checks show it: --limit, --list, --sheet and --json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.options import sheet_option
from retrieval.commands.search_options import combine_options
from retrieval.files import write_csv
from retrieval.galleries.items import Item
from retrieval.reports.sheet import SheetRow, check_sheet_path, write_sheet

_COLUMNS = ("key", "path", "label", "decision")  # of every table; `lookalike check decide` reads them


@dataclass(frozen=True)
class Findings:
    """What a check found.

    Attributes:
        title: Title of the sheet.
        summary: What was found, in a sentence without its full stop.
        facts: The findings as JSON values.
        lines: The findings as lines of text, without the summary.
        rows: The findings as rows of a sheet.
        columns: Further columns of the table.
        table: Each image with the proposed decision, "" for none, and the values of these columns.
        notes: Lines for people on stderr.
        exit_code: 0; 3 if files could not be read.
    """

    title: str
    summary: str
    facts: dict[str, Any]
    lines: Iterable[str]
    rows: Sequence[SheetRow]
    columns: Sequence[str]
    table: Iterable[tuple[Item, str, Sequence[str | float | None]]]
    notes: Sequence[str] = ()
    exit_code: int = 0


def shows_findings(limit_help: str, limit: int | None = None) -> Callable[[Callable[..., Findings]], Any]:
    """Return a decorator of a command that returns findings: it adds the options and shows them.

    Args:
        limit_help: What --limit limits.
        limit: Its default.
    """
    options = combine_options(
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=limit,
            show_default=limit is not None,
            metavar="N",
            help=limit_help,
        ),
        click.option(
            "--list",
            "list_file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE.csv",
            help="Write the images to a table, to decide on them and give it to `lookalike check decide`.",
        ),
        sheet_option,
        json_option,
    )

    def decorate(function: Callable[..., Findings]) -> Any:
        @wraps(function)
        def run(*args: Any, list_file: Path | None, sheet: Path | None, as_json: bool, **others: Any) -> None:
            if sheet is not None:
                check_sheet_path(sheet)
            found = function(*args, **others)
            print_result(found.facts, as_json, [found.summary, *found.lines])
            for note in found.notes:
                print_status(note)
            if list_file is not None:
                write_csv(list_file, (*_COLUMNS, *found.columns), map(_row, found.table))
                print_status(f"{list_file}: written")
            if sheet is not None:
                write_sheet(sheet, found.title, f"{found.summary}.", found.rows)
                print_status(f"{sheet}: written")
            click.get_current_context().exit(found.exit_code)

        return options(run)

    return decorate


def _row(one: tuple[Item, str, Sequence[str | float | None]]) -> tuple[str | float | None, ...]:
    item, decision, values = one
    return item.key, item.path, item.label, decision, *values
