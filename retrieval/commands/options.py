"""Options that several gallery commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from retrieval.ingest.indexing import MAX_BAD
from retrieval.search.index import KINDS

_SIZE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse a number of bytes, such as 2GB, 500MB, 1.5GiB or 1000000.

    Raises:
        click.BadParameter: It is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise click.BadParameter(f"{text!r} is not a size such as 2GB")
    number, prefix, binary = match.groups()
    power = " kmgt".index(prefix.lower() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def combine_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options to a command, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# --kind, --recall and --memory: the index to build.
index_options = combine_options(
    click.option(
        "--kind",
        type=click.Choice(KINDS),
        help="Index kind. auto: exact up to 50,000 images, above that the fastest kind that reaches "
        "--recall.  [default: unchanged, at first auto]",
    ),
    click.option(
        "--recall",
        type=click.FloatRange(0, 1, min_open=True),
        help="Share of the 10 nearest neighbours that the index must find.  "
        "[default: unchanged, at first 0.99]",
    ),
    click.option(
        "--memory",
        type=parse_size,
        metavar="SIZE",
        help="Memory limit of the index, for example 2GB.  [default: unchanged, at first no limit]",
    ),
)
sheet_option = click.option(
    "--sheet",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Also write the images to an HTML page.",
)
retry_option = click.option("--retry", is_flag=True, help="Retry files that were unusable before.")
max_bad_option = click.option(
    "--max-bad",
    type=click.FloatRange(0, 1),
    default=MAX_BAD,
    show_default=True,
    metavar="SHARE",
    help="Stop if a larger share of the files, counted over at least 100, is unusable; 0 allows none.",
)
